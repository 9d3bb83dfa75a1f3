"""Checkpoints of torch's own training, which every method can read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from baselines import host_adam
from baselines.fsdp import run as fsdp_run
from baselines.plain_training import Training
from tests.methods.harness import Silent
from tests.methods.plain import spec_for

STAGES = """
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from baselines import states
from baselines.adamw import ClippedAdamW
from tests.methods.plain import spec_for
from workbench.model import make_model
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.manifest import Manifest, Saved

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
spec = spec_for(method="gpipe")
model = make_model(spec.model)
own = range(3) if rank == 0 else range(3, model.num_units)
masters = {unit: {n: torch.rand(s) for n, s in model.shapes(unit).items()} for unit in own}
flat = [master for unit in masters.values() for master in unit.values()]
holder = states.StageHolder(model, masters, ClippedAdamW([{"params": flat}], spec))
real = states.write_unit


def full(*_):
    states.write_unit = real
    raise OSError(28, "No space left on device")


def save():
    done = {"next_step": step, "updates_done": step, "skipped": [], "continues": {}}
    numbers = dict.fromkeys(("losses", "step_seconds", "grad_norms"), [1.0] * step)
    try:
        checkpoint.save(folder, holder, Manifest(**done, **numbers), None, [])
        print(*sorted(path.name for path in folder.glob("step-*")))
    except OSError as error:
        print("refused:", error)


for step, broken in ((0, 0), (0, 1), (0, None), (1, None), (2, 1)):
    states.write_unit = full if rank == broken else real
    holder.save(save)
before = [master.clone() for master in flat]
for master in flat:
    master.zero_()
saved = Saved.read(folder / "step-00000002")
holder.restore(saved)
print(all((a == b).all() for a, b in zip(flat, before)))
dist.barrier()
if rank == 1:
    (saved.path / "unit-00004.safetensors").write_bytes(b"garbled")
dist.barrier()
try:
    holder.restore(saved)
except OSError as error:
    print("damaged:", error)
dist.barrier()
sys.stdout.flush()
os._exit(0)  # as ranks do: a process group whose peer is gone may abort in its destructor
"""


def trained(spec, folder: Path) -> Training:
    training = Training(spec, Silent(), folder)
    training.run()
    return training


def test_trouble_of_one_stage_is_that_of_all(root: Path, tmp_path: Path) -> None:
    """A full disk at the first rank, at the second, twice, and a file that only that one reads."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", STAGES, str(rank), str(tmp_path)],
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
    training = Training(spec, Silent(), tmp_path / "poisoned")
    real = training._update

    def poisoned(lr: float) -> torch.Tensor:
        for weight in training.masters if not training.history.losses else ():
            weight.grad.fill_(float("nan"))
        return real(lr)

    monkeypatch.setattr(training, "_update", poisoned)
    training.run()
    assert training.history.skipped == [0]
    first = spec.with_(steps=1)
    again = Training(first, Silent(), tmp_path / "again")
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

    def run(spec, folder: Path) -> fsdp_run.Training:
        with fsdp_run.single_rank(torch.device("cpu")):
            training = fsdp_run.Training(spec, Silent(), folder)
            training.run()
            return training

    whole = run(spec, tmp_path / "whole")
    run(spec.with_(steps=3), tmp_path / "run")
    assert run(spec, tmp_path / "run").history.losses == whole.history.losses
