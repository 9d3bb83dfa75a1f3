"""Exact global-norm clipping while host updates run beside the backward pass.

Updates are guesses until the norm is known. Whether all of them stand, none is made, or some are
taken back, training is plain training; and the same run gives the same bits, however late the host
is.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.methods.harness import Silent, assert_equals_plain, run, start
from tests.methods.plain import judge, made_up_profile
from tests.runs.helpers import HANG_S
from workbench.methods import stronghold
from workbench.schedule.action import GUESS, VERDICT, Kind

NEVER, ALWAYS = 1e6, 1e-4
"""Limits far above and far below every gradient norm of these runs."""
VISITS = ((NEVER, 3), (ALWAYS, 5), ("between", 1), ("between", 5))
"""Limits, and how many layers have states that visit the device."""
STEPS = 20
"""In so many, guesses under a limit in between stand, are taken back, and are not made."""


def settled(training) -> dict[str, int]:
    return training.engine.optimizer.settled


@pytest.mark.parametrize(
    ("clip", "clipping"),
    [
        (NEVER, "speculate"),
        (ALWAYS, "speculate"),
        (ALWAYS, "wait"),
        pytest.param(NEVER, "wait", marks=pytest.mark.thorough),
    ],
)
def test_clips_that_fire_never_and_always_equal_plain_training(spec_for, tmp_path, clip, clipping):
    spec = spec_for(window=2, resident=1, clip=clip, clipping=clipping)
    training, parameters = run(stronghold, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    found = settled(training)
    if clipping == "wait":
        assert sum(found.values()) == 0
    elif clip == NEVER:
        assert found["stood"] == (spec.steps - 1) * found["waited"] > 0  # all but the first step's
        assert found["redone"] == 0
    else:  # the first gradients tell: nothing is guessed, so nothing is taken back
        assert found["waited"] > 0
        assert found["stood"] == found["redone"] == 0


@cache
def norms_of(spec) -> list[float]:
    """The norms of a run's gradients, from the least to the greatest."""
    with TemporaryDirectory() as folder:
        training, _ = run(stronghold, spec, Path(folder))
    return sorted(training.history.grad_norms)


