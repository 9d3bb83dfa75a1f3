"""The offload benchmark: fair cases, files that explain themselves, a loop that goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from benchmarks import offload_bench
from benchmarks.offload import table
from benchmarks.offload_bench import Bench, busy
from benchmarks.offload_cases import GIB, Entry, estimated_seconds, probe
from benchmarks.offload_cases import OFFLOAD as CASES
from benchmarks.offload_sheet import ROOT, Sheet, describe
from workbench.cli import make_parser
from workbench.cli.spec import specs_from
from workbench.core import methods
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec, flat
from workbench.published.here import OFFLOAD, Run
from workbench.runs.resolve import resolve
from workbench.runs.store import Store
from workbench.schedule.simulate import Event

MAY_DIFFER = {
    "method", "activations", "optimizer_tier", "disk_memory", "compile", "window", "resident",
    "pulled", "kept",
}  # fmt: skip
"""Fields of the spec in which the methods of a case differ, besides the budget."""
ORIGIN = {"commit": "0123456789abcdef", "dirty": False, "gpus": ["NVIDIA H200"], "cores": 16}


def paper(**options: Any) -> list[Entry]:
    return CASES.entries("paper", warmup=4, measured=8, **options)


def record_of(spec: Any, status: str = "ok", **changes: Any) -> RunRecord:
    """A run as the runner reports it: one slow step, then steps of 2, 1, 2, 3 s."""
    ended = {
        "losses": [5.0] * 4,
        "step_seconds": [9.0, 2.0, 1.0, 2.0, 3.0],
        "peak_bytes": {"device": 8 * GIB, "host": 16 * GIB, "disk": 0},
        "grad_norms": [1.5] * 4,
    }
    values = {
        "key": f"{spec.method}-{spec.model.layers}",
        "method": spec.method,
        "status": status,
        "spec": spec.to_dict(),
        "started": "2026-11-21T08:00:00+00:00",
        "seconds": 40.0,
        "provenance": ORIGIN,
        **(ended if status == "ok" else {"message": f"it was {status}"}),
    }
    return RunRecord(**{**values, **changes})


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Callable[..., Bench]:
    """A bench whose runs end at once, as `outcome` says of their spec."""

    def make(outcome: Callable[[Any], str | RunRecord], **options: Any) -> Bench:
        class Instant:
            folder = tmp_path

            def __init__(self, spec, store, **options) -> None:
                self.spec = spec
                started.append(spec)

            def poll(self) -> RunRecord:
                result = outcome(self.spec)
                return record_of(self.spec, result) if isinstance(result, str) else result

            def new_events(self) -> list:
                return []

            def __enter__(self):
                return self

            def __exit__(self, *_: object) -> None:
                pass

        started: list[Any] = []
        monkeypatch.setattr(offload_bench, "Job", Instant)
        monkeypatch.setattr(offload_bench, "resolve", lambda spec: spec)
        monkeypatch.setattr(offload_bench, "planned_largest", _no_plan)
        made = Bench(sheet=Sheet(tmp_path), store=Store(tmp_path), echo=lambda _: None, **options)
        made.started = started
        return made

    return make


def _no_plan(*_: Any, **__: Any) -> None:
    raise ValueError("this machine is not measured")


# -- cases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.by_size["paper"], ids=lambda case: case.name)
def test_the_methods_of_a_case_do_the_same_training(case):
    specs = [e.spec for e in paper(only=[case.name])]
    usual = [flat(RunSpec(method=spec.method)) for spec in specs]
    same = [
        {
            name: value
            for name, value in flat(spec).items()
            if name not in MAY_DIFFER | {"device_memory"} and value != default[name]
        }
        for spec, default in zip(specs, usual, strict=True)
    ]
    assert all(spec == same[0] for spec in same)


def test_only_what_offloads_has_the_devices_budget():
    caps = {e.name: e.spec.device_memory for e in paper()}
    assert caps["78-b16-24g/zero-offload"] == caps["78-b16-24g/stronghold"] == 24 * GIB
    assert caps["78-b4/plain (keep)"] is caps["78-b4/megatron-core"] is None
    assert caps["small-fp32/stronghold-disk"] == 3 * GIB


def test_models_and_training_are_the_published_ones():
    spec = {e.name: e.spec for e in paper()}["100-b16/zero-infinity"]
    assert (spec.model.layers, spec.model.hidden, spec.model.heads) == (100, 2048, 16)
    assert spec.model.parameters == pytest.approx(5.14e9, rel=1e-3)
    assert (spec.batch, spec.dtype, spec.clip, spec.lr) == (16, "bf16", 1.0, 1e-4)
    assert (spec.steps, spec.microbatches, spec.learning_rate(11)) == (12, 1, 1e-4)


def test_patterns_pick_by_case_by_method_and_by_both():
    assert {e.case for e in paper(only=["78-b4"])} == {"78-b4"}
    assert {e.case for e in paper(only=["78-*-16g"])} == {"78-b4-16g", "78-b16-16g"}
    assert {e.method for e in paper(only=["zero-offload"])} == {"zero-offload"}
    (one,) = paper(only=["78-b4/stronghold"])
    assert one.name == "78-b4/stronghold"
    with pytest.raises(ValueError, match="nothing matches 'b78'; cases are fits-b4, 78-b4"):
        paper(only=["b78"])


def test_pins_are_a_variant():
    spec = {e.name: e.spec for e in paper()}["depth-60/stronghold (w4 r0 stash)"]
    assert (spec.options.window, spec.options.resident, spec.activations) == (4, 0, "host")
    pinned = CASES.changes_of("stronghold (w8 p12 k4)")
    assert (pinned["window"], pinned["pulled"], pinned["kept"]) == (8, 12, 4)
    for name in ("deepspeed", "deepspeed (w4)", "stronghold ()", "stronghold (x4)"):
        with pytest.raises(ValueError, match=re.escape(f"unknown method {name!r} of the bench")):
            CASES.changes_of(name)


def test_names_of_runs_do_not_repeat():
    names = [entry.name for entry in paper()]
    assert len(names) == len(set(names))


def test_estimates_learn_from_earlier_runs():
    small, large = (paper(only=[f"{case}/zero-offload"])[0] for case in ("fits-b4", "78-b4"))
    assert 30 < estimated_seconds(small) < estimated_seconds(large) < 300
    earlier = Run(method="zero-offload", status="ok", start_seconds=500.0, parameters=1e9)
    assert estimated_seconds(small, [earlier]) > 500 * small.spec.model.parameters / 1e9
    earlier.status = "error"
    assert estimated_seconds(small, [earlier]) == estimated_seconds(small)


def test_peers_are_run_by_name_and_never_by_surprise():
    assert not methods.METHODS.keys() & methods.PEERS.keys()
    assert methods.find("fsdp").label == "FSDP2"
    arguments = make_parser().parse_args(["run", "-m", "all"])
    assert [spec.method for spec in specs_from(arguments, window=4)] == list(methods.METHODS)
    arguments = make_parser().parse_args(["run", "-m", "plain"])
    assert [spec.method for spec in specs_from(arguments, window=4)] == ["plain"]


# -- the files -------------------------------------------------------------------------------------


def entered(sheet: Sheet, entry: Entry, status: str = "ok", **changes: Any) -> Run:
    return sheet.append(describe(entry, record_of(entry.spec, status), **changes))


def test_a_row_has_the_median_of_the_measured_steps(tmp_path):
    entry = CASES.entries("tiny", warmup=1, measured=4, only=["tiny/plain"])[0]
    row = entered(Sheet(tmp_path), entry)
    assert row.step_seconds_median == 2.0
    assert row.samples_per_second == entry.spec.batch / 2.0
    assert row.step_seconds_spread == pytest.approx((2.25 - 1.75) / 2)
    assert (row.peak_device_gib, row.host_gib, row.final_loss) == (8.0, 16.0, 5.0)
    assert str(row.date) == "2026-11-21"


def test_the_rows_are_those_that_figures_read(tmp_path):
    sheet = Sheet(tmp_path)
    wanted = paper(only=["78-b4", "78-b4-noclip", "depth-40"])
    for entry in wanted:
        entered(sheet, entry, "oom_device" if entry.method == "l2l" else "ok")
    read = OFFLOAD.read(sheet.path)
    assert [run.named for run in read] == [entry.method for entry in wanted]
    assert {r.hardware for r in read} == {"NVIDIA H200"}
    assert [r.clip for r in read if r.method == "plain"] == [1.0, 1.0, None]
    failed = [r for r in read if r.status == "oom_device"]
    assert len(failed) == 2
    assert all(r.samples_per_second is r.peak_device_gib is r.final_loss is None for r in failed)


def test_nothing_in_the_table_is_unexplained(tmp_path):
    entry = paper(only=["78-b4/zero-offload"])[0]
    words = ["python", "-m", "benchmarks.offload", "--out", "h200"]
    entered(Sheet(tmp_path), entry, command=words)
    log = f"Traceback\n{ROOT}/baselines/zero.py: no\n" + "line\n" * 30 + "AssertionError"
    entered(Sheet(tmp_path), entry, "error", log=log, commit="abc")
    good, bad = (run.record for run in Sheet(tmp_path).runs)
    assert good.spec == entry.spec.to_dict()
    assert (good.losses, good.grad_norms) == ([5.0] * 4, [1.5] * 4)
    origin = {**ORIGIN, "command": words, "commit": "0123456789ab"}
    assert (good.provenance, bad.provenance["commit"]) == (origin, "abc")
    assert bad.bench["log"][-1] == "AssertionError"
    assert str(ROOT) not in (tmp_path / "offload.jsonl").read_text()
    assert Sheet(tmp_path).runs[1].samples_per_second is None


def test_a_record_that_cannot_be_right_is_not_entered(tmp_path):
    sheet = Sheet(tmp_path)
    run = entered(sheet, paper(only=["78-b4/plain"])[0])
    with pytest.raises(ValueError, match="started is 'soon'; it must begin with a date"):
        sheet.append(replace(run.record, started="soon"))
    assert len(Sheet(tmp_path).runs) == len(sheet.runs) == 1


def test_lanes_are_as_busy_as_the_plan_that_ran_foresaw_and_as_they_were(tmp_path):
    assert busy(tmp_path) == {}
    ran = [Event("F1.0", "F", 1, 0, 0, "compute", step, step, step + 0.5) for step in (3, 4)]
    told = [replace(event, end_s=event.start_s + 0.25) for event in ran]
    events = {"events": [*map(asdict, ran)], "predicted": [*map(asdict, told)]}
    (tmp_path / "timeline.json").write_text(json.dumps(events))
    lanes = busy(tmp_path)
    assert (lanes["predicted"]["compute"], lanes["measured"]["compute"]) == (0.25, 0.5)
    assert lanes["measured"]["h2d"] == 0.0


# -- the loop --------------------------------------------------------------------------------------


def test_a_failure_is_a_row_and_the_rest_goes_on(bench):
    wanted = paper(only=["78-b4"])
    done = bench(lambda spec: "error" if spec.method == "fsdp" else "ok")
    assert done.run(wanted) == []
    assert [run.named for run in done.sheet.runs] == [entry.method for entry in wanted]
    assert done.failed == 1
    lines = table(done.sheet, wanted)
    assert len(lines) == 1 + len(wanted)
    assert any("fsdp-offload" in line and line.endswith("error") for line in lines)


def test_what_is_finished_is_not_run_again_unless_asked(bench):
    wanted = paper(only=["78-b4"])
    failing = bench(lambda spec: {"l2l": "timeout", "fsdp": "oom_host"}.get(spec.method, "ok"))
    failing.run(wanted)
    second = bench(lambda spec: "ok")
    second.run(wanted)
    assert [spec.method for spec in second.started] == ["l2l"]
    assert second.sheet.latest(wanted[-1]).status == "ok"
    third = bench(lambda spec: "ok", again=True)
    third.run(wanted)
    assert len(third.started) == len(wanted)
    assert len(third.sheet.path.read_text().splitlines()) == 2 * len(wanted) + 1


def test_a_batch_that_does_not_fit_is_divided(bench):
    wanted = paper(only=["78-b16-16g/zero-offload"])
    done = bench(lambda spec: "ok" if spec.microbatches == 4 else "oom_device")
    done.run(wanted)
    assert [spec.microbatches for spec in done.started] == [1, 2, 4]
    assert [run.status for run in done.sheet.runs] == ["oom_device", "oom_device", "ok"]
    assert done.sheet.finished(wanted[0])


def test_dividing_goes_on_where_it_was_stopped(bench):
    wanted = paper(only=["78-b16-16g/zero-offload"])
    entered(bench(lambda spec: "ok").sheet, wanted[0], "oom_device")
    done = bench(lambda spec: "oom_device")
    assert not done.sheet.finished(wanted[0])
    done.run(wanted)
    assert [spec.microbatches for spec in done.started] == [2, 4]
    assert done.sheet.finished(wanted[0])


def test_nothing_is_started_that_may_end_too_late(bench, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(offload_bench.time, "monotonic", lambda: clock[0])

    def outcome(spec) -> str:
        clock[0] += 60
        return "ok"

    wanted = paper(only=["fits-b4"])
    limited = bench(outcome, deadline=200.0)
    left = limited.run(wanted)
    assert 0 < len(limited.started) < len(wanted)
    assert len(limited.started) + len(left) == len(wanted)
    assert clock[0] <= 200


@pytest.mark.parametrize("largest", [0, 1, 31, 32, 77, 320])
def test_the_largest_model_is_found_and_remembered(bench, largest):
    caps = (32 * GIB, 90 * GIB)

    def outcome(spec) -> str:
        assert (spec.device_memory, spec.host_memory, spec.steps) == (*caps, 3)
        return "ok" if spec.model.layers <= largest else "oom_host"

    search = bench(outcome)
    assert search.largest("stronghold", caps, 320) == largest
    assert len(search.started) < 20
    again = bench(outcome)
    assert again.largest("stronghold", caps, 320) == largest
    assert again.started == []
    assert {run.host_cap_gib for run in again.sheet.runs} == {90.0}


def test_the_planners_word_saves_probes(bench, monkeypatch):
    search = bench(lambda spec: "ok" if spec.model.layers <= 150 else "oom_device")
    monkeypatch.setattr(offload_bench, "planned_largest", lambda *_, **__: 150)
    assert search.largest("stronghold", (32 * GIB, None), 320) == 150
    assert [spec.model.layers for spec in search.started] == [150, 151]


def test_a_search_gives_up_on_an_error(bench):
    search = bench(lambda spec: "error")
    assert search.largest("stronghold", (None, None), 320) is None
    assert (len(search.started), search.failed) == (1, 1)


def test_a_search_takes_the_roomiest_setting():
    assert probe("l2l", 10, None, None).spec.activations == "host"
    assert probe("zero-infinity-disk", 10, None, None).spec.options.optimizer_tier == "disk"
    assert probe("stronghold", 10, 32 * GIB, 90 * GIB).case == "largest-32g-90g"


def test_the_published_sizes_ask_for_a_gpu():
    entry = paper(only=["fits-b4/plain"])[0]
    assert entry.spec.device == "cuda"
    assert resolve(CASES.entries("tiny", warmup=1, measured=1)[0].spec).device == "cpu"
