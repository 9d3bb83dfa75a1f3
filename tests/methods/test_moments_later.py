"""Moments that follow their weights: in other passes through memory, with the same numbers."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from tests.methods.harness import assert_equals_plain, run
from tests.methods.test_clipping import ALWAYS, NEVER, STEPS, limit_between, settled
from tests.runs.helpers import HANG_S
from workbench.methods import stronghold
from workbench.methods.stronghold import choice, evaluation_cache, planner
from workbench.schedule.action import Kind


@pytest.fixture
def follow(monkeypatch):
    """Sets whether plans from now on have moments follow weights."""

    def set_to(later: bool) -> None:
        def placed(spec, profile, chosen):
            return choice.placement_of(spec, profile, replace(chosen, moments_later=later))

        for module in (planner, evaluation_cache):
            monkeypatch.setattr(module, "placement_of", placed)

    return set_to


def equal(one, other) -> bool:
    """Whether losses and parameters of two trainings are, to the last bit."""
    (first, weights), (second, others) = one, other
    same = all(torch.equal(others[name], value) for name, value in weights.items())
    return same and first.history.losses == second.history.losses


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("clip", [ALWAYS, "between"])
def test_the_same_bits_as_updates_in_one_piece(spec_for, tmp_path, follow, clip, dtype):
    """Also where some steps are not clipped, and guesses stand or are taken back."""
    limit, steps = (limit_between(spec_for), STEPS) if clip == "between" else (clip, 4)
    spec = spec_for(window=2, resident=1, clip=limit, dtype=dtype, steps=steps)
    follow(False)
    whole = run(stronghold, spec, tmp_path / "whole")
    follow(True)
    apart, parameters = run(stronghold, spec, tmp_path / "apart")
    assert any(action.kind is Kind.MOMENTS for action in apart.engine.schedule.actions)
    assert equal(whole, (apart, parameters))
    if dtype == "fp32":
        assert_equals_plain(spec, apart, parameters)
    if clip == "between":
        assert min(settled(apart).values()) > 0, "stood, redone, waited"


def test_checkpoints_between_are_whole(spec_for, tmp_path, follow):
    """A run that is stopped after each step goes on as one that never was."""
    follow(True)
    often = {"steps": 4, "save_every": 1, "lr_decay_steps": 4}
    spec = spec_for(window=2, resident=0, clip=ALWAYS, clipping="wait", **often)
    whole = run(stronghold, spec, tmp_path / "whole")
    for steps in range(1, 5):
        pieces = run(stronghold, spec.with_(steps=steps), tmp_path / "pieces")
    assert equal(whole, pieces)


def test_the_next_passes_do_not_wait_for_moments(spec_for, tmp_path, follow):
    """The next step's first backward pass begins while the last moments wait for it."""
    follow(True)
    passed, met = threading.Event(), []

    def wait(action, step):
        if (action.kind, step) == (Kind.BACKWARD, 2):
            passed.set()
        if action.kind is Kind.MOMENTS and step == 1:
            met.append(passed.wait(HANG_S))

    spec = spec_for(window=2, resident=0, steps=4, clip=ALWAYS)
    training, _ = run(stronghold, spec, tmp_path, perturb=wait)
    assert met
    assert all(met)


def test_no_choice_of_them_where_nothing_is_clipped(spec_for, tmp_path):
    """Guesses stand there, and are made in one piece."""
    for clip, clipping in ((None, "auto"), (NEVER, "speculate")):
        spec = spec_for(window=2, resident=1, clip=clip, clipping=clipping)
        training, _ = run(stronghold, spec, tmp_path / str(clip))
        assert training.engine.schedule.settings["moments_later"] == 0
