"""What users rely on beside the losses: bytes moved, overlap, resuming, skipping, running out."""

from __future__ import annotations

import itertools
import json
import threading
from contextlib import suppress

import pytest
import torch

from baselines import l2l
from tests.methods.harness import Silent, assert_equals_plain, paired, run, start
from tests.methods.plain import MODEL, made_up_profile
from tests.runs.helpers import HANG_S
from workbench.methods import stronghold
from workbench.methods.offload import resident
from workbench.model import make_model
from workbench.model.whole import make_whole
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.updates.adam_step import Diverged
from workbench.schedule.action import Kind
from workbench.schedule.plan import DoesNotFit
from workbench.training.run import Training, train_planned

BLOCK = make_model(MODEL).unit_parameters(1) * 4
"""Bytes of one block's fp32 weights."""


@pytest.mark.parametrize(("window", "residents"), list(itertools.product((2, 3, 5), (0, 2))))
def test_transfers_are_the_formula(spec_for, tmp_path, window, residents):
    """Streamed layers are loaded forward, again backward unless still there; gradients leave
    once.
    """
    spec = spec_for(window=window, resident=residents, steps=3)
    training, _ = run(stronghold, spec, tmp_path)
    streamed = MODEL.layers - residents
    again = max(0, streamed - min(window, streamed))
    moved = training.outcome("test").moved_bytes
    assert moved == {
        "load": (streamed + again) * BLOCK,
        "store": streamed * BLOCK,
        "read": 0,
        "write": 0,
    }
    assert moved == training.plan.moved_bytes


def test_disk_traffic_is_the_formula(spec_for, tmp_path):
    """Both moments are read and written once per step and streamed layer."""
    spec = spec_for(window=2, resident=0, steps=3, optimizer_tier="disk")
    training, _ = run(stronghold, spec, tmp_path)
    moved = training.outcome("test").moved_bytes
    assert moved["read"] == moved["write"] == MODEL.layers * BLOCK * 2
    assert list((tmp_path / "scratch").iterdir()) == []


def test_no_weights_are_written_back(spec_for, tmp_path):
    training, _ = run(stronghold, spec_for(window=2, steps=2), tmp_path)
    kinds = {event.kind for event in training.executor.events}
    assert Kind.EVICT.value not in kinds
    assert Kind.GRAD_OUT.value in kinds


@pytest.mark.parametrize("method", [stronghold, l2l, resident])
def test_every_parameter_moves_in_one_step(spec_for, tmp_path, method):
    spec = spec_for(window=2, steps=1, warmup_steps=0)
    model = make_model(spec.model)
    before = dict(make_whole(model, seed=spec.seed).named_parameters())
    _, after = run(method, spec, tmp_path)
    for name, value in before.items():
        moved = (after[name] != value.detach()).float().mean()
        # Rows of the embedding for tokens that did not occur move by weight decay alone.
        assert moved > 0.95, (name, float(moved))


def test_updates_of_different_layers_overlap_and_of_one_never(spec_for, tmp_path):
    """The first two that are done wait for each other before they end."""
    begun, meeting, met = set(), threading.Barrier(2), []

    def meet(action, step):
        if action.kind is Kind.UPDATE and step == 2:
            if action.name in begun and not met:  # after it, inside its recorded time
                meeting.wait(HANG_S)
                met.append(action.name)
            begun.add(action.name)

    spec = spec_for(window=2, resident=0, host_workers=2, steps=4)
    training, _ = run(stronghold, spec, tmp_path, perturb=meet)
    updates = [e for e in training.executor.events if e.kind == Kind.UPDATE.value]
    pairs = [
        (a, b)
        for a, b in itertools.combinations(updates, 2)
        if a.start_s < b.end_s and b.start_s < a.end_s
    ]
    assert any(a.unit != b.unit for a, b in pairs)
    assert not [(a, b) for a, b in pairs if a.unit == b.unit]


def test_updates_overlap_the_next_forward_pass(spec_for, tmp_path):
    """Updates that wait for the global norm still run beside compute: the last one waits for it."""
    spec = spec_for(window=2, resident=2, steps=4, clipping="wait")
    plan = stronghold.plan(spec, made_up_profile(spec))
    on_host = [a for a in plan.schedule.actions if a.kind is Kind.UPDATE and a.lane == "host"]
    last, forward, overlapped = max(a.unit for a in on_host), threading.Event(), []

    def wait(action, step):
        if (action.kind, step) == (Kind.FORWARD, 1):
            forward.set()
        if (action.kind, action.unit, step) == (Kind.UPDATE, last, 0):
            overlapped.append(forward.wait(HANG_S))

    run(stronghold, spec, tmp_path, perturb=wait)
    assert overlapped == [True, True]


@pytest.mark.parametrize(
    ("tier", "method"),
    [
        ("disk", stronghold),
        ("host", l2l),
        ("host", resident),
        pytest.param("host", stronghold, marks=pytest.mark.thorough),
        pytest.param("disk", l2l, marks=pytest.mark.thorough),
        pytest.param("disk", resident, marks=pytest.mark.thorough),
    ],
)
def test_resuming_continues_identically(spec_for, tmp_path, method, tier):
    spec = spec_for(window=2, optimizer_tier=tier, save_every=2, steps=6)
    whole, expected = run(method, spec, tmp_path / "whole")
    assert_equals_plain(spec, whole, expected)

    class Killed(BaseException):
        pass

    def kill(action, step):
        if step == 5 and action.kind is Kind.BACKWARD:
            raise Killed

    with pytest.raises(Killed):
        run(method, spec, tmp_path / "killed", perturb=kill)
    resumed, parameters = run(method, spec, tmp_path / "killed")
    assert resumed.executor.step_numbers[0] == 4
    assert resumed.history.losses == whole.history.losses
    for name, value in expected.items():
        assert torch.equal(parameters[name], value), name


