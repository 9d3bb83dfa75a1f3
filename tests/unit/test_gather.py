"""Runs of another machine in the published files: each once, the last ones, with their lanes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gather import gather, main
from benchmarks.offload_lanes import lanes_file
from benchmarks.offload_sheet import COLUMNS, Sheet
from workbench.published.servers import COLUMNS as SERVER_COLUMNS


def run(number: int, case: str = "a", method: str = "ours") -> dict[str, Any]:
    row = dict.fromkeys(COLUMNS) | {"method": method, "samples_per_second": number}
    started = f"2026-11-23T00:{number:02}:00"
    return {
        "case": case,
        "method": method,
        "key": f"{case}-{method}",
        "started": started,
        "row": row,
    }


def sheet(folder: Path, *runs: dict[str, Any], machine: str = "one") -> Path:
    made = Sheet(folder)
    for one in runs:
        made.append(one, {"name": machine})
    return folder


def speeds(folder: Path) -> list[int]:
    """As both files say, which must agree."""
    with (folder / "offload.csv").open() as file:
        rows = [int(row["samples_per_second"]) for row in csv.DictReader(file)]
    runs = json.loads((folder / "offload.json").read_text())["runs"]
    assert rows == [one["row"]["samples_per_second"] for one in runs]
    return rows


def test_runs_come_once_and_keep_their_machine(tmp_path: Path) -> None:
    ours = sheet(tmp_path / "ours", run(1), run(2, case="b"))
    theirs = sheet(tmp_path / "theirs", run(1), run(3, case="c"), machine="another")
    assert gather(theirs, ours) == (1, 0)
    assert gather(theirs, ours) == (0, 0)
    assert speeds(ours) == [1, 2, 3]
    read = Sheet(ours)
    assert [read.machines[one["machine"]]["name"] for one in read.runs] == ["one", "one", "another"]


def test_of_each_case_and_method_the_last_runs_are_kept(tmp_path: Path) -> None:
    ours = sheet(tmp_path / "ours", run(1), run(2, method="peer"), run(3), run(4, case="b"))
    theirs = sheet(tmp_path / "theirs", run(5), run(6))
    assert gather(theirs, ours, kept=2) == (2, 2)
    assert speeds(ours) == [2, 4, 5, 6]


def test_plain_training_stays_since_others_are_shares_of_it(tmp_path: Path) -> None:
    plain = [run(n, method="plain (keep)") for n in (1, 3, 5)]
    ours = sheet(tmp_path / "ours", plain[0], run(2), plain[1], run(4), plain[2])
    theirs = sheet(tmp_path / "theirs", run(6))
    assert gather(theirs, ours, kept=1) == (1, 2)
    assert speeds(ours) == [1, 3, 5, 6]


def test_what_started_last_stands_however_late_another_is_gathered(tmp_path: Path) -> None:
    ours = sheet(tmp_path / "ours", run(1), run(4))
    earlier = sheet(tmp_path / "earlier", run(2), run(3, case="b"))
    assert gather(earlier, ours) == (2, 1)
    assert speeds(ours) == [2, 3, 4]


@pytest.mark.parametrize(("number", "expected"), [(2, "theirs"), (0, "ours")])
def test_the_step_of_the_last_run_comes_along(tmp_path: Path, number: int, expected: str) -> None:
    ours, theirs = sheet(tmp_path / "ours", run(1)), sheet(tmp_path / "theirs", run(number))
    for folder in (ours, theirs):
        lanes_file(folder, run(1)).parent.mkdir()
        lanes_file(folder, run(1)).write_text(folder.name)
    gather(theirs, ours)
    assert [path.name for path in (ours / "lanes").iterdir()] == ["a-ours.csv"]
    assert lanes_file(ours, run(1)).read_text() == expected


def test_steps_of_servers_stay_behind(tmp_path: Path) -> None:
    """The figure of lanes knows methods of one device only, and refuses others."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, number in ((ours, 1), (theirs, 2)):
        row = dict.fromkeys(SERVER_COLUMNS) | {"method": "harmony-pp"}
        Sheet(folder, "servers", SERVER_COLUMNS).append(run(number) | {"row": row}, {"name": "one"})
    lanes_file(theirs, run(2)).parent.mkdir()
    lanes_file(theirs, run(2)).write_text("a step")
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
    assert speeds(tmp_path / "ours") == [1]


def test_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    ours, theirs = sheet(tmp_path / "ours", run(1)), sheet(tmp_path / "theirs", run(2))
    (theirs / "offload.csv").write_text("method,speed\nours,1\n")
    with pytest.raises(ValueError, match="other columns"):
        gather(theirs, ours)
    assert speeds(ours) == [1]
