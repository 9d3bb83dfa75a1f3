"""Passes that the GPU launches by itself are planned at what they take then."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from tests.unit.harmony.made_up import Layers, drawn, mirrored
from tests.unit.harmony.test_search import LAYERS, SERVER, SETTING, known
from workbench.core.division import PP
from workbench.core.spec import RunSpec
from workbench.methods.harmony import planner
from workbench.methods.harmony.memory_estimate import MemoryEstimate
from workbench.methods.harmony.search import Found, estimated_seconds, scheduled
from workbench.methods.harmony.step_time import StepTimeEstimate
from workbench.model import ModelSpec
from workbench.profile.server import ServerCosts, records
from workbench.profile.units import UnitCost, Variant
from workbench.schedule.action import Kind
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import DEVICE
from workbench.schedule.validate import validate

PARAMETERS = [4000, *[1000] * 10, 4000]
UNITS = len(PARAMETERS)
LAUNCH_S = 4e-3
"""A launched pass of a few samples takes as long as one of four."""


class Launched(Layers):
    """Passes that are bound by their launches, with recordings that are not."""

    timed = True

    def cost(self, unit: int, samples: int) -> UnitCost:
        cost = super().cost(unit, samples)
        if unit in (0, UNITS - 1):
            return cost
        launched = replace(
            cost,
            forward_s=max(LAUNCH_S, cost.forward_s),
            recompute_s=max(LAUNCH_S, cost.recompute_s),
            backward_s=max(2 * LAUNCH_S, cost.backward_s),
        )
        if not self.timed:
            return launched
        recorded = Variant(
            name="recorded",
            seconds=(cost.forward_s, cost.recompute_s, cost.backward_s),
            nbytes=3 * (cost.kept_bytes + cost.output_bytes),
        )
        return replace(launched, variants=(recorded,))


class Untimed(Launched):
    """Costs of which recordings were not timed."""

    timed = False


TIMED, UNTIMED = Launched(PARAMETERS), Untimed(PARAMETERS)
RECORDED = replace(SETTING, recorded_below_s=1.0, device_bytes=300_000)
LAUNCHED = replace(RECORDED, recorded_below_s=0.0)


@pytest.fixture(autouse=True)
def searched_once(monkeypatch):
    monkeypatch.setattr(planner, "search", known)


def test_micro_batches_are_as_small_as_recorded_passes_allow():
    timed, untimed = (known(RECORDED, layers, UNITS, SERVER) for layers in (TIMED, UNTIMED))
    assert records(timed.schedule)
    assert timed.packs.backward_size < untimed.packs.backward_size
    assert timed.seconds < untimed.seconds


def test_launched_passes_are_planned_at_what_launches_take():
    found = known(LAUNCHED, TIMED, UNITS, SERVER)
    assert not records(found.schedule)
    costs = ServerCosts(TIMED, SERVER, shared_updates=False)
    passes = [
        a for a in found.schedule.actions if a.kind is Kind.BACKWARD and 0 < a.unit < UNITS - 1
    ]
    assert min(costs.seconds(action) for action in passes) >= 2 * LAUNCH_S


def test_gradients_are_added_up_once_a_micro_batch():
    class Adding(Layers):
        def cost(self, unit: int, samples: int) -> UnitCost:
            return replace(super().cost(unit, samples), gradient_copy_s=5e-4)

    schedule = known(SETTING, LAYERS, UNITS, SERVER).schedule
    plain, adding = (
        ServerCosts(kind(PARAMETERS), SERVER, shared_updates=False) for kind in (Layers, Adding)
    )
    for action in schedule.actions:
        more = 5e-4 if action.kind is Kind.BACKWARD else 0.0
        assert adding.seconds(action) == pytest.approx(plain.seconds(action) + more)


def spec() -> RunSpec:
    model = ModelSpec(layers=UNITS - 2, hidden=32, heads=4, seq=16, vocab=64)
    return RunSpec(method="harmony-pp", model=model, ranks=3, batch=12, device="cpu")


@pytest.mark.parametrize(("late", "recorded"), [(1.4, True), (0.1, False)])
def test_recordings_give_way_to_launched_passes_that_are_faster(monkeypatch, late, recorded):
    """Late as these may be."""
    monkeypatch.setattr(planner, "LATE", late)
    found = planner._searched(spec(), RECORDED, LAUNCHED, TIMED, SERVER)
    assert records(found.schedule) == recorded


def test_launched_passes_leave_more_of_a_small_device_unused(monkeypatch):
    """Whoever comes to launch them."""
    less = RECORDED.device_bytes * 9 // 10
    launched, asked = replace(LAUNCHED, device_bytes=less), []

    def seen(setting, *rest, **limits) -> Found:
        asked.append(setting.device_bytes)
        return known(replace(setting, recorded_below_s=0.0), *rest, **limits)

    monkeypatch.setattr(planner, "search", seen)
    found = planner._searched(spec(), RECORDED, launched, TIMED, SERVER)
    assert asked == [RECORDED.device_bytes, less]
    assert max(peaks[DEVICE] for peaks in found.proved.peak_bytes.values()) <= less
    asked.clear()
    planner._searched(spec(), LAUNCHED, launched, TIMED, SERVER)
    assert asked == [less]


def test_a_plan_of_recordings_stands_where_launched_passes_find_none(monkeypatch):
    def refusing(setting, *rest, **limits) -> Found:
        if setting.recorded_below_s <= 0:
            raise DoesNotFit("more is needed than was foreseen", tier=DEVICE)
        return known(setting, *rest, **limits)

    monkeypatch.setattr(planner, "search", refusing)
    monkeypatch.setattr(planner, "LATE", 0.1)  # launched passes seem to be worth a search
    found = planner._searched(spec(), RECORDED, LAUNCHED, TIMED, SERVER)
    assert records(found.schedule)


def test_without_room_for_recordings_passes_are_launched(monkeypatch):
    def refusing(setting, *rest, **limits) -> Found:
        if setting.recorded_below_s > 0:
            raise DoesNotFit("recordings do not", tier=DEVICE)
        return known(setting, *rest, **limits)

    monkeypatch.setattr(planner, "search", refusing)
    found = planner._searched(spec(), RECORDED, LAUNCHED, TIMED, SERVER)
    assert not records(found.schedule)


def test_the_estimate_is_near_what_is_found():
    found = known(SETTING, LAYERS, UNITS, SERVER)
    assert estimated_seconds(SETTING, LAYERS, UNITS, SERVER) == pytest.approx(
        found.seconds, rel=0.1
    )
    assert estimated_seconds(replace(SETTING, device_bytes=100), LAYERS, UNITS, SERVER) == float(
        "inf"
    )


def test_a_pace_knows_whether_passes_are_recorded():
    packs = known(RECORDED, TIMED, UNITS, SERVER).packs
    recorded, launched = (
        StepTimeEstimate(TIMED, SERVER, UNITS, lambda _, made=made: made) for made in (True, False)
    )
    assert recorded.least_seconds(packs) < launched.least_seconds(packs)
    assert recorded.step_seconds(packs) < launched.step_seconds(packs)


@pytest.mark.parametrize("recorded_below_s", [0.0, 1.0])
def test_memory_is_foreseen_as_it_is_proved(recorded_below_s):
    """Within 6 % on the mean of random packs, and hardly ever too little: a search that is told too
    little tries in vain."""
    off = []
    for seed in range(60):
        rng = random.Random(seed)
        packs = drawn(rng)
        packs = mirrored(packs, rng) if rng.random() < 0.4 else packs
        layers = Layers([rng.choice((1000, 4000)) for _ in range(packs.num_units)])
        room = MemoryEstimate(layers, packs.num_units, recorded_below_s)
        setting = replace(
            SETTING, mode=packs.mode, ranks=packs.ranks, minibatch=packs.minibatch, clipping="wait",
            device_bytes=1, recorded_below_s=recorded_below_s,
        )  # fmt: skip
        least = scheduled(packs, setting, layers, room)  # its rings are as small as can be
        proved = validate(least).peak_bytes
        lacking = room.spare(packs, 0)
        # What is foreseen of replicas is that of the first, which has most samples.
        ranks = range(packs.ranks if packs.mode == PP else 1)
        off += [-lacking[r] / proved[r][DEVICE] - 1 for r in ranks]
    assert fmean(map(abs, off)) < 0.06
    assert min(off) > -0.1
    assert max(off) < 0.25
