"""The simulator: times that follow from the definition, contention, memory, determinism, cost."""

import random
import sys
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.schedule.made_up import Table, longest_path, random_costs, random_schedule
from tests.unit.schedule.mutate import swap
from tests.unit.schedule.window import window_schedule
from workbench.schedule.action import Action, Kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import DEVICE, Buffer, Schedule
from workbench.schedule.simulate import memory_timeline, simulate
from workbench.schedule.validate import validate


def chain(*actions):
    """(unit, lane, after) of each REDUCE, as a schedule."""
    return Schedule(
        name="chain",
        num_units=len(actions),
        num_microbatches=1,
        actions=tuple(
            Action(kind=Kind.REDUCE, unit=unit, lane=lane, after=after)
            for unit, lane, after in actions
        ),
    )


def times(simulation):
    return {(e.name, e.step): (e.start_s, e.end_s) for e in simulation.events}


def check_physics(schedule, simulation):
    """No lane does two things at once, everything waits for what it needs, and time adds up."""
    lanes = defaultdict(list)
    when = times(simulation)
    for event in simulation.events:
        assert event.end_s >= event.start_s >= 0
        lanes[event.rank, event.lane].append(event)
        for text in schedule.by_name[event.name].after:
            name, _, back = text.partition("@")
            step = event.step + int(back or 0)
            if step >= 0:
                assert when[name, step][1] <= event.start_s
    for events in lanes.values():  # in the order of the lane, as listed
        for event, following in zip(events, events[1:], strict=False):
            assert event.end_s <= following.start_s
        busy = sum(event.end_s - event.start_s for event in events)
        assert busy <= simulation.makespan_s * (1 + 1e-12)


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 10), st.integers(1, 4))
def test_start_is_the_latest_end_it_waits_for(rng, num_actions, steps):
    schedule = random_schedule(rng, num_actions, num_buffers=2, num_ranks=2)
    costs = random_costs(rng, schedule)
    simulation = simulate(schedule, costs, steps=steps)
    expected = longest_path(schedule, costs, steps)
    found = {
        (event.step, k % num_actions): (event.start_s, event.end_s)
        for k, event in enumerate(simulation.events)
    }
    assert found == expected  # to the last bit
    check_physics(schedule, simulation)


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 10))
def test_contention_keeps_the_order_and_never_helps(rng, num_actions):
    schedule = random_schedule(rng, num_actions, num_ranks=2)
    costs = random_costs(rng, schedule)
    costs.slowdowns = {
        (lane, other): 1 + rng.random()
        for lane in ("compute", "h2d", "d2h", "host")
        for other in ("compute", "h2d", "d2h", "host")
    }
    simulation = simulate(schedule, costs, steps=3)
    check_physics(schedule, simulation)
    for event in simulation.events:
        alone = costs.seconds(schedule.by_name[event.name])
        rounding = 1e-12 * simulation.makespan_s
        assert event.end_s - event.start_s >= alone - rounding


def test_a_neighbour_slows_an_action_down_only_while_it_runs():
    # Compute needs 3 s alone; the copy runs beside it for its first 1 s, at half speed: 0.5 s of
    # compute is done by then, the other 2.5 s follow undisturbed.
    schedule = chain((0, "compute", ()), (1, "h2d", ()))
    costs = Table({"REDUCE0": 3.0, "REDUCE1": 1.0}, {("compute", "h2d"): 2.0})
    assert times(simulate(schedule, costs, steps=1)) == {
        ("REDUCE0", 0): (0.0, 3.5),
        ("REDUCE1", 0): (0.0, 1.0),
    }


def test_two_neighbours_of_one_kind_count_twice_and_other_ranks_do_not():
    schedule = chain((0, "compute", ()), (1, "host", ()), (2, "host.1", ()))
    costs = Table({"REDUCE0": 1.0, "REDUCE1": 9.0, "REDUCE2": 9.0}, {("compute", "host"): 2.0})
    assert times(simulate(schedule, costs, steps=1))["REDUCE0", 0] == (0.0, 4.0)
    elsewhere = Schedule(
        name="ranks",
        num_units=2,
        num_microbatches=1,
        num_ranks=2,
        actions=(
            Action(kind=Kind.REDUCE, unit=0, lane="compute"),
            Action(kind=Kind.REDUCE, unit=1, lane="host", rank=1),
        ),
    )
    assert times(simulate(elsewhere, costs, steps=1))["REDUCE0", 0] == (0.0, 1.0)


def test_the_steady_step_is_what_the_slowest_lane_needs():
    # The host needs 2 s of every step and compute 1 s: from the second step on, 2 s a step.
    schedule = chain((0, "compute", ("REDUCE1@-1",)), (1, "host", ("REDUCE0@-1",)))
    simulation = simulate(schedule, Table({"REDUCE0": 1.0, "REDUCE1": 2.0}), steps=6)
    assert simulation.step_ends_s == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    assert simulation.step_seconds == 2.0
    assert simulation.busy_seconds("compute") == 1.0
    assert simulation.busy_seconds("host") == 2.0
    assert simulate(schedule, Table(), steps=1).step_seconds == 1.0


def test_events_say_what_the_actions_say():
    schedule = window_schedule(3, 2, 2)
    simulation = simulate(schedule, Table(), steps=2)
    assert len(simulation.events) == 2 * len(schedule.actions)
    for k, event in enumerate(simulation.events):
        action = schedule.actions[k % len(schedule.actions)]
        assert event.step == k // len(schedule.actions)
        assert (event.name, event.kind, event.unit, event.microbatch) == (
            action.name,
            action.kind.value,
            action.unit,
            action.microbatch,
        )
        assert (event.rank, event.lane, event.nbytes) == (0, action.lane, action.nbytes)


