"""A schedule that does not fit the run, or that breaks a rule, starts no rank."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from tests.methods.test_ranks import MODEL, PACKS, schedule_for, spec_for
from workbench.schedule.action import Kind
from workbench.training.rank_processes import RankTraining


def refused(schedule, spec, folder, message):
    with (
        pytest.raises(ValueError, match=message),
        closing(RankTraining(spec, schedule, folder, device="cpu")),
    ):
        pass
    assert not (folder / "ranks").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 5}, r"has 6 samples, of which \S+ sees the last, a step of the run has 5"),
        ({"batch": 8}, r"has 6 samples, of which \S+ sees the last, a step of the run has 8"),
        ({"model": replace(MODEL, layers=5)}, "has 6 units, the model 7"),
        ({"model": replace(MODEL, hidden=64)}, r"has \d+ bytes for the weights of unit 0, which"),
        ({"model": replace(MODEL, tied=False)}, r"has \d+ bytes for the weights of unit 5, which"),
        ({"model": replace(MODEL, seq=8)}, r"for the tokens of a step, which are 768 for 6 samp"),
        (
            {"dtype": "bf16"},
            "bytes for the weights of unit 0, .* for this model and torch.bfloat16",
        ),
    ],
    ids=["smaller batch", "larger batch", "units", "width", "not tied", "seq", "dtype"],
)
def test_a_schedule_of_another_run_is_refused(changes, message, tmp_path):
    refused(schedule_for(PACKS, spec_for()), spec_for(**changes), tmp_path, message)


def without(schedule, name):
    """The schedule without an action that others waited for."""
    actions = [
        replace(action, after=tuple(other for other in action.after if other != name))
        for action in schedule.actions
        if action.name != name
    ]
    return replace(schedule, actions=tuple(actions))


def changed(schedule, name, **values):
    """The schedule with one action changed."""
    action = schedule.by_name[name]
    at = schedule.actions.index(action)
    actions = (*schedule.actions[:at], replace(action, **values), *schedule.actions[at + 1 :])
    return replace(schedule, actions=actions)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda made: changed(made, "SEND2.0", after=("F1.0", "RECV4.0")),
            "cannot run: the schedule deadlocks: RECV4.0 waits for 1:F3.0, 1:F3.0 waits",
        ),
        (
            lambda made: without(made, "1:S2.0"),
            "cannot run: 1:T2.0 fetches what nobody stashes",
        ),
        (
            lambda made: changed(made, "1:L3", after=()),
            "cannot run: 1:F3.0 of the next step may start before 1:V3 has ended",
        ),
        (lambda made: changed(made, "F0.0", samples=None), "F0.0 .* names no samples"),
        (lambda made: replace(made, actions=()), "computes nothing"),
        (
            lambda made: changed(made, "B0.0", kind=Kind.WEIGHT_GRAD),
            "cannot run: unit 0 has whole and halved backward passes",
        ),
    ],
    ids=["deadlock", "no stash", "stale weights", "no samples", "nothing", "half a pass"],
)
def test_a_schedule_that_breaks_a_rule_is_refused(change, message, tmp_path):
    refused(change(schedule_for(PACKS, spec_for())), spec_for(), tmp_path, message)


def test_gradients_that_are_laid_out_for_less_are_refused(tmp_path):
    """They would run into each other."""
    made = schedule_for(PACKS, spec_for())
    buffers = {**made.buffers, "g5": replace(made.buffers["g5"], nbytes=256)}
    message = "has 256 bytes for the gradients of unit 5, which are 33024"
    refused(replace(made, buffers=buffers), spec_for(), tmp_path, message)
