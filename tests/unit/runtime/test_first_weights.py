"""First weights of units: made one at a time, handed over by several threads, in little memory."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch

from tests.methods.harness import Silent
from tests.methods.plain import made_up_profile, spec_for
from tests.runs.helpers import wait_for
from workbench.core.model_spec import ModelSpec
from workbench.methods import stronghold
from workbench.model import make_model
from workbench.model.weights import mapped
from workbench.runtime.memory import memory
from workbench.runtime.memory.device_budget import StorageMeter
from workbench.runtime.memory.storage import Flat
from workbench.runtime.passes.first_weights import write_initial
from workbench.training.run import write_weights

SEED = 3
MODEL = make_model(ModelSpec(layers=9, hidden=32, heads=2, seq=8, vocab=999, tied=True), SEED)
FLATS = [Flat.of(MODEL, unit) for unit in range(MODEL.num_units)]
LARGEST = 4 * max(flat.numel for flat in FLATS)


class Keeper(dict[int, torch.Tensor]):
    """Keeps copies of weights, by unit."""

    def seed(self, unit: int, master: torch.Tensor) -> None:
        self[unit] = master.clone()


def test_units_are_as_built_alone_and_no_more_than_the_two_largest_are_in_memory():
    keeper, told = Keeper(), Silent()
    with StorageMeter() as meter:
        write_weights(told, MODEL, keeper, FLATS, SEED)
    assert LARGEST < meter.peak <= 2 * LARGEST < 4 * MODEL.parameters_count()
    for unit, flat in enumerate(FLATS):
        built = MODEL.build(unit, seed=SEED)
        for name, view in flat.views(keeper[unit]):
            assert torch.equal(view, built.get_parameter(name))
    done = {"done_bytes": 4 * MODEL.parameters_count(), "all_bytes": 4 * MODEL.parameters_count()}
    assert told.events[0] == ("phase", {"text": "making weights"})
    assert told.events[-1] == ("bytes", {"text": "weights", **done})


def test_where_one_cannot_be_kept_no_other_waits_for_ever():
    class Full(Keeper):
        def seed(self, unit: int, master: torch.Tensor) -> None:
            if unit in (3, 4):
                raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_initial(MODEL, Full(), FLATS, SEED)


def test_files_are_read_ahead_whole_and_once(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "PIECE", 1000)
    files, read, asked = [tmp_path / name for name in ("a", "b", "gone")], os.preadv, Counter()

    def noted(file, buffers, at):
        got = read(file, buffers, at)
        asked[os.readlink(f"/proc/self/fd/{file}")[-1]] += got
        return got

    monkeypatch.setattr(mapped.os, "preadv", noted)
    files[0].write_bytes(bytes(2500))
    files[1].write_bytes(bytes(1000))
    with mapped.read_ahead(files):
        wait_for(lambda: asked.total() == 3500)
    assert asked == {"a": 2500, "b": 1000}


def test_a_gpu_pins_what_it_copies_and_nothing_else(monkeypatch):
    """Moments and rests of masters are the host's alone."""
    spec = spec_for(dtype="bf16", device_memory=400_000)
    model, plan = make_model(spec.model), stronghold.plan(spec, made_up_profile(spec))
    flats, pins, made = [Flat.of(model, u) for u in range(model.num_units)], {}, memory.slab

    def noted(tier, label, *how, pin):
        pins[label] = pin
        return made(tier, label, *how, pin=False)

    monkeypatch.setattr(memory, "slab", noted)
    how = {"device": torch.device("cuda"), "dtype": torch.bfloat16, "meter": StorageMeter()}
    memory.Memory(plan.schedule, flats, **how).close()
    assert pins.keys() >= {"working weights", "gradients", "moments", "master weights' rest"}
    assert [label for label, pin in pins.items() if not pin] == ["moments", "master weights' rest"]
