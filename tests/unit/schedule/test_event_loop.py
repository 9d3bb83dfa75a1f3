"""The compiled loop says what the one in Python says, to the last bit."""

import random
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.schedule.made_up import LANES, Table, random_costs, random_schedule
from tests.unit.schedule.mutate import swap
from tests.unit.schedule.window import window_schedule
from workbench.schedule import event_loop
from workbench.schedule.event_loop import MOST_LANES, Slowdowns, compiled, in_python, times
from workbench.schedule.graph import unroll

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")),
    reason="this machine has no C++ compiler",
)


def both(schedule, costs, steps):
    graph = unroll(schedule, steps)
    alone = [costs.seconds(action) for action in schedule.actions]
    slowdowns = Slowdowns(graph, costs)
    return compiled(graph, alone, slowdowns), in_python(graph, alone, slowdowns)


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.integers(1, 4))
def test_they_are_equal_whatever_waits_for_what(rng, num_actions, steps):
    stages = rng.choice((LANES, (*LANES, "compute.2", "compute.3")))
    schedule = random_schedule(rng, num_actions, num_ranks=rng.randint(1, 3), lanes=stages)
    costs = random_costs(rng, schedule)
    costs.slowdowns = {(lane, other): 1 + rng.random() for lane in LANES for other in LANES}
    quick, plain = both(schedule, costs, steps)
    assert quick == plain


def test_they_are_equal_for_a_window_of_many_layers():
    rng = random.Random(7)
    schedule = window_schedule(30, 4, 3, workers=2, norm=True, stash=True, disk=True)
    costs = Table(
        {action.name: rng.random() for action in schedule.actions},
        {(lane, other): 1 + rng.random() for lane in LANES for other in LANES},
    )
    quick, plain = both(schedule, costs, 5)
    assert quick == plain
    assert quick[2] == 5 * len(schedule.actions)


def test_what_waits_for_itself_does_not_end():
    schedule = swap(window_schedule(3, 2, 1), "F1.0", "F2.0")
    quick, plain = both(schedule, Table(), 2)
    assert quick == plain
    assert quick[2] < 2 * len(schedule.actions)


def test_a_cost_model_that_fails_is_heard():
    class Broken(Table):
        def slowdown(self, lane, busy):
            raise LookupError("no such lane")

    graph = unroll(window_schedule(3, 2, 1), 2)
    with pytest.raises(LookupError, match="no such lane"):
        times(graph, [1.0] * len(graph.schedule.actions), Broken())


def test_without_a_compiler_and_with_very_many_lanes_it_goes_on_in_python(monkeypatch):
    graph = unroll(window_schedule(3, 2, 1), 2)
    alone = [1.0] * len(graph.schedule.actions)
    expected = times(graph, alone, Table())
    many = Slowdowns(graph, Table())
    many.lanes_of[0] = [*range(MOST_LANES + 1)]
    assert compiled(graph, alone, many) is None
    monkeypatch.setattr(event_loop, "_loop", lambda: None)
    assert times(graph, alone, Table()) == expected
