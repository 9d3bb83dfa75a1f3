"""Schedules with swapping, proved right for many divisions, and their bytes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from baselines.swapping import division
from baselines.swapping.division import divided
from tests.unit.harmony.made_up import Layers, Seconds
from workbench.core.division import packs_of
from workbench.schedule import Kind, ScheduleError, simulate, validate
from workbench.schedule.schedule import Schedule

SIZES = [700, 300, 300, 300, 300, 900]
LAYERS = Layers(SIZES)
UNITS = len(SIZES)
DP = {"mode": "dp", "minibatch": 8, "size": 1, "stages": (range(UNITS),) * 2}
PP = DP | {"mode": "pp", "stages": packs_of([3, 3])}


def build(layers: Layers, asked: dict, **changes) -> Schedule:
    return division.build(divided(**asked | changes), layers)


def drawn(rng: random.Random) -> dict:
    ranks, units = rng.randint(1, 4), rng.randint(4, 9)
    mode = rng.choice(["dp", "pp"])
    stages = (range(units),) * ranks
    if mode == "pp":
        cuts = sorted(rng.sample(range(1, units), ranks - 1))
        ends = [*cuts, units]
        stages = packs_of([b - a for a, b in zip([0, *cuts], ends, strict=True)])
    return {
        "mode": mode, "minibatch": rng.randint(ranks, 9), "size": rng.randint(1, 3),
        "stages": stages, "own": [rng.randint(0, len(stage)) for stage in stages],
        "shared": rng.randint(1, 4),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(80))
def test_every_division_is_training(seed):
    """The validator proves it: every pass once and on its input, no deadlock, no memory shared."""
    rng = random.Random(seed)
    asked = drawn(rng)
    units = asked["stages"][-1].stop
    layers = Layers(
        [rng.randint(1, 2000) for _ in range(units)],
        {units - 1: 0} if rng.random() < 0.5 else None,
    )
    schedule = build(layers, asked, clipped=rng.random() < 0.5)
    proved = validate(schedule)
    seen = simulate(schedule, Seconds(), steps=2)
    for rank, peaks in seen.peak_bytes.items():
        assert all(peaks[tier] <= proved.peak_bytes[rank][tier] for tier in peaks)


def total(schedule: Schedule, *kinds: Kind) -> int:
    return sum(action.nbytes for action in schedule.actions if action.kind in kinds)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_bytes_grow_with_the_number_of_micro_batches(size):
    """Weights come twice a micro-batch, but for those around each turn; sums go and come back."""
    layers, count, shared = Layers([500] * UNITS), 4 // size, 2
    schedule = build(layers, DP, size=size)
    weights, ranks = layers.visit_bytes(0), 2
    loads = count * (2 * UNITS - 1) - count * (shared - 1) - (count - 1) * shared
    assert total(schedule, Kind.LOAD) == ranks * loads * weights
    sums = ranks * (count - 1) * UNITS * weights
    assert total(schedule, Kind.SUM_OUT) == total(schedule, Kind.SUM_IN) == sums
    assert total(schedule, Kind.GRAD_OUT) == pytest.approx(UNITS * weights, rel=0.1)
    assert total(schedule, Kind.REDUCE) == ranks * UNITS * weights


def test_what_has_a_place_of_its_own_comes_and_goes_once():
    layers = Layers([500] * UNITS)
    schedule = build(layers, DP, own=(UNITS, UNITS))
    assert total(schedule, Kind.LOAD) == 2 * UNITS * layers.visit_bytes(0)
    assert total(schedule, Kind.SUM_OUT, Kind.SUM_IN) == 0
    half = build(layers, DP, own=(3, 3))
    assert total(schedule, Kind.LOAD) < total(half, Kind.LOAD) < total(build(layers, DP), Kind.LOAD)


def test_a_pipelines_first_ranks_run_ahead():
    first, last = divided(**PP).passes
    assert [*map(str, first)][:5] == ["f0", "f1", "b0", "f2", "b1"]
    assert [each.kind for each in last] == [Kind.FORWARD, Kind.BACKWARD] * 8


def without(schedule: Schedule, *names: str) -> Schedule:
    """The same without some actions, and without waiting for them."""
    actions = [
        replace(action, after=tuple(a for a in action.after if a.split("@")[0] not in names))
        for action in schedule.actions
        if action.name not in names
    ]
    return replace(schedule, actions=tuple(actions))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["SUM_IN1+1"], "SUM_OUT1 takes away never comes back"),
        (["SUM_OUT1"], "SUM_IN1\\+1 brings a sum that nobody took away"),
        (["S2.0"], "T2.0 fetches what nobody stashes"),
    ],
)
def test_what_lacks_is_named(names, message):
    with pytest.raises(ScheduleError, match=message):
        validate(without(build(LAYERS, DP), *names))


def test_a_sum_that_may_come_too_late_is_named():
    schedule = build(LAYERS, DP)
    actions = tuple(
        replace(action, after=tuple(a for a in action.after if a != "SUM_IN1+1"))
        for action in schedule.actions
    )
    with pytest.raises(ScheduleError, match="the sum so far may be missing"):
        validate(replace(schedule, actions=actions))


@pytest.mark.parametrize("asked", [DP, PP], ids=["dp", "pp"])
def test_transfers_name_the_host_memory_that_they_touch(asked):
    """A rank page-locks what its actions name; a copy from other memory waits for the processor."""
    schedule = build(LAYERS, asked)
    kinds = (Kind.LOAD, Kind.STASH, Kind.FETCH, Kind.GRAD_OUT, Kind.SUM_OUT, Kind.SUM_IN)
    for action in schedule.actions:
        if action.kind in kinds:
            assert "host" in [schedule.buffers[label].tier for label in action.uses], action.name
