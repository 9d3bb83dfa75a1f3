"""Measured steps that are committed: read into events, and refused where they cannot be right."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.unit.figures.lanes import STEP, write_step
from workbench.published.lanes import STEPS, measured_steps, of_lane


def test_a_step_is_read_as_it_was_written(tmp_path: Path) -> None:
    (step,) = STEPS.read(write_step(tmp_path, clip=""))
    assert (step.device, step.case, step.label) == ("made-up", "78-b4", "STRONGHOLD")
    assert (step.layers, step.batch, step.clip, step.device_cap_gib) == (78, 4, None, 32.0)
    assert (step.date, step.step_seconds) == (date(2026, 11, 21), 0.1)
    read = [(e.lane, e.name, e.start_s, e.end_s, e.nbytes) for e in step.events]
    assert read == list(STEP)
    assert [event.name for event in of_lane(step, "compute")] == ["F1.0", "B1.0"]
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
        ({"step_seconds": None}, r"step\.seconds is None; it must be a number"),
        ({"step_seconds": 0.01}, r"seconds is 0\.01, and compute alone takes 0\.05 s"),
        ({"step_seconds": -1}, r"step_seconds is -1\.0; it must be a number above 0"),
        ({"method": "magic"}, r"method is 'magic'; known are plain"),
        ({"commit": ""}, r"commit is ''; it must not be empty"),
        ({"host_memory_bytes_per_s": -1}, r"host_memory_bytes_per_s is -1"),
        ({"rows": STEP[1:]}, r"start_s of the first compute action is 0\.03"),
        ({"rows": STEP[2:]}, "lane is never 'compute'"),
    ],
)
def test_a_step_that_cannot_be_right_is_named(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=r"^made-up/lanes/78-b4-stronghold\.jsonl.*" + words):
        STEPS.read(write_step(tmp_path, **changes))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (("compute", "F1.0", 0.0, 0.02), r"events\[0\] is .*; it must be a list of 5 values"),
        (("gpu", "F1.0", 0.0, 0.02, 0), r"lane of F1\.0 is 'gpu'; lanes are compute, visit"),
        (("compute", "G", 0.0, 0.02, 0), r"'G' is no action name"),
        (("compute", "F1.0", 0.0, "soon", 0), r"events\[0\]\[3\] is 'soon'; it must be a number"),
        (("compute", "F1.0", 0.0, -0.02, 0), r"F1\.0 ends at -0\.02, before it starts at 0\.0"),
        (("compute", "F1.0", 0.0, 0.0, 7), r"bytes of F1\.0 are 7, moved in 0\.0 s"),
        (("compute", "F1.0", 0.0, 0.02, -7), r"bytes of F1\.0 are -7"),
        (("compute", "F1.0", 0.0, 0.02, 0.5), r"events\[0\]\[4\] is 0\.5; it must be a whole"),
    ],
)
def test_an_action_that_cannot_be_right_is_named(tmp_path: Path, row: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=r"78-b4-stronghold\.jsonl, line 1: .*" + words):
        STEPS.read(write_step(tmp_path, (row, *STEP[1:])))
