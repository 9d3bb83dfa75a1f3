"""Runs of another machine in the published files: each once, the last ones, with their lanes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gather import gather, main
from benchmarks.offload_lanes import lanes_file
from benchmarks.offload_sheet import Sheet
from tests.unit.figures.offload import line, record_of
from workbench.core.record import RunRecord
from workbench.published.here import OFFLOAD, SERVERS, Benchmark


def run(number: int, case: str = "a", method: str = "stronghold") -> RunRecord:
    row = line(method, 32, speed=number + 1, started=f"2026-11-23T00:{number:02}:00")
    made = record_of(row)
    return replace(made, key=f"{case}-{method}", bench=made.bench | {"case": case})


def sheet(folder: Path, *runs: RunRecord, machine: str = "one", form: Benchmark = OFFLOAD) -> Path:
    made = Sheet(folder, form)
    for one in runs:
        made.append(replace(one, provenance=one.provenance | {"host": machine}))
    return folder


def numbers(folder: Path) -> list[int]:
    return [run.samples_per_second - 1 for run in Sheet(folder).runs]


def test_runs_come_once_and_keep_their_machine(tmp_path: Path) -> None:
    ours = sheet(tmp_path / "ours", run(1), run(2, case="b"))
    theirs = sheet(tmp_path / "theirs", run(1), run(3, case="c"), machine="another")
    assert gather(theirs, ours) == (1, 0)
    assert gather(theirs, ours) == (0, 0)
    assert numbers(ours) == [1, 2, 3]
    hosts = [run.record.provenance["host"] for run in Sheet(ours).runs]
    assert hosts == ["one", "one", "another"]


def test_of_each_case_and_method_the_last_runs_are_kept(tmp_path: Path) -> None:
    ours = sheet(tmp_path / "ours", run(1), run(2, method="l2l"), run(3), run(4, case="b"))
    theirs = sheet(tmp_path / "theirs", run(5), run(6))
    assert gather(theirs, ours, kept=2) == (2, 2)
    assert numbers(ours) == [2, 4, 5, 6]


def test_plain_training_stays_since_others_are_shares_of_it(tmp_path: Path) -> None:
    plain = [run(n, method="plain (keep)") for n in (1, 3, 5)]
    ours = sheet(tmp_path / "ours", plain[0], run(2), plain[1], run(4), plain[2])
    theirs = sheet(tmp_path / "theirs", run(6))
    assert gather(theirs, ours, kept=1) == (1, 2)
    assert numbers(ours) == [1, 3, 5, 6]


def test_what_started_last_stands_however_late_another_is_gathered(tmp_path: Path) -> None:
    ours = sheet(tmp_path / "ours", run(1), run(4))
    earlier = sheet(tmp_path / "earlier", run(2), run(3, case="b"))
    assert gather(earlier, ours) == (2, 1)
    assert numbers(ours) == [2, 3, 4]


@pytest.mark.parametrize(("number", "expected"), [(2, "theirs"), (0, "ours")])
def test_the_step_of_the_last_run_comes_along(tmp_path: Path, number: int, expected: str) -> None:
    ours, theirs = sheet(tmp_path / "ours", run(1)), sheet(tmp_path / "theirs", run(number))
    for folder in (ours, theirs):
        lanes_file(folder, run(1)).parent.mkdir()
        lanes_file(folder, run(1)).write_text(folder.name)
    gather(theirs, ours)
    assert [path.name for path in (ours / "lanes").iterdir()] == ["a-stronghold.jsonl"]
    assert lanes_file(ours, run(1)).read_text() == expected


def test_steps_of_servers_stay_behind(tmp_path: Path) -> None:
    """The figure of lanes knows methods of one device only, and refuses others."""
    ours, theirs = (
        sheet(tmp_path / name, run(number, method="harmony-pp"), form=SERVERS)
        for name, number in (("ours", 1), ("theirs", 2))
    )
    step = lanes_file(theirs, run(2, method="harmony-pp"))
    step.parent.mkdir()
    step.write_text("a step")
    assert gather(theirs, ours, "servers") == (1, 0)
    assert not (ours / "lanes").exists()


@pytest.mark.parametrize("words", [["nothing", "ours"], ["theirs", "ours", "--keep", "0"]])
def test_what_cannot_be_gathered_changes_nothing(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    sheet(tmp_path / "ours", run(1))
    sheet(tmp_path / "theirs", run(2))
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("gather: ")
    assert numbers(tmp_path / "ours") == [1]


def test_a_file_of_another_benchmark_is_refused(tmp_path: Path) -> None:
    ours, theirs = sheet(tmp_path / "ours", run(1)), sheet(tmp_path / "theirs", run(2))
    odd = (theirs / "offload.jsonl").read_text().replace('"stronghold"', '"harmony-pp"')
    (theirs / "offload.jsonl").write_text(odd)
    with pytest.raises(ValueError, match="line 1: "):
        gather(theirs, ours)
    assert numbers(ours) == [1]
