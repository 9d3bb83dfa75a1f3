"""The benchmark of servers: fair cases, and a tiny one for real on several processes."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.offload_cases import GIB
from benchmarks.servers import CASES, main
from tests.runs.helpers import left_behind
from workbench.methods.pipeline.orders import ORDERS
from workbench.published.here import SERVERS

MAY_DIFFER = {"method", "microbatches", "device_memory", "options"}
"""Fields of the spec in which the methods of a case differ."""


def paper(**options):
    return CASES.entries("paper", warmup=4, measured=8, **options)


@pytest.mark.parametrize("case", CASES.by_size["paper"], ids=lambda case: case.name)
def test_the_methods_of_a_case_do_the_same_training(case):
    runs = paper(only=[case.name])
    for entry in runs:
        kept = entry.method.endswith(" (keep)")
        again = "recompute" if entry.spec.method in ORDERS else "auto"
        assert entry.spec.activations == ("keep" if kept else again), entry.name
    specs = [entry.spec.with_(activations="auto").to_dict() for entry in runs]
    same = [{k: v for k, v in spec.items() if k not in MAY_DIFFER} for spec in specs]
    assert all(spec == same[0] for spec in same)


def test_roofs_have_all_memory_and_pipelines_their_microbatches():
    specs = {entry.name: entry.spec for entry in paper()}
    xl = specs["xl-4-b64/harmony-pp"]
    assert xl.model.parameters == pytest.approx(1.5576e9, rel=1e-4)
    assert (xl.ranks, xl.batch, xl.dtype, xl.clip) == (4, 64, "bf16", 1.0)
    assert xl.device_memory == specs["xl-4-b64/zero-infinity"].device_memory == 11 * GIB
    assert specs["xl-4-b64/data-parallel"].device_memory is None
    kept = specs["xl-4-b64/torch-1f1b (keep)"]
    assert (kept.device_memory, kept.microbatches, kept.activations) == (None, 8, "keep")
    assert specs["xl-4-b64/torch-1f1b"].microbatches == 8
    assert specs["xl-8-b16/torch-gpipe"].microbatches == 8
    assert {entry.splits for entry in paper(only=["torch-1f1b"])} == {(2,), (4,), (8,)}
    assert {entry.splits for entry in paper(only=["data-parallel*"])} == {(1, 2, 4)}
    assert {entry.splits for entry in paper(only=["harmony-*", "zero-*"])} == {(1,)}


def test_ten_times_what_the_cards_have():
    for entry in paper(only=["ten-*"]):
        spec = entry.spec
        states = 14 * spec.model.parameters  # bf16 weights and remainder, moments, gradients
        assert states > 10 * spec.ranks * spec.device_memory


@pytest.mark.slow
@pytest.mark.thorough
def test_it_runs_end_to_end_on_any_machine(tmp_path, measured, capsys):
    """As test_offload_runs.py asks of one device, with the same runs and sheets."""
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    words = ["--size", "tiny", "--warmup", "1", "--measured", "2", "--out", str(tmp_path / "out")]
    chosen = ["--only", "harmony-pp", "--only", "data-parallel"]
    assert main([*words, "--results", str(tmp_path / "results"), *chosen]) == 0
    printed = capsys.readouterr().out
    assert "of data-paral" in printed
    assert "100.0%" in printed
    harmony, parallel = SERVERS.read(tmp_path / "out" / "servers.jsonl")
    assert (harmony.named, parallel.named) == ("harmony-pp", "data-parallel")
    assert harmony.final_loss == pytest.approx(parallel.final_loss, rel=1e-6)
    assert harmony.load_gib == harmony.planned_load_gib > 0
    assert parallel.planned_load_gib == 0, "its plan moves nothing over the host links"
    run = harmony.record
    assert run.moved_bytes == run.predicted["moved_bytes"]
    assert run.bench["lanes"]["measured"]["compute"] > 0
    assert left_behind(tmp_path) == []
