"""Harmony's schedules, proved right for many packs, ranks and micro-batches, and their bytes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.unit.harmony.made_up import Layers, Seconds, drawn, largest_pack, mirrored
from tests.unit.schedule.mutate import edit, forget, remove
from workbench.core.division import packs_of
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.program import build
from workbench.methods.harmony.visits import Rings
from workbench.schedule import Kind, ScheduleError, simulate, validate
from workbench.schedule.action import RECEIVES
from workbench.schedule.build.inbox import PLACES

LAYERS = Layers([700, 300, 300, 300, 300, 900])
PACKS = Packs(
    mode="pp",
    ranks=2,
    minibatch=8,
    forward_size=2,
    backward_size=2,
    forward=packs_of([2, 2]),
    backward=packs_of([2, 2, 2]),
)


def built(packs: Packs, layers: Layers = LAYERS, *, room: float = 2.0, **kw):
    largest = largest_pack(packs, layers)
    rings = Rings(weights=int(largest * room), gradients=largest)
    return build(packs, layers, **{"rings": [rings] * packs.ranks, **kw})


@pytest.mark.parametrize("seed", range(60))
def test_every_choice_is_training(seed):
    """The validator proves it: every pass once and on its input, no deadlock, no memory shared."""
    rng = random.Random(seed)
    packs = drawn(rng)
    head = packs.num_units - 1
    parameters = [rng.randint(1, 2000) for _ in range(packs.num_units)]
    layers = Layers(parameters, {head: 0} if rng.random() < 0.5 else None)
    clipped, room = rng.random() < 0.5, rng.choice([1.0, 1.3, 2.0, 3.0])
    schedule = built(packs, layers, room=room, clipped=clipped)
    proved = validate(schedule)
    seen = simulate(schedule, Seconds(), steps=2)
    for rank, peaks in seen.peak_bytes.items():
        assert all(peaks[tier] <= proved.peak_bytes[rank][tier] for tier in peaks)
    samples = 3e-3 * packs.minibatch * packs.num_units
    assert seen.step_seconds >= samples / packs.ranks, "no rank computes faster than it can"


@pytest.mark.parametrize("seed", range(40))
def test_layers_that_stay_are_training_and_cross_no_link(seed):
    rng = random.Random(1000 + seed)
    packs = drawn(rng)
    head, tied = packs.num_units - 1, rng.random() < 0.5
    layers = Layers(
        [rng.randint(1, 2000) for _ in range(packs.num_units)], {head: 0} if tied else None
    )
    packs = mirrored(packs, rng, tied={0, head} if tied else set())
    schedule = built(packs, layers, clipped=rng.random() < 0.5)
    proved = validate(schedule)
    seen = simulate(schedule, Seconds(), steps=2)
    for rank, peaks in seen.peak_bytes.items():
        assert all(peaks[tier] <= proved.peak_bytes[rank][tier] for tier in peaks)
    moving = {a.unit for a in schedule.actions if a.kind in (Kind.LOAD, Kind.GRAD_OUT)}
    assert moving == set(range(packs.num_units)) - packs.resident
    for unit in packs.resident:
        ranks = {a.rank for a in schedule.actions if a.unit == unit and a.lane == "compute"}
        (update,) = (a for a in schedule.actions if (a.kind, a.unit) == (Kind.UPDATE, unit))
        assert ranks == {update.rank}


def test_layers_stay_only_where_one_rank_runs_them():
    with pytest.raises(ValueError, match="resident ones need mirrored packs"):
        replace(PACKS, resident=frozenset({1}))
    with pytest.raises(ValueError, match="the same forward and backward"):
        replace(PACKS, forward=packs_of([1, 3]), mirrored=True)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_pipelined_weights_cross_the_link_as_often_as_packs_run(ranks):
    """In PP mode twice in and once out in all, whatever the number of ranks; once in the last
    backward pack, which makes its own forward pass, and what stays for the backward pass."""
    moved = built(replace(PACKS, ranks=ranks)).moved_bytes()
    whole = sum(map(LAYERS.weight_bytes, range(6)))
    fused = sum(LAYERS.weight_bytes(unit) for unit in PACKS.backward[-1])
    stays = {2: (2, 3), 4: (0, 1)}.get(ranks, ())  # run last forward, first backward on one rank
    pinned = sum(LAYERS.weight_bytes(unit) for unit in stays)
    stash = LAYERS.cost(2, 8).input_bytes
    assert moved["load"] == 2 * whole - fused - pinned + stash
    assert moved["store"] == whole + stash


@pytest.mark.parametrize("ranks", [2, 4])
def test_replicated_weights_cross_the_link_once_a_rank_more(ranks):
    one = built(replace(PACKS, mode="dp", ranks=1)).moved_bytes()
    moved = built(replace(PACKS, mode="dp", ranks=ranks)).moved_bytes()
    stash = LAYERS.cost(2, 8).input_bytes
    assert moved["load"] - stash == ranks * (one["load"] - stash)
    padding = moved["store"] - one["store"]
    assert 0 <= padding < 6 * ranks * 64, "each rank brings its share of the gradients"


def test_micro_batches_of_a_pack_share_one_load():
    schedule = built(replace(PACKS, forward_size=1, backward_size=1))
    loads = [action for action in schedule.actions if action.kind is Kind.LOAD]
    assert len(loads) == 4 + 6 - 2
    assert sum(action.kind is Kind.FORWARD for action in schedule.actions) == 8 * 6


def test_passes_may_divide_an_uneven_minibatch_differently():
    schedule = built(replace(PACKS, minibatch=7, forward_size=4, backward_size=3))
    spans = {a.name: a.samples for a in schedule.actions if a.unit == 3 and a.samples}
    assert spans["1:F3.1"] == (4, 7)
    assert spans["1:R3.2"] == (6, 7)
    fetch = schedule.by_name["1:T2.1"]
    assert fetch.samples == (3, 6)
    assert {"1:S2.0", "1:S2.1"} <= set(fetch.after)
    validate(schedule)


def test_a_ring_too_small_for_a_pack_is_refused():
    with pytest.raises(ValueError, match="4608 bytes that are needed at once do not fit into 4000"):
        built(PACKS, rings=[Rings(weights=4000, gradients=8192)] * 2)


def test_a_message_the_other_way_round_is_a_deadlock_with_a_name():
    schedule = built(PACKS)
    actions = list(schedule.actions)
    first, second = (
        next(i for i, a in enumerate(actions) if a.kind is Kind.RECV and a.name == name)
        for name in ("1:RECV2.0", "1:RECV2.1")
    )
    actions[first], actions[second] = actions[second], actions[first]
    with pytest.raises(ScheduleError, match=r"deadlocks: .*RECV2\.1"):
        validate(replace(schedule, actions=tuple(actions)))


def test_a_missing_stash_is_refused_by_name():
    schedule = built(PACKS)
    kept = [a for a in schedule.actions if a.name != "1:S2.1"]
    kept = [replace(a, after=tuple(n for n in a.after if n != "1:S2.1")) for a in kept]
    with pytest.raises(ScheduleError, match=r"T2\.1 fetches what nobody stashes"):
        validate(replace(schedule, actions=tuple(kept)))


def test_a_recomputation_before_the_one_below_it_is_refused_by_name():
    """The forward passes of the pack are another rank's: nothing else tells that its input is
    there."""
    packs = replace(PACKS, ranks=3, forward=packs_of([1, 3]), backward=packs_of([1, 3, 2]))
    schedule = built(packs)
    actions = list(schedule.actions)
    names = [action.name for action in actions]
    low, high = names.index("R2.0"), names.index("R3.0")
    free = tuple(name for name in actions[high].after if name != "R2.0")
    actions[low], actions[high] = replace(actions[high], after=free), actions[low]
    with pytest.raises(ScheduleError, match=r"R3\.0 .* 1:F2\.0 .* nothing to recompute"):
        validate(replace(schedule, actions=tuple(actions)))


def test_gradients_that_nobody_adds_up_are_refused():
    schedule = built(replace(PACKS, mode="dp"))
    kept = [
        replace(a, after=tuple(name for name in a.after if "REDUCE" not in name))
        for a in schedule.actions
        if a.kind is not Kind.REDUCE
    ]
    kept = [
        replace(a, after=(*a.after, *(f"{r}B{a.unit}.{m}" for r in ("", "1:") for m in (0, 1))))
        if a.kind is Kind.GRAD_OUT
        else a
        for a in kept
    ]
    with pytest.raises(ScheduleError, match="before the gradients of all ranks are added up"):
        validate(replace(schedule, actions=tuple(kept)))


def test_a_share_that_nobody_updates_is_refused():
    schedule = remove(built(replace(PACKS, mode="dp")), "1:U3")
    with pytest.raises(ScheduleError, match="1:G3 brings gradients to '1:hg3', which no update"):
        validate(schedule)


def test_a_longer_pipeline_keeps_all_ranks_busy():
    """Many small packs wrap around the ranks: four do nearly four times as much as one."""
    layers = Layers([10] * 32)
    packs = Packs(
        mode="pp", ranks=1, minibatch=16, forward_size=1, backward_size=1,
        forward=packs_of([2] * 15), backward=packs_of([2] * 16),
    )  # fmt: skip
    one, four = (
        simulate(built(replace(packs, ranks=n), layers), Seconds(), steps=2).step_seconds
        for n in (1, 4)
    )
    assert one / four > 3.3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "tp"}, "mode 'tp' is unknown"),
        ({"ranks": 0}, "ranks is 0"),
        ({"mode": "dp", "ranks": 9}, "leaves some of 9 ranks without"),
        ({"backward": packs_of([2, 2])}, "forward packs end before unit 4, they should .* unit 2"),
        ({"forward": (range(0, 2), range(3, 4))}, "after unit 1 comes units 3 to 3"),
        ({"backward": ()}, "there are no backward packs"),
    ],
)
def test_packs_that_cannot_be_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(PACKS, **change)


@pytest.mark.parametrize("mode", ["pp", "dp"])
def test_transfers_name_the_host_memory_that_they_touch(mode):
    """A rank page-locks what its actions name; a copy from other memory waits for the processor."""
    layers = Layers([700, 300, 300, 300, 300, 900], {5: 0})
    schedule = built(replace(PACKS, mode=mode), layers)
    for action in schedule.actions:
        if action.kind in (Kind.LOAD, Kind.STASH, Kind.FETCH, Kind.GRAD_OUT):
            tiers = [schedule.buffers[label].tier for label in action.uses]
            assert "host" in tiers, action.name
    (borrowed,) = {action.uses for action in schedule.actions if action.name.startswith("L5")}
    assert borrowed == ("hw0", "hw5")


def test_a_message_itself_waits_for_what_frees_its_place():
    """A sender does not wait for the messages before: that one of them does is not enough."""
    packs = replace(PACKS, forward_size=1, backward_size=1)
    schedule = built(packs)
    receives = [a for a in schedule.actions if a.rank == 1 and a.kind in RECEIVES]
    before, receive = receives[PLACES - 1 : PLACES + 1]
    (spent,) = receive.after
    late = before.name.replace("1:RECV", "SEND")
    late = edit(schedule, late, after=(*schedule.by_name[late].after, spent))
    validate(late)
    broken = forget(late, receive.name, spent)
    with pytest.raises(ScheduleError, match=f"{receive.name} must itself wait for {spent}, which"):
        validate(broken)