def limit_between(spec_for) -> float:
    """A limit that some steps' norms exceed, though not by their last units' gradients alone."""
    norms = norms_of(spec_for(window=2, resident=1, clip=NEVER, steps=STEPS))
    return norms[len(norms) // 2] * 0.99


def test_updates_that_are_taken_back_equal_plain_training(spec_for, tmp_path):
    limit = limit_between(spec_for)
    spec = spec_for(window=2, resident=1, clip=limit, steps=STEPS)
    training, parameters = run(stronghold, spec, tmp_path)
    assert settled(training)["redone"] > 0
    assert settled(training)["stood"] > 0
    assert_equals_plain(spec, training, parameters)


def visits_of(training) -> list[set[int]]:
    """Step -> the turns in which states were pulled, of a training run by `run_counting`."""
    return training.turns


def run_counting(spec, folder):
    """Run; and note in which turns of each step states really moved."""
    training = start(stronghold, spec, folder)
    training.turns = [set() for _ in range(spec.steps)]
    comes = training.engine.optimizer.comes

    def counted(unit, turn, state):
        found = comes(unit, turn, state)
        if found:
            training.turns[state.index].add(turn)
        return found

    training.engine.optimizer.comes = counted
    try:
        training.run(Silent())
        return training, training.parameters()
    finally:
        training.close()


@pytest.mark.parametrize(
    ("clip", "pulled"),
    [
        pytest.param(clip, pulled, marks=[] if (clip, pulled) in VISITS else [pytest.mark.thorough])
        for clip in (NEVER, ALWAYS, "between")
        for pulled in (1, 3, 5)
    ],
)
def test_states_that_visit_for_a_guess_and_a_verdict(spec_for, tmp_path, clip, pulled):
    """Where nothing is clipped states move once, before the norm; where everything is, once, after
    it; and plain training it is also where a guess was wrong."""
    never, always = clip == NEVER, clip == ALWAYS
    more = {}
    if clip == "between":
        clip, more = limit_between(spec_for), {"steps": STEPS}
    spec = spec_for(window=2, resident=0, pulled=pulled, clip=clip, **more)
    training, parameters = run_counting(spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    first, *others = visits_of(training)
    assert first == {VERDICT}  # nobody knows the weather yet
    plan = stronghold.plan(spec, made_up_profile(spec))
    moved = training.outcome("test").moved_bytes
    if never:
        assert others == [{GUESS}] * len(others)
        assert settled(training)["redone"] == 0
        assert moved == plan.moved_bytes
    elif always:
        assert others == [{VERDICT}] * len(others)
        assert settled(training)["stood"] == settled(training)["redone"] == 0
        assert moved == plan.moved_bytes
    else:
        assert {GUESS, VERDICT} in others
        assert settled(training)["redone"] > 0
        assert settled(training)["stood"] > 0


def test_resumed_guesses_are_those_of_a_run_in_one_piece(spec_for, tmp_path):
    """Guesses decide the last bits of updates that are taken back, so a resumed run must repeat
    them."""
    limit = limit_between(spec_for)
    spec = spec_for(
        window=2, resident=0, pulled=3, clip=limit, steps=8, save_every=1, lr_decay_steps=8
    )
    whole, expected = run(stronghold, spec, tmp_path / "whole")
    assert settled(whole)["redone"] > 0
    for steps in range(1, 9):
        pieces, parameters = run(stronghold, spec.with_(steps=steps), tmp_path / "pieces")
    assert pieces.history.losses == whole.history.losses
    for name, value in expected.items():
        assert torch.equal(parameters[name], value), name


@pytest.mark.parametrize("pulled", [0, 3])
def test_the_same_bits_however_late_the_host_is(spec_for, tmp_path, pulled):
    """Guesses depend on gradients alone, and not on which lane was faster."""
    limit = limit_between(spec_for)
    spec = spec_for(window=2, resident=1, pulled=pulled, clip=limit, steps=8)

    def late(action, step):
        if action.kind is Kind.UPDATE and action.lane != "compute":
            time.sleep(4e-3)

    punctual, expected = run(stronghold, spec, tmp_path / "punctual")
    lagging, parameters = run(stronghold, spec, tmp_path / "late", perturb=late)
    assert settled(lagging)["redone"] > 0
    assert settled(lagging) == settled(punctual)
    assert lagging.history.losses == punctual.history.losses
    for name, value in expected.items():
        assert torch.equal(parameters[name], value), name


def test_eager_updates_overlap_the_backward_pass(spec_for, tmp_path):
    """The last of the step's passes waits for the first of its updates."""
    updating, overlapped = threading.Event(), []

    def wait(action, step):
        if (action.kind, action.lane, step) == (Kind.UPDATE, "host", 2):
            updating.set()
        if (action.name, step) == ("B0.0", 2):
            overlapped.append(updating.wait(HANG_S))

    run(stronghold, spec_for(window=2, resident=2, steps=4, clip=NEVER), tmp_path, perturb=wait)
    assert overlapped == [True, True]


@pytest.mark.parametrize(
    ("unit", "pulled"),
    [
        (1, 2),
        (4, 0),
        (4, 5),
        pytest.param(1, 0, marks=pytest.mark.thorough),
        pytest.param(1, 5, marks=pytest.mark.thorough),
        pytest.param(4, 2, marks=pytest.mark.thorough),
    ],
)
def test_a_skipped_step_takes_its_guesses_back(spec_for, tmp_path, unit, pulled):
    """A gradient that is not finite, seen before and after others were guessed with."""
    spec = spec_for(window=2, resident=0, pulled=pulled, steps=4, clip=NEVER)
    training = start(stronghold, spec, tmp_path)
    grads = training.engine._output_grads

    def poison(action, step):
        if action.name == f"B{unit}.0" and step == 1 and (unit, 0) in grads:
            grads[unit, 0][0].fill_(float("nan"))

    training.executor._perturb = poison
    try:
        training.run(Silent())
        after = training.parameters()
    finally:
        training.close()
    assert training.history.skipped == [1]
    assert all(torch.isfinite(value).all() for value in after.values())
    if unit == 1:
        assert settled(training)["redone"] > 0
    losses, _ = judge(spec)
    assert training.history.losses[:2] == pytest.approx(losses[:2], rel=1e-6)
