"""The process of one rank: ``python -m baselines.rank_main FOLDER RANK``.

Started by ranks.py, in the run's process group, so it ends with the run. What it is to do lies in
the folder; how it ended is its exit status, with ``result-RANK.json`` or ``failure-RANK.json``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from baselines.ranks import EVENTS, MEETING, ORDER
from baselines.stuck import answer_from
from workbench.methods.harmony.causes import chain_of, told_of
from workbench.methods.train import resolve_device
from workbench.runs.report import Untold
from workbench.runs.spec import RunSpec
from workbench.runtime.tiers import OutOfMemory

PATIENCE = timedelta(minutes=30)
"""A rank may wait so long for another, which is more than any step takes."""


def main(folder: Path, rank: int) -> int:
    """Exit status: 0 done, 1 failed. `folder` is the ranks' own, in the run's."""
    answer_from(folder, rank)
    try:
        order = json.loads((folder / ORDER).read_text())
        spec = RunSpec.from_dict(order["spec"])
        meet(folder, spec, rank)
        report = Told(folder / EVENTS) if rank == 0 else Untold()
        with import_module(order["work"]).training(spec, report, folder.parent) as training:
            training.run()
            outcome = training.outcome()
        _tell(folder / f"result-{rank}.json", asdict(outcome))
        with suppress(RuntimeError):  # all is told; a peer may have gone ahead
            dist.barrier()  # nobody leaves while another may still read from it
    except BaseException as error:
        traceback.print_exc()
        _tell(folder / f"failure-{rank}.json", explained(error))
        return 1
    return 0


def meet(folder: Path, spec: RunSpec, rank: int) -> None:
    """This rank's device, and the process group; all addresses are this machine's own."""
    if spec.device == "cuda":
        torch.cuda.set_device(rank)
    device = resolve_device(spec.device)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, "lo")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{(folder / MEETING).resolve()}",
        rank=rank,
        world_size=spec.ranks,
        timeout=PATIENCE,
        device_id=device if device.type == "cuda" else None,
    )


class Told:
    """The reporter of rank 0: a line in a file for each event."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def phase(self, text: str) -> None:
        self.event("phase", text=text)

    def step(self, step: int, loss: float, seconds: float) -> None:
        self.event("step", step=step, loss=loss, seconds=seconds)

    def event(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")


def explained(error: BaseException) -> dict[str, Any]:
    """A failure as ranks.py reads it. Libraries wrap what went wrong in errors of their own: memory
    that ran out is what counts."""
    chain = list(chain_of(error))
    full = [cause for cause in chain if isinstance(cause, OutOfMemory | torch.OutOfMemoryError)]
    cause = full[0] if full else error
    told = told_of(cause)
    told["lost_peer"] &= not full
    for field in ("tier", "what", "asked", "in_use", "budget", "why", "errno"):
        if hasattr(cause, field):
            told[field] = getattr(cause, field)
    return told


def _tell(path: Path, what: dict[str, Any]) -> None:
    """Whole, or not at all."""
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(what))
    temporary.rename(path)


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)  # a process group whose peers are gone may hang in its destructor
