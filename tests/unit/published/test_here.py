"""Records of runs on named hardware as rows; a wrong one is refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from benchmarks import offload_cases, pipeline_cases
from benchmarks.servers import CASES as SERVER_CASES
from tests.unit.figures import servers
from tests.unit.figures.offload import line, record_of, runs_of, write
from workbench.published.here import (
    BENCHMARKS,
    OFFLOAD,
    PIPELINES,
    SERVERS,
    Benchmark,
    columns,
    latest,
)
from workbench.runs.store import REPOSITORY_RESULTS, Store

GOOD = line("stronghold (w4, keep)", 32, speed=30.0)


def test_a_record_is_a_row(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, [GOOD])
    assert (run.method, run.variant, run.window) == ("stronghold", "w4, keep", 4)
    assert run.label == "STRONGHOLD (window 4, kept)"
    assert (run.layers, run.batch, run.clip, run.device_cap_gib) == (32, 4, 1.0, 32.0)
    assert run.step_seconds_median == pytest.approx(4 / 30)
    assert (run.date, run.hardware) == (date(2026, 11, 21), "Made-up GPU")
    assert (run.device, run.runs) == ("made-up", 1)
    (run,) = servers.runs_of(tmp_path, [servers.line("harmony-pp (faithful)", 4, 64, speed=80.0)])
    assert (run.method, run.variant, run.label) == (
        "harmony-pp", "faithful", "Harmony-PP (faithful)",
    )  # fmt: skip
    weights = run.parameters * 2 / 2**30
    assert (run.load_gib, run.store_gib) == pytest.approx((2.5 * weights, 1.5 * weights))
    assert (run.ranks, run.planned_load_gib) == (4, pytest.approx(2.505 * weights))


def test_a_run_without_a_result_keeps_its_status_and_has_no_numbers() -> None:
    record = record_of(line("zero-offload", 100))
    bench = record.bench | {"told": {}}
    row = columns(replace(record, bench=bench, peak_bytes={"device": 7}))
    assert row["status"] == "oom_device"
    ends = ("_gib", "_second", "_median", "_spread", "_loss")
    assert {row[name] for name in row if name.endswith(ends)} == {None}


@pytest.mark.parametrize(
    ("form", "cases"),
    [(OFFLOAD, offload_cases.OFFLOAD), (SERVERS, SERVER_CASES), (PIPELINES, pipeline_cases.CASES)],
)
def test_every_method_that_a_benchmark_runs_has_a_name(form: Benchmark, cases: Any) -> None:
    assert {name.partition(" (")[0] for name in cases.methods} <= set(form.labels)


def changed(place: str, value: Any) -> str:
    """The line of a good run with another value at a place; without it where that is None."""
    told = json.loads(record_of(GOOD).to_json())
    *path, last = place.split(".")
    inner = told
    for name in path:
        inner = inner[name]
    inner[last] = value
    return json.dumps(told) + "\n"


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("bench.method", "strongholt", "method is 'strongholt'; known are plain, megatron-core"),
        ("bench.warmup", "1", "bench.warmup is '1'; it must be a whole number"),
        ("bench", None, "it has no field 'bench', which says whose run it is"),
        ("spec.model.layers", "32.5", "layers is '32.5'; it must be a whole number"),
        ("spec.dtype", "int8", "dtype is 'int8'; it must be fp32 or bf16"),
        ("status", "fine", "status is 'fine'; it must be ok or oom_device"),
        ("bench.told.samples_per_second", "fast", "told.samples_per_second is 'fast'"),
        ("bench.told.samples_per_second", None, "is None, and a run that ended ok has one"),
        ("bench.told.step_seconds_median", -1, "step_seconds_median is -1, and a run that ended"),
        ("losses", ["low"], "losses[0] is 'low'; it must be a number"),
        ("provenance.commit", "", "commit is ''; it must not be empty"),
        ("started", "21.11.2026", "started is '21.11.2026'; it must begin with a date"),
        ("colour", "red", "unknown field 'colour'"),
    ],
)
def test_a_bad_line_is_one_sentence_with_file_line_and_value(
    place: str, value: Any, words: str, tmp_path: Path
) -> None:
    path = write(tmp_path, [GOOD])
    path.write_text(path.read_text() + changed(place, value))
    with pytest.raises(ValueError, match=r"^made-up/offload\.jsonl, line 2: ") as raised:
        OFFLOAD.read(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_torn_line_and_a_shape_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [GOOD])
    path.write_text(path.read_text()[:-40])
    with pytest.raises(ValueError, match=r"offload\.jsonl, line 1: not a run record: it is not"):
        OFFLOAD.read(path)
    odd = servers.line("varuna", 4, speed=30.0, replicas=1, micro=3)
    with pytest.raises(ValueError, match="1 replicas in micro-batches of 3 divide no batch of 64"):
        runs_of(tmp_path, [odd], PIPELINES)


def test_of_equal_settings_the_last_run_counts_and_says_how_many_there_were(tmp_path: Path) -> None:
    rows = [line("plain", 32, speed=s) for s in (30.0, 40.0, 20.0)]
    runs = runs_of(tmp_path, [*rows, line("plain", 32, speed=25.0, clip="")])
    assert [run.samples_per_second for run in runs] == [30.0, 40.0, 20.0, 25.0]
    assert [(run.samples_per_second, run.runs) for run in latest(runs)] == [(20.0, 3), (25.0, 1)]
    rows = [servers.line("harmony-pp", speed=s) for s in (80.0, 70.0)]
    runs = servers.runs_of(tmp_path, [*rows, servers.line("harmony-pp", 2, speed=40.0)])
    assert [(run.ranks, run.samples_per_second, run.runs) for run in latest(runs)] == [
        (4, 70.0, 2), (2, 40.0, 1),
    ]  # fmt: skip


def test_folders_without_the_file_are_empty_and_equal_ones_read_once(tmp_path: Path) -> None:
    assert OFFLOAD.runs([tmp_path, tmp_path / "absent"]) == []
    path = write(tmp_path, [GOOD])
    assert [run.runs for run in OFFLOAD.runs([tmp_path, tmp_path / "." / "x" / ".."])] == [1]
    path.write_text(path.read_text() * 2)
    assert len(OFFLOAD.runs([tmp_path])) == 2, "another file of that name is read anew"


def test_what_is_committed_can_be_read() -> None:
    for form in BENCHMARKS.values():
        assert all(run.hardware for run in form.runs([REPOSITORY_RESULTS]))
    table = Store().published_here().query("hardware == 'h200'")
    assert {"first-runs", "78-b4", "xl-4-b64"} <= set(table["case"])
