"""The validator can fail wherever it matters: no dependency that means something can be forgotten.

One dependency is taken out at a time. Either the rest implies it, by lane order and transitivity,
or the validator refuses the schedule.
"""

import pytest

from tests.unit.schedule.mutate import forget
from tests.unit.schedule.window import window_schedule
from workbench.schedule.action import parse_name
from workbench.schedule.graph import ScheduleError, unroll
from workbench.schedule.order import Order
from workbench.schedule.validate import validate


def implied(schedule, name, dependency):
    """Whether the schedule orders the two anyway, in the step it is about."""
    names = [a.name for a in schedule.actions]
    n = len(names)
    first = names.index(dependency.partition("@")[0]) + (1 + parse_name(dependency).step) * n
    return Order(unroll(schedule, 3)).before(first, names.index(name) + n)


def redundant(schedule):
    """The (action, dependency) pairs the rest implies; forgetting any other must be refused."""
    found = set()
    for action in schedule.actions:
        for dependency in action.after:
            broken = forget(schedule, action.name, dependency)
            if implied(broken, action.name, dependency):
                validate(broken)
                found.add((action.name, dependency))
            else:
                with pytest.raises(ScheduleError):
                    validate(broken)
    return found


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("stash", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("n", "window", "micro", "workers"),
    [(2, 1, 1, 1), (2, 2, 2, 1), (3, 1, 2, 2), (4, 2, 1, 2), (4, 3, 1, 1)],
)
def test_no_dependency_can_be_forgotten(n, window, micro, workers, norm, stash, disk):
    schedule = window_schedule(n, window, micro, workers=workers, norm=norm, stash=stash, disk=disk)
    assert len(redundant(schedule)) < sum(len(action.after) for action in schedule.actions)


def test_moments_come_after_their_weights_and_before_the_next_gradients():
    schedule = window_schedule(4, 2, workers=2, norm=True, later=True)
    assert not {(f"G{i}", f"M{i}@-1") for i in range(4)} & redundant(schedule)


def test_the_redundant_ones_are_known():
    """Data dependencies that lane order implies are still written down: they say why."""
    lane_order = {(f"F{i}.0", f"F{i - 1}.0") for i in (1, 2, 3)}
    lane_order |= {(f"B{i}.0", f"B{i + 1}.0") for i in (0, 1, 2)}
    lane_order |= {(f"B{i}.0", f"R{i}.0") for i in range(4)}
    lane_order |= {("N0", f"G{i}") for i in (1, 2, 3)}  # G0 leaves last
    lane_order |= {("U1", "N0"), ("U0", "N0")}  # behind U3 and U2 on their workers
    lane_order |= {("U3", "N0")}  # the norm is computed by the same worker
    still_there = {
        ("R3.0", "L3"),
        ("R2.0", "L2"),
    }  # the window's units stay from forward to backward
    through_others = {
        ("L2", "U2@-1"),  # its slot is free after F0, which waited for U0, updated after U2
        ("L3", "U3@-1"),
        *((f"U{i}", f"G{i}") for i in range(4)),  # the norm waited for all gradients
        *(
            (f"READ{i}", f"SPILL{i}@-1") for i in range(4)
        ),  # the ring waited for the last ones, SPILL1 and SPILL0
    }
    schedule = window_schedule(4, 2, workers=2, norm=True, disk=True)
    assert redundant(schedule) == lane_order | still_there | through_others
