"""Checkpoints of torch's own training, which every method can read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from baselines import host_adam
from baselines.fsdp import run as fsdp_run
from baselines.plain_training import PlainTraining
from tests.forks.server import command
from tests.methods.harness import Silent
from tests.methods.plain import spec_for


def trained(spec, folder: Path) -> PlainTraining:
    training = PlainTraining(spec, Silent(), folder)
    training.run()
    return training


def test_trouble_of_one_stage_is_that_of_all(root: Path, tmp_path: Path) -> None:
    """A full disk at the first rank, at the second, twice, and a file that only that one reads."""
    ranks = [
        subprocess.Popen(
            command("tests.unit.baselines.stages", str(rank), str(tmp_path)),
            cwd=root, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    first, second = (process.communicate(timeout=120)[0].splitlines() for process in ranks)
    assert [process.returncode for process in ranks] == [0, 0]
    reason = "the checkpoint step-00000000 was not written: [Errno 28] No space left on device"
    assert first[:2] == [f"refused: {reason}"] * 2
    assert first[3:5] == ["step-00000000 step-00000001", "step-00000001 step-00000002"]
    assert first[5:] == ["True", second[1]]
    assert second[0] == "True"
    assert second[1].startswith("damaged: the checkpoint step-00000002 cannot be read: ")


def test_what_was_saved_before_any_update_is_taken_up(tmp_path, monkeypatch) -> None:
    """Every gradient so far was no number: there are no moments yet."""
    spec = spec_for(method="plain", steps=3, lr_decay_steps=20, save_every=1)
    training = PlainTraining(spec, Silent(), tmp_path / "poisoned")
    real = training._update

    def poisoned(lr: float) -> torch.Tensor:
        for weight in training.masters if not training.history.losses else ():
            weight.grad.fill_(float("nan"))
        return real(lr)

    monkeypatch.setattr(training, "_update", poisoned)
    training.run()
    assert training.history.skipped == [0]
    first = spec.with_(steps=1)
    again = PlainTraining(first, Silent(), tmp_path / "again")
    again._update = lambda lr: torch.tensor(float("nan"))
    again.run()
    resumed = trained(spec, tmp_path / "again")
    assert resumed.history.losses == training.history.losses
    assert resumed.history.skipped == [0]


@pytest.mark.deepspeed
def test_fsdp_with_deepspeeds_adam_is_resumed_exactly(tmp_path, monkeypatch) -> None:
    from baselines import deepspeed_ops

    deepspeed_ops.activate("cpu")
    chosen = (host_adam.DeepSpeedAdamW, "DeepSpeed's")
    monkeypatch.setattr(fsdp_run, "fastest", lambda spec, device: chosen)
    spec = spec_for(method="fsdp", steps=5, lr_decay_steps=20, save_every=3)

    def run(spec, folder: Path) -> fsdp_run.FsdpTraining:
        with fsdp_run.single_rank(torch.device("cpu")):
            training = fsdp_run.FsdpTraining(spec, Silent(), folder)
            training.run()
            return training

    whole = run(spec, tmp_path / "whole")
    run(spec.with_(steps=3), tmp_path / "run")
    assert run(spec, tmp_path / "run").history.losses == whole.history.losses
