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
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from baselines.ranks import EVENTS, MEETING, ORDER
from baselines.stuck import answer_from
from workbench.core.spec import RunSpec
from workbench.methods.train import resolve_device
from workbench.model.custom import look_here
from workbench.ranks.causes import told_of
from workbench.ranks.watch import MEETING_PATIENCE
from workbench.runtime.board import Board, Stage
from workbench.runtime.loopback import join
from workbench.runtime.notes import leave


def main(folder: Path, rank: int) -> int:
    """Exit status: 0 done, 1 failed. `folder` is the ranks' own, in the run's."""
    look_here()
    answer_from(folder, rank)
    try:
        order = json.loads((folder / ORDER).read_text())
        spec = RunSpec.from_dict(order["spec"])
        path, sizes = order["board"]
        board = Board(Path(path), rank=rank, **sizes)
        board.come(Stage.HERE)
        meet(folder, spec, rank)
        report = Told(board, folder / EVENTS if rank == 0 else Path(os.devnull))
        with import_module(order["work"]).training(spec, report, folder.parent) as training:
            board.come(Stage.READY)
            training.run()
            outcome = training.outcome()
        leave(folder / f"result-{rank}.json", asdict(outcome))
        board.drain(spec.steps)
        with suppress(RuntimeError):  # all is told; a peer may have gone ahead
            dist.barrier()  # nobody leaves while another may still read from it
    except BaseException as error:
        traceback.print_exc()
        leave(folder / f"failure-{rank}.json", told_of(error))
        return 1
    return 0


def meet(folder: Path, spec: RunSpec, rank: int) -> None:
    """This rank's device, and the process group; all addresses are this machine's own."""
    if spec.device == "cuda":
        torch.cuda.set_device(rank)
    device = resolve_device(spec.device)
    join(device, file=folder / MEETING, rank=rank, ranks=spec.ranks, patience=MEETING_PATIENCE)


class Told:
    """A rank's reporter: a line in a file for each event, and the board knows that it goes on."""

    def __init__(self, board: Board, path: Path) -> None:
        self._board = board
        self._file = path.open("a", buffering=1)

    def phase(self, text: str) -> None:
        self.event("phase", text=text)

    def step(self, step: int, loss: float, seconds: float) -> None:
        self.event("step", step=step, loss=loss, seconds=seconds)
        self._board.end_step(step, loss)

    def event(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        self._board.begin(self._board.rank, self._board.steps)


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)  # a process group whose peers are gone may hang in its destructor
