"""A worker of a job that trains the net; files tell it how far to go, and when to die."""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch

from tests.varuna import net
from tests.varuna.cases import CLIP, share_of
from workbench.methods.varuna import Profiler, Varuna

parser = argparse.ArgumentParser()
for name in ("rank", "local_rank", "chunk_size", "batch-size", "resume_step"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--stage_to_rank_map")
parser.add_argument("--profiling")
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--every", type=int, required=True)
parser.add_argument("--to", type=Path, required=True)
given = parser.parse_args()
torch.set_num_threads(1)
if given.profiling:
    Profiler(net.net(), net.batch, "cpu", out_folder=given.profiling).profile_all(
        [1, 4], anew=False
    )
    raise SystemExit


def fate(now: str) -> None:
    """Die, or stand still, where a file of this rank says so."""
    mark = given.to / f"fate-{given.rank}"
    if mark.exists() and mark.read_text() in (now, f"STOP {now}"):
        stops = mark.read_text().startswith("STOP")
        mark.unlink()
        os.kill(os.getpid(), signal.SIGSTOP if stops else signal.SIGKILL)


model = Varuna(
    net.net(), given.stage_to_rank_map, net.batch, given.batch, given.chunk_size, device="cpu",
    weight_of=net.labels_of, perturb=lambda action, step: fate(action.kind.name),
)  # fmt: skip
assert len(model.share) == given.batch_size
optimizer, scheduler = net.adamw(model.parameters())
model.set_optimizer(optimizer)
model.keep(scheduler)
if given.resume_step is not None:
    model.load_checkpoint(given.to / "checkpoints")
while model.steps < given.steps:
    while model.steps >= int((given.to / "until").read_text() or 0):
        time.sleep(0.02)
    loss, overflow = model.step(share_of(model, given.batch, model.steps), CLIP)
    optimizer.step()
    scheduler.step()
    if given.rank == 0:
        with (given.to / "losses").open("a") as file:
            told = {"step": model.steps, "loss": loss, "map": given.stage_to_rank_map}
            told["cut"] = model.stages
            file.write(json.dumps(told) + "\n")
    if model.steps % given.every == 0:
        model.checkpoint(given.to / "checkpoints")
        fate("SAVING")
model.close()
