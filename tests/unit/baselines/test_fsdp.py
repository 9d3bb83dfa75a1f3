"""FSDP2 with its CPU offload: exact, clipped exactly, within its budgets, and gone when it ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import distributed

from baselines import deepspeed_ops, fsdp, host_adam
from baselines.adamw import ClippedAdamW, global_norm
from baselines.blocks import body_of, install
from baselines.fsdp import run as fsdp_run
from baselines.fsdp.planner import kept_blocks
from baselines.plain_training import PlainTraining
from tests.methods.harness import LOSS_TOLERANCE, Silent, assert_judged
from tests.methods.plain import MODEL, judge, spec_for
from tests.unit.baselines.test_zero_plan import profile
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.runtime.memory.tiers import OutOfMemory

BASE = spec_for(method="fsdp", microbatches=2, steps=8)
PARAMETERS = make_model(MODEL).parameters_count()
CPU = torch.device("cpu")


def trained(spec: RunSpec, folder: Path) -> fsdp_run.FsdpTraining:
    """A training that has run; its process group is gone."""
    with fsdp_run.single_rank(torch.device(spec.device)):
        training = fsdp_run.FsdpTraining(spec, Silent(), folder)
        training.run()
        training.final = training.parameters()
        return training


@pytest.mark.parametrize(
    "changes", [{}, {"activations": "keep"}, {"microbatches": 1}, {"clip": None}], ids=str
)
def test_it_trains_as_plain_training_does(tmp_path, changes):
    """With dropout, accumulation, clipping, decay groups, a schedule and tied embeddings."""
    spec = BASE.with_(**changes)
    training = trained(spec, tmp_path)
    assert_judged(spec, training.history.losses, training.final)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_losses_and_norms_are_those_of_the_plain_baseline(tmp_path, dtype):
    spec = BASE.with_(dtype=dtype, microbatches=1)
    ours = trained(spec, tmp_path / "fsdp")
    plain = PlainTraining(spec, Silent(), tmp_path / "plain")
    plain.run()
    assert ours.history.losses == pytest.approx(plain.history.losses, rel=1e-6)
    assert ours.history.grad_norms == pytest.approx(plain.history.grad_norms, rel=1e-5)
    assert max(ours.history.grad_norms) > spec.clip


def test_an_untied_head_is_trained_too(tmp_path):
    untied = ModelSpec(layers=2, hidden=32, heads=4, seq=16, vocab=256, tied=False)
    spec = BASE.with_(model=untied, steps=4)
    training = trained(spec, tmp_path)
    assert training.history.losses == pytest.approx(judge(spec)[0], rel=LOSS_TOLERANCE)


def test_blocks_can_be_compiled_inside_it(tmp_path):
    sharp = ModelSpec(layers=3, hidden=32, heads=4, seq=16, vocab=256)
    spec = BASE.with_(model=sharp, steps=4)
    with fsdp_run.single_rank(CPU):
        training = fsdp_run.FsdpTraining(spec, Silent(), tmp_path)
        body = body_of(training.whole)
        install(training.whole, torch.compile(body, fullgraph=True, backend="aot_eager"))
        training.run()
    assert training.history.losses == pytest.approx(judge(spec)[0], rel=LOSS_TOLERANCE)


def test_the_process_group_goes_with_the_run(tmp_path):
    outcome = fsdp.train(BASE.with_(steps=2), Silent(), tmp_path / "done")
    assert len(outcome.losses) == 2
    assert not distributed.is_initialized()
    with pytest.raises(OutOfMemory):
        fsdp.train(BASE.with_(host_memory=1000), Silent(), tmp_path / "failed")
    assert not distributed.is_initialized()


def test_the_host_holds_16_bytes_a_parameter_and_no_run_starts_on_less(tmp_path):
    spec = BASE.with_(steps=2, host_memory=16 * PARAMETERS)
    outcome = fsdp.train(spec, Silent(), tmp_path / "enough")
    assert outcome.peak_bytes == {"device": None, "host": 16 * PARAMETERS, "disk": 0}
    assert any("not measured on a CPU" in note for note in outcome.notes)
    with pytest.raises(OutOfMemory, match="the host tier is out of memory: training by FSDP2"):
        fsdp.train(spec.with_(host_memory=16 * PARAMETERS - 1), Silent(), tmp_path / "short")


def test_a_resumed_run_ends_where_the_whole_one_does(tmp_path):
    spec = BASE.with_(steps=7, lr_decay_steps=12, save_every=4)
    whole = trained(spec, tmp_path / "whole")
    trained(spec.with_(steps=4), tmp_path / "run")
    resumed = trained(spec, tmp_path / "run")
    assert ("resumed", {"path": "step-00000004", "next_step": 4}) in resumed.report.events
    assert resumed.history.losses == whole.history.losses
    assert all((value == whole.final[name]).all() for name, value in resumed.final.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activations": "host"}, "activations cannot be 'host', use 'recompute'"),
        ({"optimizer_tier": "disk"}, "with fsdp it has no meaning.*zero-infinity"),
        ({"device_memory": 10**9}, "device_memory is 1000000000, which cannot be kept on a cpu"),
    ],
    ids=str,
)
def test_what_fsdp_does_not_offer_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        fsdp.train(BASE.with_(**changes), Silent(), tmp_path)


@pytest.mark.parametrize(("layers", "seconds", "measured"), [(32, 0.126, 5.07), (78, 0.296, 2.31)])
def test_the_prediction_is_what_was_measured_on_an_h200(layers, seconds, measured):
    model = ModelSpec(layers=layers, hidden=2048, heads=16, seq=1024)
    spec = RunSpec(method="fsdp", model=model, batch=4, device="cuda", dtype="bf16")
    made = profile(model, seconds, weight_bytes=2)
    plan = fsdp.plan(spec.with_(device_memory=2 << 30), made)  # nothing stays, as by default
    assert 4 / plan.step_seconds == pytest.approx(measured, rel=0.1)
    layered = make_model(model)
    parameters = [layered.unit_parameters(unit) for unit in range(layers + 2)]
    assert plan.moved_bytes["store"] == 4 * sum(parameters)
    roomy = fsdp.plan(spec, made)
    blocks = 4 * sum(parameters[1:-1])
    assert plan.moved_bytes["load"] - roomy.moved_bytes["load"] == pytest.approx(blocks, rel=0.02)
    assert roomy.step_seconds < 0.95 * plan.step_seconds


def test_as_many_blocks_keep_their_weights_as_there_is_room_for():
    model = ModelSpec(layers=78, hidden=2048, heads=16, seq=1024)
    parameters = [make_model(model).unit_parameters(unit) for unit in range(80)]

    def kept(gib: int, batch: int) -> int:
        spec = RunSpec(method="fsdp", model=model, batch=batch, dtype="bf16")
        return kept_blocks(spec, parameters, gib << 30)

    assert [kept(gib, 4) for gib in (2, 8, 32)] == [0, 38, 78]
    assert [kept(gib, 16) for gib in (8, 16, 32)] == [0, 56, 78]


# -- the host's AdamW ------------------------------------------------------------------------------


@pytest.mark.deepspeed
def test_both_host_updates_are_the_same_update():
    deepspeed_ops.activate("cpu")
    spec = BASE.with_(clip=0.5)
    start = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (7, 4096)]
    optimizers = []
    for maker in (ClippedAdamW, host_adam.DeepSpeedAdamW):
        weights = [weight.clone() for weight in start]
        groups = [
            {"params": weights[:1], "weight_decay": 0.1},
            {"params": weights[1:], "weight_decay": 0.0},
        ]
        optimizers.append((maker(groups, spec), weights))
    for scale in (1.0, 1e-4, float("nan"), 0.5):  # clipped, not clipped, left out, clipped
        for optimizer, weights in optimizers:
            for weight in weights:
                weight.grad = torch.full_like(weight, scale)
            optimizer.step(0.01, global_norm([weight.grad for weight in weights]))
            assert all(weight.grad is None for weight in weights)
    (_, ours), (_, theirs) = optimizers
    for a, b, before in zip(ours, theirs, start, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(a, before, atol=1e-3)


def test_pinned_memory_is_rounded_up_to_powers_of_two():
    model = make_model(ModelSpec(layers=1, hidden=96, heads=4, seq=16, vocab=100))
    exact, pinned = (fsdp_run.host_bytes(model, pinned=pinned) for pinned in (False, True))
    assert exact == 16 * model.parameters_count()
    assert 1.0 < pinned / exact < 1.5


def test_without_a_gpu_the_host_update_is_torchs():
    maker, words = host_adam.fastest(BASE, CPU)
    assert maker is ClippedAdamW
    assert words == "torch's fused AdamW"


def test_an_update_is_timed(monkeypatch):
    monkeypatch.setattr(host_adam, "TRIAL_ELEMENTS", 1 << 12)
    assert host_adam.updates_per_s(ClippedAdamW, BASE) > 0


@pytest.mark.parametrize("torchs", [1e9, 3e9])
def test_where_somebody_else_clips_the_faster_one_is_told(monkeypatch, torchs):
    rates = {ClippedAdamW: torchs, host_adam.DeepSpeedAdamW: 2e9}
    monkeypatch.setattr(host_adam, "updates_per_s", lambda maker, spec, clips: rates[maker])
    faster, words = host_adam.torchs_is_faster(BASE)
    assert faster == (torchs > 2e9)
    assert words.endswith("DeepSpeed's 2.00 G parameters/s")


@pytest.mark.deepspeed
def test_both_are_timed_without_a_clip(monkeypatch):
    deepspeed_ops.activate("cpu")
    monkeypatch.setattr(host_adam, "TRIAL_ELEMENTS", 1 << 12)
    faster, words = host_adam.torchs_is_faster(BASE)
    torchs, theirs = map(float, re.findall(r"([0-9.]+) G parameters/s", words))
    assert min(torchs, theirs) > 0
    assert faster == (torchs > theirs) or torchs == theirs  # as rounded


# -- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_gpu_weights_come_once_or_twice_and_gradients_leave_once(tmp_path, monkeypatch):
    # Beside 0.8 GB of states, matrix products' workspaces are small.
    model = ModelSpec(layers=4, hidden=1024, heads=16, seq=128, vocab=512)
    spec = BASE.with_(
        model=model, device="cuda", dtype="bf16", microbatches=1, steps=6, device_memory=2**32
    )
    outcome = fsdp.train(spec, Silent(), tmp_path / "gpu")
    whole, blocks = make_model(model).parameters_count(), 4 * make_model(model).unit_parameters(1)
    assert outcome.moved_bytes["store"] == pytest.approx(4 * whole, rel=0.01)
    assert outcome.moved_bytes["load"] == pytest.approx(4 * whole, rel=0.01)
    monkeypatch.setattr(fsdp_run, "kept_blocks", lambda *_: 0)
    tight = fsdp.train(spec, Silent(), tmp_path / "tight")
    assert tight.losses == outcome.losses
    assert tight.moved_bytes["load"] == pytest.approx(4 * (whole + blocks), rel=0.01)
    assert 0 < outcome.peak_bytes["device"] < 16 * whole
    assert outcome.peak_bytes["host"] >= 16 * whole
    assert "compiled blocks" in outcome.engine
    plain = PlainTraining(spec.with_(method="plain"), Silent(), tmp_path / "plain")
    plain.run()
    assert outcome.losses == pytest.approx(plain.history.losses, rel=2e-3)
