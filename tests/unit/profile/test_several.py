"""Profiles at several micro-batch sizes: those of a run, as far as they are stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.methods.harness import Silent
from tests.methods.plain import made_up_profile, spec_for
from workbench.methods.harmony import planner
from workbench.profile import several
from workbench.profile.profile import Limits
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.training import ranks as train_ranks


@pytest.fixture
def stored(monkeypatch):
    """A results folder that holds profiles of these sizes, on a device with room for no more."""

    def hold(*sizes: int, limits: Limits | None = None) -> None:
        def profile_for(spec, results, echo):
            if spec.batch not in sizes:
                raise OutOfMemory(
                    tier="device", what="a tensor", asked=spec.batch, in_use=0, budget=0
                )
            return made_up_profile(spec)

        def stored_profile(spec, results):
            return made_up_profile(spec) if spec.microbatch in sizes else None

        def limits_for(spec, *_):
            return limits or Limits(smallest=1, forward=spec.batch, backward=spec.batch)

        monkeypatch.setattr(train_ranks, "profile_for", profile_for)
        monkeypatch.setattr(train_ranks, "limits_for", limits_for)
        monkeypatch.setattr(train_ranks, "_device_bytes", lambda *_: 0)
        monkeypatch.setattr(several, "stored_limits", lambda *_: limits)
        monkeypatch.setattr(several, "stored_profile", stored_profile)

    return hold


@pytest.mark.parametrize(
    ("sizes", "limits", "changes"),
    [
        ((1, 8, 64), None, {}),
        ((1, 8, 32), None, {}),
        ((1, 8), None, {}),
        ((2, 4), None, {"forward_size": 4, "backward_size": 2}),
        ((1,), None, {"batch": 1}),
        ((1, 2), None, {"batch": 2}),
        ((1, 2, 3), None, {"batch": 3}),
        ((2, 8, 32), Limits(smallest=2, forward=48, backward=32), {}),
        ((2, 8, 16), Limits(smallest=2, forward=48, backward=32), {}),
    ],
    ids=str,
)
def test_a_question_takes_what_a_run_would(stored, sizes, limits, changes):
    stored(*sizes, limits=limits)
    spec = spec_for(**{"method": "harmony-pp", "batch": 64, **changes})
    found = several.stored_profiles(spec, Path())
    assert sorted(found) == list(sizes)
    run = train_ranks.profiles_for(planner, spec, Path(), Silent())
    assert [replace(each, limits=limits) for each in run.values()] == [*found.values()]


def test_what_is_not_stored_is_said():
    spec = spec_for(batch=64)
    known = {size: made_up_profile(spec.with_(batch=size)) for size in (64, 8, 1)}
    assert several.in_proportion(spec, known) == ""
    del known[1]
    assert several.in_proportion(spec, known) == (
        "known are the costs of micro-batches of 8, 64 samples, those of other sizes are in "
        "proportion; a run measures 1 as well, where there is room, and may plan otherwise"
    )


@pytest.mark.parametrize("sizes", [(), (64,), (8, 16)], ids=str)
def test_what_is_stored_of_them_serves(stored, sizes):
    stored(*sizes)
    assert sorted(several.stored_profiles(spec_for(batch=64), Path())) == list(sizes)
