"""Recorded passes of packs: an order of recording that is the order of running, whatever packs."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from baselines.swapping.division import build as swapping
from baselines.swapping.division import divided
from tests.unit.harmony.made_up import Layers, drawn, largest_pack, mirrored
from workbench.methods.harmony.program import build
from workbench.methods.harmony.visits import Rings
from workbench.runtime.passes.chains import recorded_passes
from workbench.runtime.passes.links import links_of
from workbench.schedule import buffers as name
from workbench.schedule import validate
from workbench.schedule.action import COMPUTE


def schedule_of(seed: int):
    rng = random.Random(seed)
    packs = drawn(rng)
    if seed % 2:
        packs = mirrored(packs, rng)
    layers = Layers([rng.randint(1, 2000) for _ in range(packs.num_units)])
    largest = largest_pack(packs, layers)
    rings = [Rings(weights=2 * largest, gradients=largest)] * packs.ranks
    return build(packs, layers, rings=rings, replay=True)


def swapping_of(seed: int):
    """Every micro-batch comes to a layer by itself, in 1F1B's order or in data parallelism's."""
    rng = random.Random(seed)
    units, ranks = rng.randint(4, 9), rng.randint(1, 3)
    pipeline = rng.random() < 0.5
    cuts = sorted(rng.sample(range(1, units), ranks - 1))
    stages = tuple(range(a, b) for a, b in pairwise([0, *cuts, units]))
    line = divided(
        "pp" if pipeline else "dp", rng.randint(ranks, 9), rng.randint(1, 3),
        stages if pipeline else (range(units),) * ranks, replay=True,
    )  # fmt: skip
    layers = Layers([rng.randint(1, 2000) for _ in range(units)])
    return swapping(line, layers)


@pytest.mark.parametrize("build", [schedule_of, swapping_of])
@pytest.mark.parametrize("seed", range(30))
def test_chains_run_as_they_are_recorded(build, seed):
    schedule = build(seed)
    head = schedule.num_units - 1
    validate(schedule)
    for rank in range(schedule.num_ranks):
        mine = [a for a in schedule.actions if a.rank == rank]
        links = {action.name: links_of(action, schedule) for action in mine}
        modules = {link.weights: link.weights for link in links.values()}  # as good as any
        found = recorded_passes(mine, links, modules, head)
        passes = [a for a in mine if a.lane == COMPUTE and 0 < a.unit < head]
        assert [action.name for action in passes] == [*filter(found.__contains__, map(named, mine))]
        reserved = name.on_rank(rank, name.REPLAYS) in schedule.buffers
        assert reserved == bool(passes)
        assert_recorded_in_order([(action, found[action.name]) for action in passes], links)


def named(action):
    return action.name


def assert_recorded_in_order(passes, links):
    """Nothing recorded comes between the passes of a chain, which run as they were recorded."""
    running, done = None, []  # the chain in work, and the indices of its blocks so far
    for action, one in passes:
        assert one.rows == action.span[1] - action.span[0]
        assert links[action.name].weights == one.modules[one.index or 0]
        if one.index is None:
            assert running is None
            continue
        running = running or one.key
        assert one.key == running
        done.append(one.index)
        length = len(one.modules)
        if len(done) == 2 * length:
            assert done == [*range(length), *reversed(range(length))]
            running, done = None, []
    assert running is None


def test_what_is_recorded_takes_nothing_of_the_pass():
    """The memory of passes is there once for all of them."""
    schedule = schedule_of(2)
    compute, ends = [a for a in schedule.actions if a.lane == COMPUTE], {0, schedule.num_units - 1}
    assert compute
    for action in compute:
        own = name.scratch(action.name) in action.takes
        assert own == (action.unit in ends), action.name
    kept = {
        name.kept(action.unit, action.microbatch): action.unit in ends
        for action in compute
        if name.keeps(action)
    }
    for label, launched in kept.items():
        sizes = {b.nbytes for other, b in schedule.buffers.items() if other.endswith(label)}
        assert all(sizes) == launched, label
