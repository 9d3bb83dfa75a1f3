"""Weights first, moments later: to the bit what updates at once are, whatever a step's norm is, and
whoever asks for moments in between."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.methods.harness import Silent, assert_equals_plain, paired, start
from tests.methods.loops import WAYS, batches, loss_of
from tests.methods.plain import MODEL, made_up_profile
from tests.methods.test_clipping import ALWAYS, NEVER, limit_between
from tests.methods.test_exactness import delays
from tests.runs.helpers import HANG_S
from workbench.methods import stronghold
from workbench.runtime.checkpoint.manifest import Saved
from workbench.runtime.executor.executor import Perturb
from workbench.runtime.updates import host_adam
from workbench.schedule.action import Kind
from workbench.training.run import Training

AT_ONCE, LATER = "at_once", "later"


def trained(
    spec, folder: Path, perturb: Perturb | None = None
) -> tuple[Training, dict[str, Tensor], list[Tensor]]:
    """A training that has ended; its parameters, and what it `held`."""
    training = start(stronghold, spec, folder, perturb=perturb)
    try:
        training.run(Silent())
        return training, training.parameters(), held(training)
    finally:
        training.close()


def held(training: Training) -> list[Tensor]:
    """Weights and moments on the host of layers that are there."""
    there = [training.memory.states(unit) for unit in training.memory.streamed]
    return [slab.clone() for s in there for slab in (s.weights, s.exp_avg, s.exp_avg_sq)]


@pytest.fixture
def parts(monkeypatch):
    """How many host updates have written which part."""
    found, update = Counter(), host_adam.update

    def counted(*slabs, part="all", **how):
        found[part] += 1
        update(*slabs, part=part, **how)

    monkeypatch.setattr(host_adam, "update", counted)
    return found


@pytest.mark.parametrize(
    ("clip", "clipping", "dtype", "micro", "ends"),
    paired(
        (NEVER, ALWAYS, "between"), ("speculate", "wait"), ("fp32", "bf16"), (1, 2),
        ("device", "host"),
    ),
)  # fmt: skip
def test_the_bits_are_those_of_updates_at_once(
    spec_for, tmp_path, parts, clip, clipping, dtype, micro, ends
):
    limit = limit_between(spec_for) if clip == "between" else clip
    how = {"window": 2, "resident": 1, "pulled": 1, "host_workers": 2, "disk_layers": 1}
    spec = spec_for(
        **how, clip=limit, clipping=clipping, dtype=dtype, microbatches=micro, ends=ends,
        moments=AT_ONCE, optimizer_tier="auto", activations="auto", kept=0, steps=12,
    )  # fmt: skip
    whole, _, expected = trained(spec, tmp_path / "whole")
    assert set(parts) == {"all"}
    parts.clear()
    spec = spec.with_(moments=LATER)
    apart, parameters, found = trained(spec, tmp_path / "apart", delays(random.Random(1), spec))
    assert apart.history.losses == whole.history.losses
    assert all(map(torch.equal, found, expected))
    assert parts["weights"] == parts["moments"]
    assert (parts["weights"] > 0) == (clip != NEVER)
    if clip == "between":
        assert parts["all"] > spec.steps, "those on the disk are updated at once in every step"
    if dtype == "fp32":
        assert_equals_plain(spec, apart, parameters)


def test_the_next_forward_pass_does_not_wait_for_moments(spec_for, tmp_path):
    """They are made when it has ended; and the gradients after it wait for them."""
    head, ended, made, found = MODEL.layers + 1, threading.Event(), set(), []

    def wait(action, step):
        if (action.kind, action.unit, step) == (Kind.FORWARD, head, 2):
            ended.set()
        if (action.kind, step) == (Kind.MOMENTS, 1):
            found.append(ended.wait(HANG_S))
            time.sleep(0.01)
            made.add(action.unit)
        if (action.kind, step) == (Kind.GRAD_OUT, 2):
            assert action.unit in made

    spec = spec_for(window=2, resident=1, clip=ALWAYS, moments=LATER, steps=4)
    training, parameters, _ = trained(spec, tmp_path, wait)
    assert found == [True] * len(found)
    assert made == {2, 3, 4, 5}
    assert_equals_plain(spec, training, parameters)


def test_a_resumed_run_has_the_moments_of_one_in_one_piece(spec_for, tmp_path):
    spec = spec_for(window=2, resident=1, clip=ALWAYS, save_every=1, lr_decay_steps=6, steps=6)
    whole, _, expected = trained(spec.with_(moments=AT_ONCE), tmp_path / "whole")
    for steps in range(1, 7):
        pieces = spec.with_(moments=LATER, steps=steps)
        ended, _, found = trained(pieces, tmp_path / "pieces")
    assert ended.history.losses == whole.history.losses
    assert all(map(torch.equal, found, expected))


def late(action, _) -> None:
    if action.kind is Kind.MOMENTS:
        time.sleep(0.02)


@pytest.mark.parametrize("ends", ["device", "host"])
def test_gradients_that_wait_for_those_of_the_next_step_do_not_disturb_moments(
    spec_for, tmp_path, ends
):
    found = []
    for moments in (AT_ONCE, LATER):
        spec = spec_for(window=2, resident=1, clip=ALWAYS, moments=moments, ends=ends)
        training = start(stronghold, spec, tmp_path / moments, perturb=late)
        try:
            for step, holds in enumerate((False, True, True, False, True, False)):
                training.forward(step, holds=holds)
                training.step(step)
            training.settle()
            found.append((training.history.losses, training.history.grad_norms, held(training)))
        finally:
            training.close()
    (*before, expected), (*after, slabs) = found
    assert before == after
    assert all(map(torch.equal, slabs, expected))


def test_who_asks_between_steps_of_a_loop_finds_moments(engine, tmp_path):
    """A checkpoint, an evaluation, and an engine that is closed at once."""
    given, saved = [*batches(4)], []
    for moments in (AT_ONCE, LATER):
        with engine("stronghold", **WAYS["stronghold"], clip=ALWAYS, moments=moments) as made:
            losses = [made.step(given[0], loss_of)]
            kinds = {a.kind for a in made._steps._whole.plan.schedule.actions}
            assert (Kind.MOMENTS in kinds) == (moments == LATER)
            made._steps._whole.executor._perturb = late
            losses.append(made.step(given[1], loss_of))
            files = Saved.read(made.save(tmp_path / moments)).manifest.files
            told = made.evaluate(given[:1], loss_of)
            losses += [made.step(batch, loss_of) for batch in given[2:]]
            weights = made.state_dict()
            made.step(given[0], loss_of)
        saved.append((losses, told, files, weights))
    (*before, expected), (*after, weights) = saved
    assert before == after
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_moments_that_fail_when_their_step_has_ended_are_told_with_the_next_call(engine, tmp_path):
    first, second = batches(2)

    def fail(action, _) -> None:
        if action.kind is Kind.MOMENTS:
            time.sleep(0.1)
            raise OSError("memory is broken")

    with engine("stronghold", **WAYS["stronghold"], clip=ALWAYS, moments=LATER) as made:
        made.step(first, loss_of)
        made.save(tmp_path)
        executor = made._steps._whole.executor
        wanted = made.step(second, loss_of)
        made.load(tmp_path)
        executor._perturb = fail
        assert made.step(second, loss_of) == wanted
        with pytest.raises(OSError, match="memory is broken"):
            made.state_dict()
        executor._perturb = None
        with pytest.raises(ValueError, match=r"step 1 failed \(OSError: memory.*load a check"):
            made.step(second, loss_of)
        assert made.load(tmp_path) == 1
        assert made.step(second, loss_of) == wanted


@pytest.mark.parametrize(("host", "layers"), [(1.0, 8), (0.3, 6), (0.03, 0)])
def test_the_planner_updates_moments_later_where_that_is_faster(spec_for, host, layers):
    """Of as many layers as the host has time for: two parts have more bytes than both at once."""
    spec = spec_for(window=2, resident=0, clipping="auto", model=replace(MODEL, layers=8))
    profile = made_up_profile(spec)
    parameters = profile.units[1].parameters
    rate = host * parameters / profile.units[1].backward_s
    profile = replace(profile, hardware=replace(profile.hardware, host_adam_params_per_s=rate))
    plans = {
        moments: stronghold.plan(spec.with_(moments=moments), profile)
        for moments in ("auto", AT_ONCE, LATER)
    }
    seconds = {
        moments: plan.settings["step_seconds_where_clipped"] for moments, plan in plans.items()
    }
    assert plans["auto"].settings["moments_later"] == layers
    assert (seconds[LATER] < 0.95 * seconds[AT_ONCE]) is (layers > 0)
    assert seconds["auto"] == min(seconds.values())
