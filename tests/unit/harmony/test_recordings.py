"""The memory of recorded passes: foreseen to the byte, and kept free by the search."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.unit.harmony.made_up import Layers, drawn
from tests.unit.harmony.test_search import SERVER, SETTING, UNITS
from workbench.methods.harmony.recordings import Recordings
from workbench.methods.harmony.search import scheduled, search
from workbench.schedule import buffers as name
from workbench.schedule.schedule import DEVICE
from workbench.schedule.validate import validate


class Uneven(Layers):
    """Layers of which each leaves, and works in, something else."""

    library_bytes = 700

    def cost(self, unit, samples):
        rng = random.Random(unit)
        sizes = {
            what: rng.randint(1, 9000) * samples
            for what in (
                "input_bytes", "output_bytes", "kept_bytes", "forward_scratch_bytes",
                "recompute_scratch_bytes", "backward_scratch_bytes",
            )
        }  # fmt: skip
        return replace(super().cost(unit, samples), **sizes)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_foreseen_is_what_the_schedule_holds(seed):
    rng = random.Random(seed)
    packs = drawn(rng)
    layers = Uneven([rng.randint(100, 4000) for _ in range(packs.num_units)])
    setting = replace(
        SETTING, mode=packs.mode, ranks=packs.ranks, device_bytes=1 << 30, recorded_below_s=1.0
    )
    schedule = scheduled(packs, setting, layers)
    foreseen = Recordings(layers, packs.num_units, below_s=1.0)
    for rank in range(packs.ranks):
        buffer = schedule.buffers.get(name.on_rank(rank, name.REPLAYS))
        assert foreseen.nbytes(packs, rank) == (buffer.nbytes if buffer else 0)


def test_passes_that_take_longer_are_not_recorded():
    layers, packs = Uneven([100] * 9), drawn(random.Random(3), backward=(range(9),), forward=())
    longest = 1e-3 * max(packs.forward_size, packs.backward_size)
    assert Recordings(layers, 9, below_s=1.01 * longest).nbytes(packs, 0) > 0
    assert Recordings(layers, 9, below_s=0.99 * longest).nbytes(packs, 0) == 0


@pytest.mark.parametrize(
    ("mode", "device_bytes"),
    [
        ("pp", 90_000),
        ("dp", 130_000),
        pytest.param("dp", 90_000, marks=pytest.mark.thorough),
        pytest.param("pp", 130_000, marks=pytest.mark.thorough),
        pytest.param("pp", 200_000, marks=pytest.mark.thorough),
        pytest.param("dp", 200_000, marks=pytest.mark.thorough),
    ],
)
def test_a_search_with_recordings_keeps_the_budget_at_once(mode, device_bytes):
    """Foreseen, not found out by one proof after the other."""
    setting = replace(SETTING, mode=mode, device_bytes=device_bytes, recorded_below_s=1.0)
    layers = Layers([4000, *[1000] * 10, 4000])
    found = search(setting, layers, UNITS, replace(SERVER, device_bytes=device_bytes))
    assert any(label.endswith(name.REPLAYS) for label in found.schedule.buffers)
    peaks = validate(found.schedule).peak_bytes
    assert all(peak[DEVICE] <= device_bytes for peak in peaks.values())
