"""Every synchronous method, under every setting, is plain training: the contract of the house."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import pytest
import torch

from baselines import l2l
from tests.methods.harness import Silent, assert_equals_plain, half, paired, run
from tests.methods.plain import MODEL, made_up_profile
from workbench.methods import stronghold
from workbench.methods.offload import resident
from workbench.schedule.action import Kind
from workbench.training.run import Training

WINDOWS = range(2, MODEL.layers + 1)
TIERS = ("host", "disk")
POLICIES = ("recompute", "host", "keep")


def grid():
    """All windows, tiers and policies; workers, residency, accumulation and clipping take turns."""
    cycles = itertools.cycle(itertools.product((1, 2, 3), ("auto", 0, 1), (1, 2, 4), (0.5, None)))
    for window, tier, policy in itertools.product(WINDOWS, TIERS, POLICIES):
        workers, residents, micro, clip = next(cycles)
        for _ in range(4):  # coprime with the cycle's length, so that all combinations come round
            next(cycles)
        yield {
            "window": window, "optimizer_tier": tier, "activations": policy,
            "host_workers": workers, "resident": residents, "microbatches": micro, "clip": clip,
        }  # fmt: skip


def delays(choose, spec):
    """Delays half of all actions, on a GPU also on their streams and not in their threads."""

    def delay(action, step):
        if choose.random() < 0.5:
            time.sleep(choose.random() * 1.5e-3)
        if spec.device == "cuda" and choose.random() < 0.5:
            torch.cuda._sleep(int(choose.random() * 1e7))

    return delay


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(one, marks=[] if number % 4 == 0 else [pytest.mark.thorough])
        for number, one in enumerate(grid())
    ],
    ids=str,
)
def test_stronghold(spec_for, tmp_path, settings):
    spec = spec_for(**settings)
    training, parameters = run(stronghold, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)


@pytest.mark.parametrize(
    ("pulled", "residents", "kept", "policy", "micro", "clip"),
    [
        (5, 0, 0, "recompute", 1, 0.5),
        (4, 0, 2, "auto", 2, None),
        (3, 1, 5, "auto", 1, 0.5),
        (2, 0, 0, "host", 4, 0.5),
        (1, 2, 3, "auto", 2, 1e6),
        (0, 2, 2, "auto", 1, None),
    ],
)
def test_states_that_visit_the_device(
    spec_for, tmp_path, pulled, residents, kept, policy, micro, clip
):
    """Weights stay, states come and go; some layers keep activations, others recompute."""
    spec = spec_for(
        window=2, pulled=pulled, resident=residents, kept=kept, activations=policy,
        microbatches=micro, clip=clip,
    )  # fmt: skip
    training, parameters = run(stronghold, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    block = training.flats[1].numel
    visits = 2 * pulled * 8 * block  # two moments, there and back
    moved = training.outcome("test").moved_bytes
    assert moved["load"] + moved["store"] >= visits
    if policy == "auto" and residents + pulled == MODEL.layers:
        assert moved["load"] + moved["store"] == visits


@pytest.mark.parametrize(
    ("clip", "pulled", "residents", "disk"),
    half((c, *s) for c in (0.5, 1e6, None) for s in [(0, 0, 1), (0, 1, 3), (1, 1, 2)]),
)
def test_states_of_some_layers_on_the_disk(spec_for, tmp_path, pulled, residents, disk, clip):
    """Device, host and disk at once, each with the states of some layers."""
    spec = spec_for(
        window=2, pulled=pulled, resident=residents, optimizer_tier="auto", disk_layers=disk,
        clip=clip,
    )  # fmt: skip
    training, parameters = run(stronghold, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    states = disk * 8 * training.flats[1].numel
    outcome = training.outcome("test")
    assert outcome.moved_bytes["read"] == outcome.moved_bytes["write"] == states
    assert outcome.peak_bytes["disk"] >= states


@pytest.mark.parametrize("seed", half(range(4)))
def test_stronghold_with_random_delays(spec_for, tmp_path, seed):
    """Delays of transfers and updates do not change the result."""
    choose = random.Random(seed)
    spec = spec_for(
        window=choose.choice(WINDOWS),
        optimizer_tier=choose.choice(TIERS),
        activations=choose.choice(POLICIES),
        host_workers=choose.choice((1, 2, 3)),
        resident=choose.choice(("auto", 0)),
        microbatches=choose.choice((1, 2)),
        clip=choose.choice((0.5, None)),
    )
    training, parameters = run(stronghold, spec, tmp_path, perturb=delays(choose, spec))
    assert_equals_plain(spec, training, parameters)


@pytest.mark.parametrize("seed", half(range(4)))
def test_all_tiers_with_random_delays(spec_for, tmp_path, seed):
    """Resident, visiting, streamed and on the disk, guessed or not, with everything late."""
    choose = random.Random(100 + seed)
    spec = spec_for(
        window=2,
        resident=choose.choice((0, 1)),
        pulled=choose.choice((1, 2)),
        optimizer_tier="auto",
        disk_layers=choose.choice((0, 1)),
        activations="auto",
        kept=choose.choice((0, 2)),
        clip=choose.choice((0.5, 1e6)),
    )
    training, parameters = run(stronghold, spec, tmp_path, perturb=delays(choose, spec))
    assert_equals_plain(spec, training, parameters)


@pytest.mark.parametrize(
    ("clip", "micro", "policy"), paired((0.5, None), (1, 4), ("recompute", "host"))
)
def test_l2l(spec_for, tmp_path, clip, micro, policy):
    spec = spec_for(method="l2l", clip=clip, microbatches=micro, activations=policy)
    assert_equals_plain(spec, *run(l2l, spec, tmp_path))


@pytest.mark.parametrize("clip", [0.5, None])
@pytest.mark.parametrize("policy", ["recompute", "keep"])
def test_resident(spec_for, tmp_path, clip, policy):
    spec = spec_for(method="megatron-lm", clip=clip, microbatches=2, activations=policy)
    assert_equals_plain(spec, *run(resident, spec, tmp_path))


@pytest.mark.parametrize(("layers", "policy", "tier"), paired((1, 2), POLICIES, TIERS))
def test_models_smaller_than_any_ring(spec_for, tmp_path, layers, policy, tier):
    """One or two layers, more workers than layers, and every sample a micro-batch of its own."""
    model = replace(MODEL, layers=layers)
    spec = spec_for(
        model=model,
        window=2,
        resident=0,
        optimizer_tier=tier,
        activations=policy,
        host_workers=3,
        microbatches=4,
        clip=None if policy == "host" else 0.5,
    )
    assert_equals_plain(spec, *run(stronghold, spec, tmp_path))


def test_everything_resident_and_nothing_to_stream(spec_for, tmp_path):
    spec = spec_for(window=MODEL.layers, resident=MODEL.layers, optimizer_tier="disk")
    training, parameters = run(stronghold, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    assert set(training.outcome("test").moved_bytes.values()) == {0}


def test_untied_embeddings(spec_for, tmp_path):
    spec = spec_for(model=replace(MODEL, tied=False), window=3)
    assert_equals_plain(spec, *run(stronghold, spec, tmp_path))


def test_a_clip_that_never_fires_changes_nothing(spec_for, tmp_path):
    spec = spec_for(window=2, clip=1e9)
    training, parameters = run(stronghold, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    assert_equals_plain(spec.with_(clip=None), training, parameters)


def test_a_judge_that_can_say_no(spec_for, tmp_path):
    """Another learning rate is not plain training, and the comparison says so."""
    training, parameters = run(stronghold, spec_for(window=2, lr=1.1e-3), tmp_path)
    with pytest.raises(AssertionError):
        assert_equals_plain(spec_for(window=2), training, parameters)


def test_gradients_that_a_gpu_joins_for_an_update(spec_for, tmp_path):
    """Planned for a GPU, run here: layers that stay are updated from one tensor, in memory that the
    plan has for it; at its peak it needs no more."""
    spec = spec_for(window=2, resident=2, clip=0.5)
    profile = made_up_profile(spec)
    profile = replace(profile, hardware=replace(profile.hardware, device="cuda"))
    made = stronghold.plan(spec, profile)
    joined = [a for a in made.schedule.actions if a.kind is Kind.UPDATE and a.takes]
    assert {action.unit for action in joined} == {1, 2}
    training = Training(spec, made, tmp_path)
    try:
        training.run(Silent())
        parameters = training.parameters()
    finally:
        training.close()
    assert_equals_plain(spec, training, parameters)
    assert made.peak_bytes == stronghold.plan(spec, made_up_profile(spec)).peak_bytes
