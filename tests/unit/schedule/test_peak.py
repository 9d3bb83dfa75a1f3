"""The memory bound: equal to trying everything, above every simulation, and reached by some."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.schedule.made_up import heaviest_moment, random_costs, random_schedule
from tests.unit.schedule.window import window_schedule
from workbench.schedule.action import Action, Kind
from workbench.schedule.graph import unroll
from workbench.schedule.order import Order
from workbench.schedule.peak import worst_case
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, Buffer, Schedule
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate


def bound(schedule, tier=DEVICE):
    graph = unroll(schedule, 3)
    return worst_case(graph, Order(graph), tier)


def lags(graph, order):
    """Whether some buffer may still be occupied when the step after the next takes one."""
    n = len(graph.schedule.actions)
    frees = [i for i, action in enumerate(graph.schedule.actions) if action.frees]
    takes = [i for i, action in enumerate(graph.schedule.actions) if action.takes]
    return not all(order.before(i, 2 * n + j) for i in frees for j in takes)


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_it_is_the_heaviest_of_all_moments(rng, num_actions):
    schedule = random_schedule(rng, num_actions)
    graph = unroll(schedule, 3)
    order = Order(graph)
    peak = worst_case(graph, order, DEVICE)
    exact = heaviest_moment(graph, order, DEVICE, steps=2)
    assert exact == peak.nbytes or (exact < peak.nbytes and lags(graph, order))
    assert peak.nbytes <= sum(buffer.nbytes for buffer in schedule.buffers.values())
    assert sum(schedule.buffers[name].nbytes for name in peak.held) == peak.nbytes


def test_it_equals_a_maximum_flow():
    """The same on larger schedules, by a general algorithm on the whole network."""
    networkx = pytest.importorskip("networkx", reason="comes with torch")
    compared = 0
    for seed in range(300):
        schedule = random_schedule(random.Random(seed), num_actions=12, num_buffers=16)
        graph = unroll(schedule, 3)
        order = Order(graph)
        if lags(graph, order):
            continue
        network = networkx.DiGraph()
        network.add_nodes_from(("source", "sink"))
        nodes = range(2 * len(schedule.actions))
        taken = {v: sum(schedule.buffers[b].nbytes for b in graph.action(v).takes) for v in nodes}
        freed = {v: sum(schedule.buffers[b].nbytes for b in graph.action(v).frees) for v in nodes}
        for v in nodes:
            network.add_edge("source", ("take", v), capacity=taken[v])
            network.add_edge(("free", v), "sink", capacity=freed[v])
            network.add_edges_from((("take", v), ("free", u)) for u in nodes if order.before(u, v))
        reused = networkx.maximum_flow_value(network, "source", "sink")
        assert worst_case(graph, order, DEVICE).nbytes == sum(taken.values()) - reused
        compared += 1
    assert compared > 100


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 10))
def test_no_timing_exceeds_it(rng, num_actions):
    schedule = random_schedule(rng, num_actions, num_buffers=8)
    limit = bound(schedule).nbytes
    for _ in range(15):
        simulation = simulate(schedule, random_costs(rng, schedule), steps=5)
        assert simulation.peak_bytes[0][DEVICE] <= limit


@pytest.mark.parametrize("options", [{}, {"norm": True}, {"stash": True}, {"disk": True}])
@pytest.mark.parametrize(("n", "window", "micro"), [(3, 1, 1), (4, 2, 2), (6, 3, 1)])
def test_no_timing_of_a_window_exceeds_it_and_some_reach_it(n, window, micro, options):
    schedule = window_schedule(n, window, micro, workers=2, **options)
    limit = validate(schedule).peak_bytes[0]
    rng = random.Random(5)
    largest = dict.fromkeys(limit, 0)
    for _ in range(150):
        found = simulate(schedule, random_costs(rng, schedule), steps=4).peak_bytes[0]
        largest = {tier: max(largest[tier], found[tier]) for tier in limit}
        assert all(found[tier] <= limit[tier] for tier in limit)
    assert largest == limit


def ring(distance):
    """READ i may run `distance` units ahead of its SPILL; gradients pile up beside it."""
    n = 6
    actions, buffers = [], {}
    for i in range(n):
        buffers[f"s{i}"] = Buffer(tier=HOST_TIER, nbytes=100)
        buffers[f"h{i}"] = Buffer(tier=HOST_TIER, nbytes=1)
        credit = f"SPILL{i - distance}" if i >= distance else f"SPILL{n + i - distance}@-1"
        actions += [
            Action(
                kind=Kind.READ, unit=i, lane="disk-in", takes=(f"s{i}",),
                after=(credit, f"SPILL{i}@-1"),
            ),
            Action(
                kind=Kind.GRAD_OUT, unit=i, lane="d2h", takes=(f"h{i}",), after=(f"U{n - 1}@-1",)
            ),
            Action(
                kind=Kind.UPDATE, unit=i, lane="host", after=(f"READ{i}", f"G{i}"),
                frees=(f"h{i}",),
            ),
            Action(
                kind=Kind.SPILL, unit=i, lane="disk-out", after=(f"U{i}",), frees=(f"s{i}",)
            ),
        ]  # fmt: skip
    return Schedule(
        name="ring", num_units=n, num_microbatches=1, actions=tuple(actions), buffers=buffers
    )


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_buffers_that_follow_one_another_are_not_added_up(distance):
    # When G5 takes its buffer, any READ may be over or yet to come; still the ring holds.
    assert bound(ring(distance), HOST_TIER).nbytes == 100 * distance + 6


def test_the_worst_moment_is_named():
    schedule = window_schedule(4, 2)
    assert bound(schedule).held == ("k3.0", "d2.0", "x0.0", "x1.0", "x2.0", "x3.0")
    assert bound(schedule, HOST_TIER).held == ("hg0", "hg1", "hg2", "hg3")
    assert bound(schedule, DISK).held == ()


def test_a_buffer_that_may_lag_by_steps_counts_as_permanent():
    """Nobody waits for the host lane, so any step's `slow` may meet any other step's `fast`."""
    schedule = Schedule(
        name="lag",
        num_units=1,
        num_microbatches=1,
        actions=(
            Action(kind=Kind.REDUCE, unit=0, lane="host", takes=("slow",), frees=("slow",)),
            Action(kind=Kind.NORM, unit=0, lane="compute", takes=("fast",), frees=("fast",)),
        ),
        buffers={
            "slow": Buffer(tier=DEVICE, nbytes=3),
            "fast": Buffer(tier=DEVICE, nbytes=4),
        },
    )
    assert bound(schedule).nbytes == 7
