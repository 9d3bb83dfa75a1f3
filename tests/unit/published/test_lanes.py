"""Measured steps that are committed: read into events, and refused where they cannot be right."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.unit.figures.lanes import STEP, step_text, write_step
from workbench.published.lanes import measured_steps, read_lanes

COMPUTE = "compute,F,1,0,0,F1.0,0.000000,0.020000,0"


def test_a_step_is_read_as_it_was_written(tmp_path: Path) -> None:
    step = read_lanes(write_step(tmp_path, clip=""))
    assert (step.device, step.case, step.label) == ("made-up", "78-b4", "STRONGHOLD")
    assert (step.layers, step.batch, step.clip, step.device_cap_gib) == (78, 4, None, 32.0)
    assert (step.started, step.step_seconds) == (date(2026, 11, 21), 0.1)
    read = [(e.lane, e.name, e.start_s, e.end_s, e.nbytes) for e in step.events]
    assert read == list(STEP)
    assert [event.name for event in step.of_lane("compute")] == ["F1.0", "B1.0"]
    assert [event.microbatch for event in step.events[1:3]] == [0, None]


def test_the_committed_steps_can_be_right(root: Path) -> None:
    steps = measured_steps([root / "results"])
    assert {"78-b4", "78-b16", "100-b4", "100-b16"} <= {step.case for step in steps}
    for step in steps:
        moved = sum(event.nbytes for event in step.events)
        assert moved < 2 * step.step_seconds * step.host_memory_bytes_per_s, step.case


def test_a_results_folder_of_ones_own_follows_the_repositorys(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    assert measured_steps([first, second]) == []
    write_step(first)
    write_step(first, case="78-b16")
    write_step(second, commit="later")
    found = {step.case: step.commit for step in measured_steps([first, second])}
    assert found == {"78-b16": "0123abc", "78-b4": "later"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": None}, r"no line says # batch:"),
        ({"batch": "four"}, r"line 9: batch is 'four'; it must be a whole number"),
        ({"batch": 0}, r"line 9: batch is '0'; it must be a whole number of at least 1"),
        ({"step_seconds": ""}, r"line 7: step_seconds is ''; it must be a number"),
        ({"step_seconds": 0.01}, r"step_seconds is 0\.01, and compute alone takes 0\.05 s"),
        ({"method": "magic"}, r"line 2: method is 'magic'; known are plain"),
        ({"started": "yesterday"}, r"line 4: started is 'yesterday'; it must begin with a date"),
        ({"commit": ""}, r"line 5: commit is ''; it must not be empty"),
        ({"host_memory_bytes_per_s": -1}, r"line 12: host_memory_bytes_per_s is '-1'"),
        ({"colour": "red"}, r"line 13: '# colour: red' is unknown or twice there"),
    ],
)
def test_a_head_that_cannot_be_right_is_named(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=r"made-up/lanes/78-b4-stronghold\.csv.*" + words):
        read_lanes(write_step(tmp_path, **changes))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("compute,F,1,0,0,F1.0,0.0", r"7 fields, and the header has 9"),
        ("gpu,F,1,0,0,F1.0,0.0,0.02,0", r"lane is 'gpu'; lanes are compute, visit"),
        ("compute,F,1,0,0,G,0.0,0.02,0", r"name is 'G'; 'G' is no action name"),
        ("compute,B,1,0,0,F1.0,0.0,0.02,0", r"kind is 'B', and the name is 'F1\.0'"),
        ("compute,F,2,0,0,F1.0,0.0,0.02,0", r"unit is '2', and the name is 'F1\.0'"),
        ("compute,F,1,,0,F1.0,0.0,0.02,0", r"microbatch is '', and the name is 'F1\.0'"),
        ("compute,F,1,0,0,F1.0,0.0,soon,0", r"end_s is 'soon'; it must be a number"),
        ("compute,F,1,0,0,F1.0,0.0,nan,0", r"end_s is 'nan'; it must be a number"),
        ("compute,F,1,0,0,F1.0,0.0,-0.02,0", r"end_s is '-0\.02', before start_s '0\.0'"),
        ("compute,F,1,0,0,F1.0,0.0,0.0,7", r"host_bytes is '7', moved in no time"),
        ("compute,F,1,0,0,F1.0,0.0,0.02,-7", r"host_bytes is '-7'; it must be a whole number"),
    ],
)
def test_a_row_that_cannot_be_right_is_named(tmp_path: Path, row: str, words: str) -> None:
    text = step_text().replace(COMPUTE, row)
    assert text != step_text()
    with pytest.raises(ValueError, match=r"78-b4-stronghold\.csv, line 14: .*" + words):
        read_lanes(write_step(tmp_path, text))


def test_a_step_begins_with_its_computing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"start_s of the first compute action is 0\.03"):
        read_lanes(write_step(tmp_path, rows=STEP[1:]))
    with pytest.raises(ValueError, match="lane is never 'compute'"):
        read_lanes(write_step(tmp_path, rows=STEP[2:]))
    with pytest.raises(ValueError, match="the columns must be lane,kind,unit"):
        read_lanes(write_step(tmp_path, step_text().replace("lane,kind", "kind,lane")))
    with pytest.raises(ValueError, match="the columns must be"):
        read_lanes(write_step(tmp_path, step_text().partition("lane,")[0]))