def test_resuming_under_another_plan(spec_for, tmp_path):
    """A checkpoint says nothing of windows: what one method saved another continues."""
    spec = spec_for(window=2, save_every=5, steps=5, lr_decay_steps=10)
    run(stronghold, spec, tmp_path)
    longer = spec.with_(steps=10, window=4, optimizer_tier="disk")
    training, parameters = run(stronghold, longer, tmp_path)
    assert training.executor.step_numbers == [5, 6, 7, 8, 9]
    assert_equals_plain(longer, training, parameters)


def poison(training: Training, at: int) -> None:
    """Let a gradient of one step hold no numbers."""

    def perturb(action, step):
        if action.name == "B4.0" and step == at and (4, 0) in training.engine._output_grads:
            training.engine._output_grads[4, 0][0].fill_(float("nan"))

    training.executor._perturb = perturb


@pytest.mark.parametrize("planner", [stronghold, l2l, resident])
def test_without_clipping_such_a_step_ends_the_run_and_leaves_the_checkpoint(
    planner, spec_for, tmp_path
):
    """Nobody waits for the norm, so that layers have been updated when it is known."""
    spec = spec_for(window=2, steps=4, clip=None, save_every=2)
    training = start(planner, spec, tmp_path)
    poison(training, 3)
    with pytest.raises(Diverged, match="gradients of unit 4 are not finite at step 3"):
        training.run(Silent())
    training.close()
    again, parameters = run(planner, spec, tmp_path)
    assert again.executor.step_numbers == [2, 3]
    assert_equals_plain(spec, again, parameters)


def test_a_step_whose_gradient_is_not_finite_is_skipped_everywhere(spec_for, tmp_path):
    spec = spec_for(window=2, steps=3)
    training = start(stronghold, spec, tmp_path)
    poison(training, 1)
    report = Silent()
    training.run(report)
    after = training.parameters()
    training.close()
    assert training.history.skipped == [1]
    assert training.engine.optimizer.done == 2
    assert ("skipped", {"step": 1, "grad_norm": "nan"}) in report.events
    assert all(torch.isfinite(value).all() for value in after.values())
    # The steps around it are exactly those of a run that lost nothing: step 1 saw the same weights.
    whole, _ = run(stronghold, spec, tmp_path / "whole")
    assert training.history.losses[:2] == whole.history.losses[:2]
    assert training.history.losses[2] != whole.history.losses[2]


def test_the_timeline_is_recorded(spec_for, tmp_path):
    spec = spec_for(window=2, steps=4)
    plan = stronghold.plan(spec, made_up_profile(spec))
    train_planned(spec, plan, Silent(), tmp_path)
    events = json.loads((tmp_path / "timeline.json").read_text())["events"]
    per_step = len(plan.schedule.actions)
    assert len(events) == 3 * per_step
    assert all(event["end_s"] >= event["start_s"] for event in events)


def test_a_budget_nothing_fits_in(spec_for, tmp_path):
    spec = spec_for(window=2, device_memory=10_000)
    with pytest.raises(DoesNotFit, match="device memory"):
        start(stronghold, spec, tmp_path)
    spec = spec_for(window=2, host_memory=10_000)
    with pytest.raises(DoesNotFit, match="host memory"):
        start(stronghold, spec, tmp_path)


def test_a_plan_is_told_where_it_runs_and_not_where_it_is_refused(spec_for, tmp_path, monkeypatch):
    """The plan of the smallest layout, which is refused, has a time of its steps, too."""
    monkeypatch.setattr("workbench.profile.store.profile_for", lambda s, *_: made_up_profile(s))
    for memory, times in ((None, 1), (BLOCK, 0)):
        report, folder = Silent(), tmp_path / "runs" / f"{memory}"
        folder.mkdir(parents=True)
        with suppress(DoesNotFit):
            stronghold.train(spec_for(window=2, steps=1, device_memory=memory), report, folder)
        assert [kind for kind, _ in report.events].count("plan") == times


def test_running_out_of_a_tier_that_the_plan_overrated(spec_for, tmp_path):
    """The host tier refuses an allocation even where the plan said that it fits."""
    spec = spec_for(window=2)
    plan = stronghold.plan(spec, made_up_profile(spec))
    with pytest.raises(OutOfMemory, match="host") as caught:
        Training(spec.with_(host_memory=10_000), plan, tmp_path)
    assert caught.value.tier == "host"


@pytest.mark.parametrize(
    ("policy", "tier", "clip"), paired(("recompute", "host"), ("host", "disk"), (0.5, None))
)
def test_the_host_holds_what_the_plan_says(spec_for, tmp_path, policy, tier, clip):
    spec = spec_for(
        window=2, resident=1, steps=2, activations=policy, optimizer_tier=tier, clip=clip
    )
    training, _ = run(stronghold, spec, tmp_path)
    measured = training.outcome("test").peak_bytes
    assert measured["host"] == training.plan.peak_bytes["host"]
    padding = 4096 * MODEL.layers
    assert 0 <= measured["disk"] - training.plan.peak_bytes["disk"] <= padding
