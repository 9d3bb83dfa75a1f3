"""The benchmark of pipelines: legal cases in every shape, what it says of rows, and a tiny run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest

from baselines import torch_pipelines
from benchmarks.gather import gather
from benchmarks.offload_sheet import Sheet
from benchmarks.pipeline_cases import BATCH, CASES, MICROS
from benchmarks.pipelines import bubble, main, summary
from tests.methods import plain
from tests.runs.helpers import left_behind
from tests.unit.figures.offload import record_of
from workbench.core import methods
from workbench.core.model_spec import ModelSpec
from workbench.methods.pipeline import planner
from workbench.methods.pipeline.orders import ORDERS
from workbench.published.here import PIPELINES, replicas_of
from workbench.schedule.simulate import Event


def test_every_shape_is_there_and_every_case_is_legal():
    shapes: dict[str, set[tuple[int, int, int]]] = {}
    for entry in CASES.entries("paper", warmup=4, measured=8):
        spec = entry.spec
        replicas = replicas_of(vars(spec.options))
        if spec.method in ORDERS:
            planner.check(spec, spec.method)
        elif spec.method.startswith("torch-"):
            torch_pipelines.check(spec)
        micro, rest = divmod(BATCH, spec.microbatches * replicas)
        assert (rest, entry.splits, spec.steps) == (0, (spec.microbatches,), 10), entry.name
        assert spec.activations == "recompute"
        assert entry.case == f"{spec.ranks // replicas}x{replicas}-m{micro}"
        shapes.setdefault(entry.method, set()).add((spec.ranks // replicas, replicas, micro))
    every = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4)]
    assert shapes["varuna"] == {(*shape, micro) for shape in every for micro in MICROS}
    for order in ("1f1b", "zb-h1", "interleaved", "deepspeed-pipe"):
        assert {(p, d, m) for p, d in ((4, 1), (2, 2)) for m in MICROS} <= shapes[order]


def test_a_bubble_is_the_share_without_a_pass():
    """Of equal stages, (P - 1) / (N + P - 1)."""
    model = ModelSpec(layers=8, hidden=32, heads=4, seq=16, vocab=64, tied=False)
    spec = plain.spec_for(method="1f1b", model=model, batch=32, microbatches=8, ranks=4)
    made_up = plain.made_up_profile(spec)
    rates = ("h2d_bytes_per_s", "device_adam_params_per_s", "host_adam_params_per_s")
    fast = replace(made_up.hardware, device="cuda", **dict.fromkeys(rates, 1e15))
    units = tuple(
        replace(unit, forward_s=on, recompute_s=on, backward_s=2 * on)
        for unit in made_up.units
        for on in [1e-3 * (unit.kind == "block")]
    )
    profiles = {4: replace(made_up, hardware=fast, units=units)}
    plan = methods.load("1f1b").plan_sizes(spec, profiles)
    assert bubble(plan.simulated, stages=4) == pytest.approx(3 / 11, rel=1e-3)
    events = [
        Event("F1.0", "F", 1, 0, rank, lane, step, step + start, step + start + busy, 0)
        for step, busy in ((2, 0.3), (3, 0.3), (4, 0.9))
        for rank, lane, start in ((0, "compute", 0.0), (1, "compute", 0.5), (1, "net-out", 0.1))
    ]
    assert bubble(events, stages=2) == pytest.approx(0.7)
    with pytest.raises(ValueError, match="two steps"):
        bubble(events[:3], stages=2)


def row(method: str, micro: int, seconds: float | None, **changes: Any) -> dict[str, Any]:
    """A made-up row of 4 GPUs."""
    told = {
        "method": method, "ranks": 4, "replicas": 1, "micro": micro, "layers": 48, "hidden": 1600,
        "heads": 25, "seq": 1024, "batch": 64, "dtype": "bf16", "clip": 1.0, "status": "oom_device",
        "commit": "0123abc", "measured_on": "2026-11-27 Made-up GPU",
    }  # fmt: skip
    if seconds is not None:
        told |= {"status": "ok", "parameters": 1, "step_seconds_median": seconds}
        told["samples_per_second"] = 64 / seconds
    return told | changes


def test_it_tells_errors_the_choice_and_the_peers(tmp_path):
    sheet = Sheet(tmp_path / "theirs", PIPELINES)
    for number, one in enumerate((
        row("varuna", 1, 2.0, predicted_step_seconds=1.9),
        row("varuna", 2, 2.2, predicted_step_seconds=1.87),
        row("varuna", 8, None),
        row("zb-h1", 1, 1.6, bubble=0.12, predicted_bubble=0.10),
        row("torch-1f1b", 1, 2.0),
    )):  # fmt: skip
        made = record_of(one | {"started": f"2026-11-27T00:0{number}"})
        sheet.append(replace(made, key=str(number), bench=made.bench | {"case": str(number)}))
    told = "\n".join(summary(sheet.path))
    assert "error of the step, ours: mean 10.0%, worst 15.0% (varuna 4x1 m2), 2 runs" in told
    assert "bubble (of a step), ours: mean 2.0%, worst 2.0% (zb-h1 4x1 m1), 1 runs" in told
    assert "choice on 4 GPUs, varuna: varuna 4x1 m2, 10.0% over the best, varuna 4x1 m1" in told
    assert "4x1 m1: zb-h1 1.250 times as fast as torch-1f1b" in told
    assert gather(tmp_path / "theirs", tmp_path / "ours", "pipelines") == (5, 0)
    assert len(PIPELINES.read(tmp_path / "ours" / "pipelines.jsonl")) == 5


@pytest.mark.slow
@pytest.mark.thorough
def test_it_runs_end_to_end_on_any_machine(tmp_path, measured, capsys):
    """As test_server_bench.py asks; torch's own is planned from the profile of ours."""
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    words = ["--size", "tiny", "--out", str(tmp_path / "out"), "--only", "2x1-m2/varuna"]
    words += ["--results", str(tmp_path / "results"), "--only", "2x1-m2/torch-1f1b"]
    assert main(words) == 0
    assert "error of the step, peers: mean" in capsys.readouterr().out
    ours, torchs = PIPELINES.read(tmp_path / "out" / "pipelines.jsonl")
    assert ours.final_loss == pytest.approx(torchs.final_loss, rel=1e-6)
    assert 0 < ours.bubble < 1
    assert 0 <= ours.predicted_bubble < 1
    for run in (ours, torchs):
        times = run.predicted_step_seconds / run.step_seconds_median
        assert run.error == pytest.approx(times - 1, abs=1e-3)
        assert run.predicted_peak_device_gib > 0
    assert left_behind(tmp_path) == []
