"""Which micro-batches are profiled before a plan is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.methods.harness import Silent
from tests.methods.plain import made_up_profile, spec_for
from workbench.core.division import micro_batches
from workbench.methods.harmony import planner
from workbench.profile.profile import Limits
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.schedule.plan import DoesNotFit
from workbench.training import ranks as train_ranks


@pytest.fixture
def device_for(monkeypatch):
    """A device with these limits, and room to time so many samples."""

    def room(limits: Limits, most: int = 1000) -> list[int]:
        budgets: list[int] = []

        def profile_for(spec, results, echo):
            if spec.batch > most:
                raise OutOfMemory(
                    tier="device", what="a tensor", asked=spec.batch, in_use=0, budget=most
                )
            return made_up_profile(spec)

        def limits_for(spec, results, budget, echo):
            budgets.append(budget)
            return limits

        monkeypatch.setattr(train_ranks, "profile_for", profile_for)
        monkeypatch.setattr(train_ranks, "limits_for", limits_for)
        monkeypatch.setattr(
            train_ranks,
            "hardware",
            lambda results, device, echo: made_up_profile(spec_for()).hardware,
        )
        return budgets

    return room


@pytest.mark.parametrize(
    ("least", "backward", "sizes"),
    [(1, 64, [1, 8, 64]), (1, 63, [1, 8, 63]), (2, 50, [2, 10, 50]), (1, 1, [1]), (4, 4, [4])],
)
def test_profiled_are_the_sizes_between_the_limits(device_for, least, backward, sizes):
    limits = Limits(smallest=least, forward=64, backward=backward)
    device_for(limits)
    found = train_ranks.profiles_for(planner, spec_for(batch=64), Path(), Silent())
    assert sorted(found) == sizes
    assert {size: found[size].microbatch for size in found} == {size: size for size in sizes}
    assert {profile.limits for profile in found.values()} == {limits}


@pytest.mark.parametrize(("cap", "budget"), [(None, (1 << 30) // 2), (100 << 10, 100 << 10)])
def test_limits_are_those_of_one_ranks_device(device_for, cap, budget):
    budgets = device_for(Limits(smallest=1, forward=8, backward=8))
    spec = spec_for(method="harmony-pp", ranks=2, batch=8, device_memory=cap)
    train_ranks.profiles_for(planner, spec, Path(), Silent())
    assert budgets == [budget]


def test_the_search_keeps_them_for_each_direction(device_for, monkeypatch):
    limits = Limits(smallest=2, forward=7, backward=3)
    device_for(limits)
    seen = []

    def search(setting, *rest):
        seen.append((setting.smallest, setting.forward.largest, setting.backward.largest))
        raise InterruptedError

    monkeypatch.setattr(planner, "search", search)
    spec = spec_for(method="harmony-pp", ranks=2, batch=8)
    with pytest.raises(InterruptedError):
        planner.plan(spec, train_ranks.profiles_for(planner, spec, Path(), Silent()), mode="pp")
    assert seen == [(2, 7, 3)]


def test_what_cannot_be_timed_is_drawn_on_from_a_part_of_it(device_for):
    limits = Limits(smallest=1, forward=64, backward=64)
    device_for(limits, most=20)
    report = Silent()
    found = train_ranks.profiles_for(planner, spec_for(batch=64), Path(), report)
    assert sorted(found) == [1, 8, 16]
    assert found[16].limits == limits
    told = [values["text"] for kind, values in report.events if kind == "profile"]
    assert told == [
        f"a micro-batch of {size} is more than the device has room to time" for size in (64, 32)
    ]


def test_one_sample_too_much_does_not_fit(device_for):
    device_for(Limits(smallest=1, forward=1, backward=1), most=0)
    with pytest.raises(DoesNotFit, match="cannot be timed in micro-batches of 1: the device tier"):
        train_ranks.profiles_for(planner, spec_for(batch=4), Path(), Silent())


def test_pinned_sizes_are_profiled_and_no_others(device_for):
    budgets = device_for(Limits(smallest=1, forward=64, backward=64))
    spec = spec_for(method="harmony-pp", batch=64, forward_size=4, backward_size=2)
    assert sorted(train_ranks.profiles_for(planner, spec, Path(), Silent())) == [2, 4]
    assert budgets == []


@pytest.mark.parametrize(
    ("batch", "parts", "limits", "sizes"),
    [
        (10, 1, {}, [1, 2, 4, 8, 10]),
        (10, 2, {}, [1, 2, 4, 5]),
        (10, 1, {"most": 6}, [1, 2, 4, 6]),
        (10, 1, {"least": 2}, [2, 4, 8, 10]),
        (5, 1, {"least": 2}, [5]),
        (5, 1, {"least": 2, "most": 4}, [3]),
        (9, 2, {"least": 2}, [5]),
    ],
)
def test_no_micro_batch_is_too_small_for_the_model(batch, parts, limits, sizes):
    assert micro_batches(batch, parts, **limits) == sizes


def test_a_batch_that_cannot_be_divided_so_is_refused():
    with pytest.raises(ValueError, match="at least 2 samples; 4 samples in 4 parts"):
        micro_batches(4, 4, least=2)
