"""The process of one rank: ``python -m workbench.ranks.process FOLDER RANK``.

Started by launcher.py, in the run's process group, so it ends with the run. The first line of its
standard input says what it will need, the second what it is to do; without a second one it ends.
How it ended is its exit status, with ``result-RANK.json`` or ``failure-RANK.json``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from workbench.core.garbage import keep_what_is_there
from workbench.core.methods import imported
from workbench.core.reporter import COMPILING, compile_seconds
from workbench.model.custom import look_here
from workbench.ranks.failures import Failure, failure_of
from workbench.ranks.launcher import LED
from workbench.ranks.stack_probe import answer_from
from workbench.runtime.executor.board import Board, Failed, Stage
from workbench.runtime.executor.notes import leave
from workbench.runtime.executor.threads import use_rank_threads
from workbench.runtime.transport.loopback import join

GRACE_S = 2.0
"""After a failure, for lanes to end by themselves."""


class StartParts:
    """Where a rank's start goes: seconds of its parts, one after the other, from the moment at
    which its process began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at, self._compiled_s = psutil.Process().create_time(), 0.0

    def end(self, name: str) -> None:
        """The part that goes on now has a name and ends. What torch's compiler took in it counts as
        ``compiling``."""
        now, compiled_s = time.time(), compile_seconds()
        took = compiled_s - self._compiled_s
        self.seconds[name] = now - self._at - took
        self.seconds[COMPILING] = self.seconds.get(COMPILING, 0.0) + took
        self._at, self._compiled_s = now, compiled_s


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """Inputs of a rank's work."""

    folder: Path
    """Folder of all ranks of the run, in the run's own."""
    rank: int
    ranks: int
    device: torch.device
    board: Board
    order: Mapping[str, Any]
    """The order that the launcher was started with."""
    parts: StartParts

    def tell(self, result: Mapping[str, Any]) -> None:
        """Say what this rank has measured: it is done."""
        leave(self.folder / f"result-{self.rank}.json", result)

    def fail(self, error: BaseException) -> None:
        """Say why this rank fails, and end it even where one of its threads waits for a message
        that nobody sends any more. Of several failures the first counts."""
        if not isinstance(error, Failed):
            _explain(self.folder, self.rank, failure_of(error))
            threading.Timer(GRACE_S, os._exit, (1,)).start()


def main(folder: Path, rank: int, **more: Any) -> int:
    """Exit status: 0 done, 1 this rank failed, `LED` where another one did. `more` goes to the
    work's ``run_rank``."""
    faulthandler.enable()  # a rank that a library's own code ends says where
    look_here()
    answer_from(folder, rank)
    try:
        parts, own = StartParts(), _told()
        work = imported(own["work"])
        keep_what_is_there(collect=False)
        parts.end("imports")
        devices = own["devices"] or range(own["ranks"])
        device = _device(own["device"], devices[rank], own["ranks"])
        parts.end("its device")
        order = _told()
        parts.end("waiting for the plan and memory")
        path, sizes = order["board"]
        board = Board(Path(path), rank=rank, **sizes)
        board.come(Stage.HERE)
        context = RankContext(
            folder=folder,
            rank=rank,
            ranks=own["ranks"],
            device=device,
            board=board,
            order=order,
            parts=parts,
        )
        if order["meets"]:  # NCCL has one process a device
            alone = len({*devices}) == len(devices)
            _meet(context, device if alone else torch.device("cpu"))
        parts.end("meeting the others")
        work.run_rank(context, **more)
    except Failed as error:
        print(f"rank {rank} stops: {error}", file=sys.stderr)
        return LED
    except BaseException as error:
        traceback.print_exc()
        _explain(folder, rank, failure_of(error))
        return 1
    return 0


def _told() -> dict[str, Any]:
    """What the launcher says next. Ends this process where that is gone, or needs no rank."""
    line = sys.stdin.readline()
    if not line:
        raise Failed("nobody wants this rank any more")
    return json.loads(line)


def _device(kind: str, number: int, ranks: int) -> torch.device:
    use_rank_threads(kind, ranks)
    if kind != "cuda":
        return torch.device(kind)
    torch.cuda.set_device(number)
    torch.cuda.synchronize()  # makes its context
    imported("torch._inductor.compile_fx")  # takes seconds, and passes are compiled soon
    return torch.device(kind, number)


def _meet(context: RankContext, device: torch.device) -> None:
    """Join the process group of all ranks, of NCCL or gloo as a device's kind has it. All addresses
    are this machine's own."""
    join(
        device,
        file=context.folder / "meeting",
        rank=context.rank,
        ranks=context.ranks,
    )


def _explain(folder: Path, rank: int, failure: Failure) -> None:
    """The first failure of this rank, for who watches."""
    path = folder / f"failure-{rank}.json"
    if not path.exists():
        leave(path, failure)


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)  # a process group whose peers are gone may hang in its destructor
