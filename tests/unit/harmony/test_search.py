"""Our search: within memory, near the simulator, and no worse than anybody's packs, whether the
gradients are clipped or not."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from itertools import pairwise
from math import inf
from statistics import fmean

import pytest

from tests.unit.harmony.made_up import Layers, drawn
from workbench.core.bytesize import parse_bytes
from workbench.core.division import packs_of
from workbench.methods.harmony.candidates import Candidates
from workbench.methods.harmony.memory_estimate import MemoryEstimate
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.problem import MicroBatchSizes, PackingProblem
from workbench.methods.harmony.search import Found, scheduled, search
from workbench.methods.harmony.step_time import StepTimeEstimate
from workbench.profile.server import Server, ServerCosts
from workbench.profile.units import paired
from workbench.schedule.graph import unroll
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import DEVICE
from workbench.schedule.simulate import step_seconds
from workbench.schedule.validate import validate

LAYERS = Layers([4000, *[1000] * 10, 4000])
UNITS = 12
MODES = ("pp", pytest.param("dp", marks=pytest.mark.thorough))
SERVER = Server(
    name="made up",
    ranks=3,
    device_bytes=200_000,
    host_bytes=1 << 30,
    load_bytes_per_s=6e5,
    store_bytes_per_s=6e5,
    message_bytes_per_s=1e7,
    reduce_bytes_per_s=7.5e6,
    host_adam_params_per_s=1e7,
    device_adam_params_per_s=1e9,
)
ONE = MicroBatchSizes(asked=1)
SETTING = PackingProblem(
    mode="pp", ranks=3, minibatch=12, device_bytes=200_000, host_bytes=1 << 30, clipping=None
)
SLOW_HOST = replace(SERVER, load_bytes_per_s=2e6, store_bytes_per_s=2e6, host_adam_params_per_s=2e5)
"""Its updates take half as long as all compute."""


KNOWN: dict[tuple[Layers, str], Found] = {}


def known(setting, layers, units, server, **limits) -> Found:
    """`search`, made once for each question about layers."""
    asked = layers, repr((setting, units, server, limits))
    if asked not in KNOWN:
        KNOWN[asked] = search(setting, layers, units, server, **limits)
    return KNOWN[asked]


def seconds_of(packs, setting, costs):
    return step_seconds(unroll(scheduled(packs, setting, LAYERS), 2), costs)


def both_seconds(schedule):
    """Of a step in PP mode whose gradients are not clipped, and of one whose are."""
    graph = unroll(schedule, 2)
    return [
        step_seconds(graph, ServerCosts(LAYERS, SLOW_HOST, shared_updates=False, clips=clips))
        for clips in (False, True)
    ]


def packs_of_size(units, *, mode="pp", samples=1):
    """Packs of so many units each, forward like backward."""
    packs = packs_of([units] * (UNITS // units))
    return Packs(
        mode=mode, ranks=3, minibatch=12, forward_size=samples, backward_size=samples,
        forward=packs[:-1], backward=packs,
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_the_plan_keeps_its_budget(mode):
    setting = replace(SETTING, mode=mode)
    found = known(setting, LAYERS, UNITS, SERVER)
    proved = validate(found.schedule)
    assert all(peaks[DEVICE] <= setting.device_bytes for peaks in proved.peak_bytes.values())
    assert (found.packs.num_units, found.packs.minibatch) == (UNITS, 12)


@pytest.mark.parametrize("mode", MODES)
def test_nobody_draws_a_faster_plan(mode):
    setting = replace(SETTING, mode=mode)
    found = known(setting, LAYERS, UNITS, SERVER)
    costs = ServerCosts(LAYERS, SERVER, shared_updates=mode == "dp")
    rng = random.Random(7)
    tried = 0
    while tried < 40:
        packs = drawn(rng)
        if packs.num_units != 9:
            continue
        stretched = replace(
            packs,
            mode=mode,
            ranks=3,
            minibatch=12,
            forward_size=rng.choice([1, 2, 4]),
            backward_size=rng.choice([1, 2, 4]),
            forward=_stretched(packs.forward),
            backward=_stretched(packs.backward),
        )
        schedule = scheduled(stretched, setting, LAYERS)
        if max(p[DEVICE] for p in validate(schedule).peak_bytes.values()) > setting.device_bytes:
            continue
        assert found.seconds <= 1.01 * seconds_of(stretched, setting, costs), stretched
        tried += 1


def _stretched(packs):
    """Packs of 9 units as packs of 12."""
    ends = [0, *(pack.stop * UNITS // 9 for pack in packs)]
    return tuple(range(a, b) for a, b in pairwise(ends))


@pytest.mark.parametrize("mode", MODES)
def test_the_estimate_is_near_the_simulator(mode):
    setting = replace(SETTING, mode=mode)
    estimate = StepTimeEstimate(LAYERS, SERVER, UNITS)
    costs = ServerCosts(LAYERS, SERVER, shared_updates=mode == "dp")
    packs = known(setting, LAYERS, UNITS, SERVER).packs
    for size in (1, 2, 4):
        changed = replace(packs, forward_size=size, backward_size=size)
        simulated = seconds_of(changed, setting, costs)
        assert estimate.step_seconds(changed) == pytest.approx(simulated, rel=0.25)


@pytest.mark.parametrize("mode", ["pp", "dp"])
def test_the_estimate_knows_updates_that_wait_for_the_norm(mode):
    setting = replace(SETTING, mode=mode, clipping="wait")
    estimate = StepTimeEstimate(LAYERS, SLOW_HOST, UNITS)
    costs = ServerCosts(LAYERS, SLOW_HOST, shared_updates=mode == "dp")
    for samples in (1, 2, 4):
        packs = packs_of_size(3, mode=mode, samples=samples)
        estimated = estimate.step_seconds(packs, late=frozenset(range(UNITS)))
        assert estimated == pytest.approx(seconds_of(packs, setting, costs), rel=0.02)


def test_a_device_too_small_is_told():
    with pytest.raises(DoesNotFit, match="a device of 19.53 KiB .* give it about") as raised:
        search(replace(SETTING, device_bytes=20_000), LAYERS, UNITS, SERVER)
    number, unit = str(raised.value).partition("it about ")[2].partition(",")[0].split()
    enough = replace(SETTING, device_bytes=parse_bytes(f"{float(number) * 1.1}{unit}"))
    search(enough, LAYERS, UNITS, SERVER)
    with pytest.raises(DoesNotFit, match=r"KiB of host memory are needed, 1000 B are there"):
        search(replace(SETTING, host_bytes=1000), LAYERS, UNITS, SERVER)


def test_sizes_can_be_pinned():
    asked = {"forward": MicroBatchSizes(asked=3), "backward": MicroBatchSizes(asked=2)}
    found = search(replace(SETTING, **asked), LAYERS, UNITS, SERVER)
    assert (found.packs.forward_size, found.packs.backward_size) == (3, 2)


@pytest.mark.parametrize(
    "changes", [{"backward": MicroBatchSizes(largest=1)}, {"mode": "dp", "device_bytes": 70_000}]
)
def test_both_passes_divide_alike_where_samples_depend_on_their_micro_batch(changes):
    setting = replace(SETTING, **changes)
    server = replace(SERVER, action_overhead_s=1e-3)
    free = search(setting, LAYERS, UNITS, server).packs
    assert free.forward_size != free.backward_size, "or the case says nothing"
    packs = search(replace(setting, alike=True), LAYERS, UNITS, server).packs
    assert packs.forward_size == packs.backward_size


def test_the_plan_is_the_fastest_by_the_mean_of_steps_that_are_clipped_and_not():
    setting = replace(SETTING, device_bytes=80_000, clipping="auto")
    found = search(setting, LAYERS, UNITS, SLOW_HOST)
    other = scheduled(packs_of_size(1), setting, LAYERS, less=8000)
    assert all(peak[DEVICE] <= 80_000 for peak in validate(other).peak_bytes.values())
    assert found.seconds == fmean(both_seconds(found.schedule))
    assert found.seconds <= fmean(both_seconds(other))


def test_who_is_sure_that_nothing_is_clipped_gets_the_fastest_plan_of_such_steps():
    setting = replace(SETTING, device_bytes=80_000, clipping="auto")
    hedged, sure = (
        search(replace(setting, clipping=clipping), LAYERS, UNITS, SLOW_HOST)
        for clipping in ("auto", "speculate")
    )
    stands, clips = both_seconds(sure.schedule)
    assert stands == sure.seconds < both_seconds(hedged.schedule)[0]
    assert hedged.seconds < fmean([stands, clips])


@pytest.mark.parametrize("mode", MODES)
def test_a_search_of_much_looks_at_a_part_and_still_finds_a_plan(mode, monkeypatch):
    looked_at = []
    estimate = StepTimeEstimate.step_seconds

    def counted(self, packs, *more):
        tasks = packs.tasks if mode == "pp" else packs.tasks_of(0)
        looked_at.extend(len(task.micros) for task in tasks)
        return estimate(self, packs, *more)

    monkeypatch.setattr(StepTimeEstimate, "step_seconds", counted)
    setting = replace(SETTING, mode=mode, minibatch=24)
    whole = search(setting, LAYERS, UNITS, SERVER)
    most, bounded = sum(looked_at) // 4, {"most_work": sum(looked_at) // 4}
    looked_at.clear()
    part, again = (search(setting, LAYERS, UNITS, SERVER, **bounded) for _ in range(2))
    assert sum(looked_at) <= 2 * most
    assert (whole.in_part, part.in_part) == (False, True)
    assert part.seconds <= 1.2 * whole.seconds, "though it may do a fortieth of the work"
    assert part.packs == again.packs


def test_a_step_of_too_many_passes_is_refused_with_a_batch_that_is_not():
    with pytest.raises(ValueError, match="1200000 forward passes over 12 units; a search") as told:
        search(replace(SETTING, minibatch=100_000, forward=ONE), LAYERS, UNITS, SERVER)
    enough = int(str(told.value).rpartition(" ")[2])
    setting = replace(SETTING, minibatch=enough, forward=ONE)
    Candidates(
        setting,
        LAYERS,
        UNITS,
        StepTimeEstimate(LAYERS, SERVER, UNITS),
        MemoryEstimate(LAYERS, UNITS),
    )


@pytest.mark.parametrize(("mode", "ranks", "least"), [("pp", 1, 82_500), ("dp", 3, 65_000)])
def test_what_fits_on_a_small_device_fits_on_a_larger_one(mode, ranks, least):
    """Where what is foreseen to fit does not, other packs are tried, until some do."""
    for device in (least, least + 5000):
        setting = replace(SETTING, mode=mode, ranks=ranks, device_bytes=device)
        found = search(setting, LAYERS, UNITS, replace(SERVER, ranks=ranks))
        assert all(peaks[DEVICE] <= device for peaks in found.proved.peak_bytes.values())


class Slow(Layers):
    """Layers of which a step takes seconds."""

    def cost(self, unit, samples):
        cost = super().cost(unit, samples)
        return paired(cost, cost, lambda seconds, _: 100 * seconds, min)


def test_more_memory_never_plans_a_slower_step(monkeypatch):
    """Than the budgets below that every search looks at too, whatever was asked for."""
    monkeypatch.setattr("workbench.methods.harmony.search.RUNGS", 1)
    rates = {f.name: getattr(SERVER, f.name) / 100 for f in fields(SERVER) if "_per_s" in f.name}
    server = replace(SERVER, ranks=2, **rates)
    layers = Slow(LAYERS.parameters)

    def seconds(device, **limits):
        setting = replace(SETTING, ranks=2, minibatch=4, device_bytes=device)
        return search(setting, layers, UNITS, server, **limits).seconds

    rung = 15 << 13
    assert seconds(130_000) <= seconds(rung, most_work=inf)
