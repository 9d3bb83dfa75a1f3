"""Units that visit devices, and inputs that wait on the host, under every order."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.unit.harmony.made_up import Layers, Seconds
from workbench.core.division import packs_of
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.orders import ORDERS, lists
from workbench.methods.pipeline.places import Places
from workbench.methods.pipeline.program import Program
from workbench.schedule import Kind, simulate, validate
from workbench.schedule.action import MEETING
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import Schedule

RANKS, MICROS = 3, 6
VISITED = [name for name, order in ORDERS.items() if not order.recomputes]
"""Orders whose lists leave open what becomes of activations."""
LAYERS = Layers([700, *[300] * 6, 900], tied={7: 0})


TWICE = Layers([700, *[300] * 6, 900], tied={4: 0, 7: 0})
"""The first unit's weights are used on both other ranks."""


def schedule_of(
    order: str, activations: str, own: int | None, layers=LAYERS, replicas: int = 1
) -> Schedule:
    """Units of 2 or 3 stages a rank and 6 micro-batches; `own` of a rank's units have a place of
    their own, and where it is None all stay on the device with their states."""
    chunks = 2 if ORDERS[order].chunked else 1
    stages = packs_of([1, 1, 2, 2, 1, 1] if chunks > 1 else [3, 2, 3])
    units = [[u for stage in stages[rank::RANKS] for u in stage] for rank in range(RANKS)]
    places = [] if own is None else [Places(units=each, own=own) for each in units]
    line = Pipeline(
        method=order, passes=lists(order, RANKS, MICROS, chunks), stages=stages, micro_size=1,
        activations=activations, places=places, replicas=replicas,
    )  # fmt: skip
    return Program(line, layers).schedule()


@pytest.mark.parametrize(
    ("order", "activations", "own"),
    [*product(VISITED, ("keep", "recompute", "stash"), (None, 0, 1))],
)
def test_every_order_is_training(order, activations, own):
    """The validator proves it; none of the bounds on memory is passed."""
    schedule = schedule_of(order, activations, own)
    proved, seen = validate(schedule), simulate(schedule, Seconds(), steps=2)
    for rank, peaks in seen.peak_bytes.items():
        assert all(peaks[tier] <= proved.peak_bytes[rank][tier] for tier in peaks)
    kinds = {action.kind for action in schedule.actions}
    assert (Kind.LOAD in kinds) == (own is not None)
    assert (Kind.STASH in kinds) == (Kind.FETCH in kinds) == (activations == "stash")


@pytest.mark.parametrize("order", [name for name in VISITED if not ORDERS[name].chunked])
def test_weights_are_lent_to_two_ranks(order):
    """Each borrower sends its gradients to the owner and gets the new weights."""
    schedule = schedule_of(order, "keep", None, TWICE)
    validate(schedule)
    lent = [a for a in schedule.actions if a.kind in MEETING and a.microbatch is None]
    assert {a.rank for a in lent if a.kind is Kind.RECV} == {1, 2}
    for kind in (Kind.SEND, Kind.RECV, Kind.SEND_GRAD, Kind.RECV_GRAD):
        assert sorted(a.turn for a in lent if a.kind is kind) == [0, 1]
    (owned,) = [a for a in schedule.actions if (a.kind, a.unit) == (Kind.UPDATE, 0)]
    last = [a for a in lent if a.kind is Kind.RECV_GRAD]
    assert {a.rank for a in last} == {owned.rank} == {0}


@pytest.mark.parametrize("order", VISITED)
def test_a_place_more_moves_less(order):
    moved = [schedule_of(order, "keep", own).moved_bytes()["load"] for own in range(4)]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] == sum(map(LAYERS.visit_bytes, range(8)))


def test_replicas_have_a_part_each_of_a_stash():
    """They write there at once, so that one that all share is refused."""
    one, two = (schedule_of("1f1b", "stash", None, replicas=each) for each in (1, 2))
    validate(two)
    label = "1:hxs3"
    (stash, *_) = (action for action in two.actions if label in action.uses)
    assert two.buffers[label].nbytes == 2 * one.buffers[label].nbytes
    shared = replace(two, buffers=two.buffers | {label: one.buffers[label]})
    with pytest.raises(ScheduleError, match=f"{stash.name} writes to '{label}', which 2 replicas"):
        validate(shared)