def test_equal_inputs_give_equal_bits():
    rng = random.Random(3)
    schedule = window_schedule(8, 3, 2, workers=2, norm=True, stash=True, disk=True)
    costs = random_costs(rng, schedule)
    costs.slowdowns = {("compute", "host"): 1.3, ("h2d", "d2h"): 1.1, ("host", "compute"): 1.7}
    first, second = (simulate(schedule, costs, steps=5) for _ in range(2))
    assert first == second
    assert [e.end_s.hex() for e in first.events] == [e.end_s.hex() for e in second.events]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_duration_is_a_duration(seconds):
    with pytest.raises(ValueError, match=r"REDUCE1 costs .* s; a duration is finite and not neg"):
        simulate(chain((0, "host", ()), (1, "host", ())), Table({"REDUCE1": seconds}))


@pytest.mark.parametrize("factor", [0.5, 0.0, float("nan"), float("inf")])
def test_a_slowdown_slows_down(factor):
    costs = Table(slowdowns={("host", "compute"): factor})
    with pytest.raises(ValueError, match="lane host beside compute slows down by .* at least 1"):
        simulate(chain((0, "host", ()), (1, "compute", ())), costs)


def test_a_deadlock_is_named():
    with pytest.raises(ScheduleError, match="B1.0 waits for R1.0, R1.0 queues behind B1.0"):
        simulate(swap(window_schedule(), "R1.0", "B1.0"), Table())


def test_there_is_at_least_one_step():
    with pytest.raises(ValueError, match="at least 1 step, got 0"):
        simulate(window_schedule(), Table(), steps=0)


def test_an_empty_schedule_takes_no_time():
    empty = Schedule(name="empty", num_units=1, num_microbatches=1, actions=())
    simulation = simulate(empty, Table())
    assert (simulation.events, simulation.makespan_s, simulation.step_seconds) == ([], 0.0, 0.0)


# -- memory over time ------------------------------------------------------------------------------


def test_memory_follows_takes_and_frees():
    schedule = Schedule(
        name="memory",
        num_units=3,
        num_microbatches=1,
        actions=(
            Action(kind=Kind.REDUCE, unit=0, lane="h2d", takes=("a",)),
            Action(kind=Kind.REDUCE, unit=1, lane="compute", after=("REDUCE0",), takes=("b", "s")),
            Action(
                kind=Kind.REDUCE, unit=2, lane="compute", takes=("c",), frees=("a", "b", "c", "s")
            ),
        ),
        buffers={
            "p": Buffer(tier=DEVICE, nbytes=1000, permanent=True),
            "s": Buffer(tier=DEVICE, nbytes=100, slot="x"),
            "a": Buffer(tier=DEVICE, nbytes=1),
            "b": Buffer(tier=DEVICE, nbytes=2),
            "c": Buffer(tier=DEVICE, nbytes=4),
        },
    )
    simulation = simulate(schedule, Table(), steps=1)
    line = [(0.0, 1101), (1.0, 1103), (2.0, 1107), (3.0, 1100)]
    assert memory_timeline(schedule, simulation.events, DEVICE) == line
    assert simulation.peak_bytes == {0: {"device": 1107, "host": 0, "disk": 0}}
    # Measured events come in order of time, and their order must not matter.
    assert memory_timeline(schedule, simulation.events[::-1], DEVICE) == line


def test_memory_freed_at_an_instant_is_there_for_what_starts_then():
    schedule = Schedule(
        name="handover",
        num_units=2,
        num_microbatches=1,
        actions=(
            Action(kind=Kind.REDUCE, unit=0, lane="host", takes=("a",), frees=("a",)),
            Action(kind=Kind.REDUCE, unit=1, lane="host", takes=("b",), frees=("b",)),
        ),
        buffers={name: Buffer(tier=DEVICE, nbytes=8) for name in "ab"},
    )
    assert simulate(schedule, Table(), steps=2).peak_bytes[0][DEVICE] == 8


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_memory_never_falls_below_what_is_always_there(rng):
    schedule = random_schedule(rng, 8, num_buffers=8)
    events = simulate(schedule, random_costs(rng, schedule), steps=3).events
    line = memory_timeline(schedule, events, DEVICE)
    instants = [at for at, _ in line]
    assert instants == sorted(set(instants))
    assert min(nbytes for _, nbytes in line) >= 0
    assert line[-1][1] == 0


# -- cost ------------------------------------------------------------------------------------------


def count_calls(work):
    """Function calls, built-in ones included, during some work: cost without a clock."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("grow", ["steps", "units"])
def test_cost_is_linear_in_actions(grow):
    costs = Table(slowdowns={("compute", "host"): 1.2, ("host", "compute"): 1.1})
    per_action = []
    for factor in (1, 2, 4, 8):
        units, steps = (25, 4 * factor) if grow == "steps" else (25 * factor, 4)
        schedule = window_schedule(units, 4, workers=2, norm=True)
        calls = count_calls(lambda s=schedule, n=steps: simulate(s, costs, steps=n))
        per_action.append(calls / (len(schedule.actions) * steps))
    assert max(per_action) < 60
    assert max(per_action[1:]) <= 1.05 * per_action[0]


def test_a_hundred_layers_on_all_lanes(answered):
    schedule = window_schedule(100, 4, 2, workers=2, norm=True, stash=True, disk=True)
    costs = Table(slowdowns={("compute", "host"): 1.2, ("host", "compute"): 1.1})
    with answered("schedule: 100 layers on all lanes proved, ten steps simulated", 2, "process"):
        validate(schedule)
        assert simulate(schedule, costs, steps=10).step_seconds > 0
