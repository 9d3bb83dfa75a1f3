"""Every synchronous method, under every setting, is plain training: the contract of the house."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
import torch

from baselines import l2l
from tests.exactness.pairs import covering
from tests.methods.harness import Silent, assert_equals_plain, paired, run
from tests.methods.plain import MODEL, made_up_profile
from workbench.methods import stronghold
from workbench.methods.offload import resident
from workbench.schedule.action import Kind
from workbench.training.run import Training

POLICIES = ("recompute", "host", "keep")
ANY = {
    "layers": (MODEL.layers,), "window": (2,), "resident": (0,), "pulled": (0,), "kept": (0,),
    "optimizer_tier": ("host",), "disk_layers": (0,), "activations": POLICIES,
    "host_workers": (1, 3), "microbatches": (1, 2), "clip": (0.5, None),
    "late": (False, True), "ends": ("device", "host"),
}  # fmt: skip
SMALL = {"layers": (1, 2), "window": (2,), "host_workers": (3,), "microbatches": (4,)}
AUTO = {"activations": ("auto",), "kept": (0, 2), "clip": (0.5, 1e6, None)}
GRIDS = [
    ANY | {"window": (2, 3, 5), "resident": ("auto", 0, 1), "optimizer_tier": ("host", "disk")},
    ANY | {"optimizer_tier": ("host", "disk")} | SMALL,
    ANY | AUTO | {"resident": (0, 2), "pulled": (1, 3, 5)},
    ANY | {"pulled": (2,), "microbatches": (4,)},
    ANY | AUTO | {"resident": (0, 1), "pulled": (0, 1, 2), "optimizer_tier": ("auto",),
                  "disk_layers": (1, 2, 3)},
]  # fmt: skip
"""Layers that stream; fewer of them than any ring; states that visit the device; all tiers."""


def placed(one) -> bool:
    """Whether there are so many layers."""
    apart = one["pulled"] + one["disk_layers"]
    return apart == 0 or apart + one["resident"] <= one["layers"]


def delays(choose, spec):
    """Delays half of all actions, on a GPU also on their streams and not in their threads."""

    def delay(action, step):
        if choose.random() < 0.5:
            time.sleep(choose.random() * 1.5e-3)
        if spec.device == "cuda" and choose.random() < 0.5:
            torch.cuda._sleep(int(choose.random() * 1e7))

    return delay


@pytest.mark.parametrize(
    "settings", covering(GRIDS, placed, lambda one: 1 + one["microbatches"], seed=89), ids=str
)
def test_stronghold(spec_for, tmp_path, settings):
    """Device, host and disk, each with the states of some layers, with everything late or not."""
    how = {"model": replace(MODEL, layers=settings["layers"])}
    how |= {name: value for name, value in settings.items() if name not in ("layers", "late")}
    how |= {} if how["activations"] == "auto" else {"kept": "auto"}
    how |= {} if how["optimizer_tier"] == "auto" else {"disk_layers": "auto"}
    spec = spec_for(**how)
    perturb = delays(random.Random(str(settings)), spec) if settings["late"] else None
    training, parameters = run(stronghold, spec, tmp_path, perturb=perturb)
    assert_equals_plain(spec, training, parameters)
    outcome, states = training.outcome("test"), 8 * training.flats[1].numel  # both moments
    moved, disk = outcome.moved_bytes, settings["disk_layers"]
    visits = 2 * settings["pulled"] * states  # there and back
    assert moved["load"] + moved["store"] >= visits
    alone = how["activations"] == "auto" and how["ends"] == "device"
    if alone and settings["pulled"] + settings["resident"] == MODEL.layers:
        assert moved["load"] + moved["store"] == visits
    if disk:
        assert moved["read"] == moved["write"] == disk * states
        assert outcome.peak_bytes["disk"] >= disk * states


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


def test_everything_resident_and_nothing_to_stream(spec_for, tmp_path):
    spec = spec_for(window=MODEL.layers, resident=MODEL.layers, optimizer_tier="disk")
    training, parameters = run(stronghold, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    assert set(training.outcome("test").moved_bytes.values()) == {0}


def test_untied_embeddings(spec_for, tmp_path):
    for ends in ("device", "host"):
        spec = spec_for(model=replace(MODEL, tied=False), window=3, ends=ends)
        assert_equals_plain(spec, *run(stronghold, spec, tmp_path / ends))


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
