"""Which micro-batches are profiled before a plan is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.methods.harness import Silent
from tests.methods.plain import made_up_profile, spec_for
from workbench.methods.harmony import train
from workbench.runtime.tiers import OutOfMemory


@pytest.fixture
def device_for(monkeypatch):
    """A device with room for so many samples."""

    def room(most: int) -> None:
        def profile_for(spec, results, echo):
            if spec.batch > most:
                raise OutOfMemory(
                    tier="device", what="a tensor", asked=spec.batch, in_use=0, budget=most
                )
            return made_up_profile(spec)

        monkeypatch.setattr(train, "profile_for", profile_for)

    return room


@pytest.mark.parametrize(
    ("room", "sizes"), [(64, [1, 8, 64]), (63, [1, 8, 32]), (9, [1, 8]), (8, [1, 8])]
)
def test_the_largest_is_the_largest_part_of_the_batch_that_fits(device_for, room, sizes):
    device_for(room)
    report = Silent()
    found = train.profiles_for(spec_for(batch=64), Path(), report)
    assert sorted(found) == sizes
    assert {size: found[size].microbatch for size in found} == {size: size for size in sizes}
    told = [values["text"] for kind, values in report.events if kind == "profile"]
    assert told == [
        f"a micro-batch of {size} is more than the device has room for"
        for size in (64, 32, 16)
        if size > max(room, 8)
    ]


def test_one_sample_too_much_is_out_of_memory(device_for):
    device_for(0)
    with pytest.raises(OutOfMemory):
        train.profiles_for(spec_for(batch=4), Path(), Silent())


def test_pinned_sizes_are_profiled_and_no_others(device_for):
    device_for(64)
    spec = spec_for(batch=64, forward_size=4, backward_size=2)
    assert sorted(train.profiles_for(spec, Path(), Silent())) == [2, 4]
