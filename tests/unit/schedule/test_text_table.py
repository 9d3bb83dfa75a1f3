"""Schedules as text, also those that deadlock."""

import pytest

from tests.unit.schedule.mutate import swap
from tests.unit.schedule.window import pipeline, window_schedule
from workbench.schedule.text_table import text_table


def test_each_action_stands_once_in_the_column_of_its_lane():
    schedule = window_schedule(4, 2, 2, workers=2, norm=True, stash=True, disk=True)
    head, *lines = [line.split("|") for line in text_table(schedule).splitlines()]
    lanes = [cell.strip() for cell in head[1:]]
    assert lanes == ["compute", "h2d", "d2h", "host", "host.1", "disk-in", "disk-out"]
    found = {}
    for number, line in enumerate(lines):
        for lane, cell in zip(lanes, line[1:], strict=False):
            if cell.strip():
                assert cell.strip() not in found
                found[cell.strip()] = (number, lane)
    assert {name: lane for name, (_, lane) in found.items()} == {
        action.name: action.lane for action in schedule.actions
    }
    for action in schedule.actions:
        for dependency in action.after:
            if "@" not in dependency:
                assert found[dependency][0] < found[action.name][0]


def test_ranks_have_columns_of_their_own():
    assert text_table(pipeline()).splitlines()[0].split("|")[1].strip() == "0:compute"


def test_an_action_is_marked_and_its_surroundings_shown():
    schedule = window_schedule(4, 2)
    assert text_table(schedule).replace(" F2.0", ">F2.0<", 1).count("F2.0") == 1
    assert text_table(schedule, mark="F2.0").count(">F2.0<") == 1
    part = text_table(schedule, mark="F2.0", around=1).splitlines()
    assert len(part) == 4
    assert ">F2.0<" in part[2]
    with pytest.raises(ValueError, match="F9.0 is no action of the schedule 'window 2 of 4'"):
        text_table(schedule, mark="F9.0")


def test_what_deadlocks_stands_below_a_line():
    lines = text_table(swap(window_schedule(2, 2), "R1.0", "B1.0"), mark="B1.0").splitlines()
    at = lines.index("--- what follows never starts")
    assert "F1.0" in lines[at - 1]
    assert lines[at + 1].split("|")[1].strip() == ">B1.0<"
    assert sum("R1.0" in line for line in lines[at:]) == 1
