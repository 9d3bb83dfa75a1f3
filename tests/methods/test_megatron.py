"""megatron-core's GPT, with our weights under its names, trains as plain training does.

On a CPU with activations kept, since its recomputation asks for CUDA; the rest is the same.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch

from baselines.megatron.run import why_not_core
from tests.methods.harness import assert_judged
from tests.methods.plain import MODEL, judge, spec_for
from tests.methods.test_zero import Runs
from workbench.core.model_spec import ModelSpec

TIED = replace(MODEL, dropout=0.0, vocab=257)
"""A number of words that Megatron-LM pads."""
BASE = spec_for(method="megatron-lm", model=TIED, microbatches=2, steps=15, activations="keep")
SPECS = {
    "all": BASE,
    "untied": BASE.with_(model=replace(TIED, tied=False), clip=None, steps=5),
    "bf16": BASE.with_(dtype="bf16"),
    "whole": BASE.with_(steps=8),
    "killed": BASE.with_(steps=4, save_every=4, lr_decay_steps=8),
    "resumed": BASE.with_(steps=8, save_every=4, lr_decay_steps=8),
}

needs_core = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    runs = Runs(tmp_path_factory.mktemp("megatron"), "megatron")
    runs.start(SPECS, shared={"resumed": "killed"})
    return runs


@needs_core
@pytest.mark.parametrize("name", ["all", "untied"])
def test_megatron_core_trains_as_plain_training_does(runs, name):
    result, after = runs.result(name), runs.after(name)
    assert_judged(SPECS[name], result["losses"], after)
    assert result["engine"].startswith("megatron-core 0.")


@needs_core
def test_every_parameter_moves(runs):
    before, after = runs.before("all"), runs.after("all")
    for label, value in before.items():
        assert float((after[label] != value).float().mean()) > 0.95, label


@needs_core
def test_bf16_follows_fp32_from_the_same_masters(runs):
    losses, expected = runs.result("bf16")["losses"], judge(BASE)[0]
    assert all(abs(a - b) < 0.01 * b for a, b in zip(losses, expected, strict=True))
    assert losses != expected
    for label, value in runs.before("all").items():
        assert torch.equal(runs.before("bf16")[label], value), label


@needs_core
def test_resuming_continues_identically(runs):
    resumed, whole = runs.result("resumed"), runs.result("whole")
    assert "resumed" in resumed["events"]
    assert resumed["events"].count("step") == 4
    assert resumed["losses"] == whole["losses"]


@pytest.mark.gpu
@needs_core
def test_on_a_gpu(tmp_path):
    """With its own recomputation and fusions."""
    model = ModelSpec(layers=2, hidden=256, heads=4, seq=64, vocab=257)
    spec = BASE.with_(model=model, device="cuda", activations="recompute")
    assert why_not_core(spec) is None
    runs = Runs(tmp_path, "megatron")
    runs.start({"gpu": spec})
    result, expected = runs.result("gpu"), judge(spec.with_(device="cpu"))[0]
    for ours, plain in zip(result["losses"], expected, strict=True):
        assert abs(ours - plain) <= 1e-4 * plain
    assert result["peak_bytes"]["device"] > 16 * model.parameters


def test_the_reasons_for_plain_resident_training():
    assert "CUDA devices only" in why_not_core(BASE)
