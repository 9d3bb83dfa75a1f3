"""DeepSpeed's pipeline engine trains as plain training does, in every shape, and is planned."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from baselines import deepspeed_pipe
from baselines.plain_training import train as train_plain
from tests.methods import plain
from tests.methods.harness import (
    LOSS_TOLERANCE,
    PARAMETER_TOLERANCE,
    Silent,
    assert_near,
    fork_ranks,
)
from tests.methods.plain import MODEL, made_up_profile
from tests.methods.test_zero import Evil
from workbench.core.sealed import write_sealed
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.runs.export import export
from workbench.runs.store import Store
from workbench.runtime.checkpoint.manifest import MANIFEST, Saved, publish
from workbench.schedule import validate
from workbench.schedule.schedule import DEVICE

BF16_TOLERANCE = 2e-3
"""Relative. Seen were 4e-5."""
PARAMETERS = make_model(MODEL).parameters_count()


def spec_for(**changes) -> RunSpec:
    values = {"batch": 8, "steps": 4, "lr_decay_steps": 20, "ranks": 2, "microbatches": 4}
    spec = plain.spec_for(**{"method": "deepspeed-pipe", **values, **changes})
    if spec.device == "cuda" and torch.cuda.device_count() < spec.ranks:
        pytest.skip(f"{spec.ranks} GPUs are needed")
    return spec


def later(**changes):
    return pytest.param(changes, marks=pytest.mark.thorough)


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    "changes",
    [
        {},
        later(ranks=4, replicas=2, microbatches=2),
        later(microbatches=1, activations="keep", stages="6 1"),
        later(ranks=3, clip=None, stages="4 1 2", model=replace(MODEL, tied=False)),
        later(ranks=2, replicas=2),
        pytest.param({"device": "cuda"}, marks=pytest.mark.gpu),
        pytest.param({"device": "cuda", "ranks": 4, "replicas": 2}, marks=pytest.mark.gpu),
    ],
    ids=lambda changes: ", ".join(changes) or "2x1",
)
def test_it_is_exact(changes, tmp_path, monkeypatch):
    """With clipping, dropout, decay groups, and a weight that two stages use."""
    spec = spec_for(**changes)
    if spec.device == "cpu":
        fork_ranks(monkeypatch)
    outcome = deepspeed_pipe.train(spec, Silent(), tmp_path)
    expected, _ = plain.judge(spec.with_(ranks=1, method="plain"))
    tolerance = LOSS_TOLERANCE if spec.device == "cpu" else 1e-4
    assert outcome.losses == pytest.approx(expected, rel=tolerance)
    stages = spec.ranks // spec.options.copies
    assert 16 * PARAMETERS / stages < outcome.peak_bytes[DEVICE]
    assert outcome.engine.startswith("PipelineEngine of deepspeed 0.")


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.thorough), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def test_bf16_follows_plain_bf16_and_goes_on_where_it_was(device, tmp_path):
    """On GPUs with compiled blocks, as there is no dropout."""
    model = replace(MODEL, dropout=0.0)
    spec = spec_for(model=model, device=device, dtype="bf16", microbatches=2, save_every=2)
    expected = train_plain(spec.with_(ranks=1, method="plain"), Silent(), tmp_path / "plain")
    outcome = deepspeed_pipe.train(spec, Silent(), tmp_path)
    assert outcome.losses == pytest.approx(expected.losses, rel=BF16_TOLERANCE)
    assert outcome.grad_norms == pytest.approx(expected.grad_norms, rel=1e-2)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000004")
    report = Silent()
    assert deepspeed_pipe.train(spec, report, tmp_path).losses == pytest.approx(outcome.losses)
    assert [kind for kind, _ in report.events].count("step") == 2


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    "changes",
    [{}, later(dtype="bf16", ranks=4, replicas=2), later(model=replace(MODEL, tied=False))],
    ids=lambda changes: ", ".join(changes) or "2x1",
)
def test_weights_are_exported(changes, tmp_path, monkeypatch):
    """A bf16 run's fp32 masters, of which each replica has a part, are what is exported."""
    spec = spec_for(steps=2, save_every=2, microbatches=2, **changes)
    fork_ranks(monkeypatch)
    run = tmp_path / "runs" / "run"
    deepspeed_pipe.train(spec, Silent(), run)
    write_sealed(run / "spec.json", spec.to_dict())
    made = export(run, tmp_path / "out", Store(tmp_path), dtype="fp32")
    assert (made.parameters, made.step) == (make_model(spec.model).parameters_count(), 2)
    found = load_file(tmp_path / "out" / "model.safetensors")
    _, weights = plain.judge(spec.with_(ranks=1, dtype="fp32", method="plain"))
    exact = spec.dtype == "fp32"
    assert_near(found, weights, PARAMETER_TOLERANCE if exact else 1e-2)
    for file in [] if exact else run.glob("checkpoints/*/layer_*.pt"):
        for label, rounded in torch.load(file, weights_only=True).items():
            own = [found[name] for name in found if name.endswith(label.removeprefix("module."))]
            assert any(torch.equal(value.bfloat16(), rounded) for value in own), label
            assert not any(torch.equal(value, rounded.float()) for value in own), label
    evil = tmp_path / "evil"
    (file, *_) = run.glob("checkpoints/*/layer_*.pt")
    saved = Saved.read(file.parent)
    torch.save(Evil(evil), file)
    (saved.path / MANIFEST).unlink()
    publish(saved.path.rename(saved.path.with_name(".again")), saved.manifest)
    if exact:
        with pytest.raises(OSError, match="step-00000002 cannot be read: layer_.*"):
            export(run, tmp_path / "again", Store(tmp_path))
    assert not evil.exists()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("stages", "replicas"), [(1, 2), (2, 1), (4, 2)])
def test_plans_are_proved(stages, replicas, dtype):
    spec = spec_for(batch=16, ranks=stages * replicas, replicas=replicas, dtype=dtype)
    found = deepspeed_pipe.plan(spec, made_up_profile(spec))
    validate(found.schedule)
    assert (found.schedule.num_ranks, found.schedule.replicas) == (stages, replicas)
    each = 16 if dtype == "fp32" else 6 + 12 / replicas
    assert found.peak_bytes[DEVICE] >= each * PARAMETERS / stages


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activations": "host"}, "activations cannot be 'host'"),
        ({"ranks": 6}, "6 stages need a block each, and the model has 5"),
        (
            {"stages": "3 3"},
            "stages '3 3' are 2 of 6 units; the ranks have 2 stages and the model 7",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        deepspeed_pipe.train(spec_for(**changes), Silent(), tmp_path)
    assert not (tmp_path / "ranks").exists()
