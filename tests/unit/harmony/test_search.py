"""Our search: within memory, near the simulator, and no worse than anybody's packs."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.unit.harmony.made_up import Layers, drawn
from workbench.methods.harmony.pace import Pace
from workbench.methods.harmony.room import Setting
from workbench.methods.harmony.search import scheduled, search
from workbench.methods.harmony.server import Server, ServerCosts
from workbench.methods.plan import DoesNotFit
from workbench.schedule.graph import unroll
from workbench.schedule.schedule import DEVICE
from workbench.schedule.simulate import step_seconds
from workbench.schedule.validate import validate

LAYERS = Layers([4000, *[1000] * 10, 4000])
UNITS = 12
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
SETTING = Setting(
    mode="pp", ranks=3, minibatch=12, device_bytes=200_000, host_bytes=1 << 30, clipped=False
)


def seconds_of(packs, setting, costs):
    return step_seconds(unroll(scheduled(packs, setting, LAYERS), 2), costs)


@pytest.mark.parametrize("mode", ["pp", "dp"])
def test_the_plan_keeps_its_budget(mode):
    setting = replace(SETTING, mode=mode)
    found = search(setting, LAYERS, UNITS, SERVER)
    proved = validate(found.schedule)
    assert all(peaks[DEVICE] <= setting.device_bytes for peaks in proved.peak_bytes.values())
    assert (found.packs.num_units, found.packs.minibatch) == (UNITS, 12)


@pytest.mark.parametrize("mode", ["pp", "dp"])
def test_nobody_draws_a_faster_plan(mode):
    setting = replace(SETTING, mode=mode)
    found = search(setting, LAYERS, UNITS, SERVER)
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


@pytest.mark.parametrize("mode", ["pp", "dp"])
def test_the_estimate_is_near_the_simulator(mode):
    setting = replace(SETTING, mode=mode)
    pace = Pace(LAYERS, SERVER, UNITS)
    costs = ServerCosts(LAYERS, SERVER, shared_updates=mode == "dp")
    packs = search(setting, LAYERS, UNITS, SERVER).packs
    for size in (1, 2, 4):
        changed = replace(packs, forward_size=size, backward_size=size)
        simulated = seconds_of(changed, setting, costs)
        assert pace.step_seconds(changed) == pytest.approx(simulated, rel=0.25)


def test_a_device_too_small_is_told():
    with pytest.raises(DoesNotFit, match="no layer of the model fits on a device of 19.53 KiB"):
        search(replace(SETTING, device_bytes=20_000), LAYERS, UNITS, SERVER)
    with pytest.raises(DoesNotFit, match=r"KiB of host memory are needed, 1000 B are there"):
        search(replace(SETTING, host_bytes=1000), LAYERS, UNITS, SERVER)


def test_sizes_can_be_pinned():
    found = search(replace(SETTING, forward_size=3, backward_size=2), LAYERS, UNITS, SERVER)
    assert (found.packs.forward_size, found.packs.backward_size) == (3, 2)
