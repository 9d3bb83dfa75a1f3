"""Rows measured on named hardware: read in types; a wrong one is refused in one sentence."""

from __future__ import annotations

from dataclasses import fields
from datetime import date
from pathlib import Path

import pytest

from tests.unit.figures.offload import line, runs_of, write
from workbench.published.here import COLUMNS, LABELS, OffloadRun, latest, offload_runs, read_offload
from workbench.published.servers import server_runs
from workbench.runs.store import REPOSITORY_RESULTS

GOOD = line("stronghold (w4, keep)", 32, speed=30.0)


def test_a_row_is_read_in_types(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, [GOOD])
    assert (run.method, run.variant, run.window) == ("stronghold", "w4, keep", 4)
    assert run.label == "STRONGHOLD (window 4, kept)"
    assert (run.layers, run.batch, run.clip, run.device_cap_gib) == (32, 4, 1.0, 32.0)
    assert run.host_cap_gib is None
    assert run.step_seconds_median == pytest.approx(4 / 30)
    assert (run.date, run.hardware) == (date(2026, 11, 21), "Made-up GPU")
    assert (run.device, run.line, run.runs) == ("made-up", 2, 1)


def test_a_run_without_a_result_keeps_its_status_and_has_no_numbers(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, [line("zero-offload", 100, parameters="")])
    assert run.status == "oom_device"
    ends = ("_gib", "_second", "_median", "_spread", "_loss")
    numbers = [f.name for f in fields(OffloadRun) if f.name.endswith(ends)]
    assert {getattr(run, name) for name in numbers if "cap" not in name} == {None}


@pytest.mark.parametrize("method", LABELS)
def test_every_method_can_be_named_with_and_without_a_variant(method: str, tmp_path: Path) -> None:
    rows = [line(method, 32, speed=1.0), line(f"{method} (keep)", 32, speed=1.0)]
    assert [run.variant for run in runs_of(tmp_path, rows)] == ["", "keep"]


@pytest.mark.parametrize("text", ["", "none", "off", "0"])
def test_no_clipping_may_be_written_in_the_usual_ways(text: str, tmp_path: Path) -> None:
    assert runs_of(tmp_path, [line("plain", 32, speed=1.0, clip=text)])[0].clip is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "strongholt"}, "method is 'strongholt'; known are plain, megatron-core"),
        ({"method": "plain keep"}, "a variant in parentheses"),
        ({"layers": "32.5"}, "layers is '32.5'; it must be a whole number"),
        ({"batch": "0"}, "batch is '0'"),
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of fp32, bf16, fp16"),
        ({"status": "fine"}, "status is 'fine'; it must be one of ok, oom_device"),
        ({"samples_per_second": "fast"}, "samples_per_second is 'fast'"),
        ({"samples_per_second": ""}, "samples_per_second is '', and a run that ended ok has one"),
        ({"step_seconds_median": "nan"}, "step_seconds_median is 'nan'"),
        ({"step_seconds_median": 4e3 / 30}, "which makes 4000 samples in a step"),
        ({"peak_device_gib": "-1"}, "peak_device_gib is '-1'"),
        ({"device_cap_gib": "0"}, "device_cap_gib is '0'"),
        ({"final_loss": "low"}, "final_loss is 'low'"),
        ({"commit": ""}, "commit is ''"),
        ({"measured_on": "2026-11-21"}, "measured_on is '2026-11-21'; it must be a date and a"),
        ({"measured_on": "21.11.2026 NVIDIA H200"}, "such as 2026-11-21 NVIDIA H200"),
    ],
)
def test_a_bad_row_is_one_sentence_with_file_line_and_value(
    changes: dict, words: str, tmp_path: Path
) -> None:
    path = write(tmp_path, [GOOD, {**GOOD, **changes}])
    with pytest.raises(ValueError, match=r"^made-up/offload\.csv, line 3: ") as raised:
        read_offload(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [GOOD])
    whole = path.read_text()
    path.write_text(whole.replace("final_loss", "loss"))
    with pytest.raises(ValueError, match="line 1: the columns.*final_loss, loss"):
        read_offload(path)
    path.write_text(whole.rstrip("\n") + ",7\n")
    with pytest.raises(ValueError, match=r"line 2: 24 fields, and the header has 23"):
        read_offload(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        read_offload(path)


def test_columns_may_stand_in_any_order_and_comments_between_rows(tmp_path: Path) -> None:
    path = tmp_path / "published-here" / "x" / "offload.csv"
    path.parent.mkdir(parents=True)
    names, row = COLUMNS[::-1], line("plain", 32, speed=30.0)
    path.write_text(f"# a note\n{','.join(names)}\n\n" + ",".join(str(row[n]) for n in names))
    (run,) = read_offload(path)
    assert (run.layers, run.line) == (32, 4)


def test_of_equal_settings_the_last_run_counts_and_says_how_many_there_were(tmp_path: Path) -> None:
    rows = [line("plain", 32, speed=s) for s in (30.0, 40.0, 20.0)]
    runs = runs_of(tmp_path, [*rows, line("plain", 32, speed=25.0, clip="")])
    assert [run.samples_per_second for run in runs] == [30.0, 40.0, 20.0, 25.0]
    assert [(run.samples_per_second, run.runs) for run in latest(runs)] == [(20.0, 3), (25.0, 1)]


def test_folders_without_the_file_are_empty_and_equal_ones_read_once(tmp_path: Path) -> None:
    assert offload_runs([tmp_path, tmp_path / "absent"]) == []
    write(tmp_path, [GOOD])
    assert [run.runs for run in offload_runs([tmp_path, tmp_path / "." / "x" / ".."])] == [1]


def test_what_is_committed_can_be_read() -> None:
    for runs in (offload_runs, server_runs):
        assert all(run.hardware for run in runs([REPOSITORY_RESULTS]))


def test_what_the_benchmark_writes_can_be_read(tmp_path: Path) -> None:
    from benchmarks.offload_cases import CASES

    names = {name for cases in CASES.values() for case in cases for name in case.methods}
    runs = runs_of(tmp_path, [line(name, 32, speed=1.0) for name in sorted(names)])
    assert len(runs) == len(names)
    assert {run.window for run in runs} > {None, 4}
