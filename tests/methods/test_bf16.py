"""bf16 working weights with fp32 masters: every placement computes the same, near fp32 training."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from baselines import l2l
from tests.methods.harness import run
from workbench.methods import stronghold
from workbench.methods.offload import resident


@pytest.fixture(scope="module")
def everything_stays(tmp_path_factory):
    """Losses and parameters of a run whose layers all stay on the device, for a spec."""

    @cache
    def trained(spec):
        training, parameters = run(resident, spec, tmp_path_factory.mktemp("plain"))
        return training.history.losses, parameters

    return lambda spec: trained(spec.with_(method="megatron-lm", window="auto"))


@pytest.mark.parametrize(
    ("method", "window", "tier"),
    [
        (stronghold, 2, "disk"),
        (stronghold, 4, "host"),
        (l2l, 2, "disk"),
        pytest.param(stronghold, 2, "host", marks=pytest.mark.thorough),
        pytest.param(stronghold, 4, "disk", marks=pytest.mark.thorough),
        pytest.param(l2l, 2, "host", marks=pytest.mark.thorough),
    ],
)
def test_placement_makes_no_difference(spec_for, everything_stays, tmp_path, method, window, tier):
    # eps: a key's bias has no gradient but rounding, which AdamW would blow up to full steps.
    spec = spec_for(dtype="bf16", steps=10, window=window, eps=1e-5)
    losses, expected = everything_stays(spec)
    training, parameters = run(method, spec.with_(optimizer_tier=tier), tmp_path)
    # Host and device AdamW agree to the last bits they should; a bf16 rounding may tip over.
    for ours, theirs in zip(training.history.losses, losses, strict=True):
        assert abs(ours - theirs) <= 2e-3 * abs(theirs)
    for name, value in expected.items():
        assert torch.allclose(parameters[name], value, atol=2e-3), name
    assert all(value.dtype == torch.float32 for value in parameters.values())


def test_it_trains_as_fp32_does(spec_for, tmp_path):
    low, _ = run(stronghold, spec_for(dtype="bf16", window=2), tmp_path / "bf16")
    full, _ = run(stronghold, spec_for(window=2), tmp_path / "fp32")
    for ours, theirs in zip(low.history.losses, full.history.losses, strict=True):
        assert abs(ours - theirs) <= 0.02 * abs(theirs)


def test_transfers_are_half_and_the_host_holds_14_bytes(spec_for, tmp_path):
    """Of a streamed parameter: 2 bytes of weights, 2 of gradients, 10 of moments and the rest."""
    spec = spec_for(dtype="bf16", window=2, resident=0, steps=3)
    training, _ = run(stronghold, spec, tmp_path)
    block = training.flats[1].numel
    layers = spec.model.layers
    outcome = training.outcome("test")
    assert outcome.moved_bytes["store"] == layers * block * 2
    assert outcome.peak_bytes["host"] == layers * block * 14
