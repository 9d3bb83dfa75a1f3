"""The process of one rank: ``python -m workbench.methods.harmony.rank_process FOLDER RANK``.

Started by crew.py, in the run's process group, so it ends with the run. What it is to do lies in
the folder; how it ended is its exit status and, where it failed, ``failure-RANK.json``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path

import torch

from workbench.core.spec import RunSpec
from workbench.methods.train import DTYPES, load_batches
from workbench.model import make_model
from workbench.model.custom import look_here
from workbench.ranks.causes import told_of
from workbench.ranks.watch import MEETING_PATIENCE
from workbench.runtime.board import Board, Failed, Stage
from workbench.runtime.executor import Perturb
from workbench.runtime.loopback import join
from workbench.runtime.notes import leave
from workbench.runtime.rank import Rank
from workbench.runtime.threads import use_rank_threads
from workbench.schedule.action import Kind
from workbench.schedule.schedule import Schedule
from workbench.schedule.serialize import from_json

GRACE_S = 2.0
"""After a failure, for lanes to end by themselves."""


def main(folder: Path, number: int, perturb: Perturb | None = None) -> int:
    """Exit status: 0 done, 1 this rank failed, 2 another one did."""
    look_here()
    order = json.loads((folder / "order.json").read_text())
    spec = RunSpec.from_dict(order["spec"])
    schedule = from_json((folder / "schedule.json").read_text())
    rank: Rank | None = None
    try:
        board = Board(Path(order["board"]), rank=number, **Board.sizes(schedule))
        board.come(Stage.HERE)
        device = _device(order["device"], number, schedule.num_ranks)
        _meet(folder, device, number, schedule)
        model = make_model(spec.model, spec.seed)
        rank = Rank(
            spec,
            schedule,
            model,
            load_batches(spec, model, folder.parent / "cache"),
            folder=folder,
            board=board,
            host=[*map(Path, order["host"])],
            device=device,
            dtype=DTYPES[spec.dtype],
            perturb=perturb,
            record_from=order["record_from"],
            origin=order["origin"],
            on_failure=lambda error: _fail(folder, number, error),
        )
        board.come(Stage.READY)
        for first, end in order["segments"]:
            board.await_allowed(end)
            rank.run(first, end - first)
            board.drain(end)
        leave(folder / f"result-{number}.json", _result(rank))
    except Failed as error:
        print(f"rank {number} stops: {error}", file=sys.stderr)
        return 2
    except BaseException as error:
        traceback.print_exc()
        _explain(folder, number, error)
        return 1
    finally:
        if rank is not None:
            rank.close()
    return 0


def _device(kind: str, number: int, ranks: int) -> torch.device:
    use_rank_threads(kind, ranks)
    if kind == "cuda":
        torch.cuda.set_device(number)
        return torch.device("cuda", number)
    return torch.device("cpu")


def _meet(folder: Path, device: torch.device, number: int, schedule: Schedule) -> None:
    """The process group of all ranks, where some add up gradients (runtime/groups.py); messages
    need none (runtime/inbox.py). All addresses are this machine's own."""
    if all(action.kind is not Kind.REDUCE for action in schedule.actions):
        return
    file, ranks = folder / "meeting", schedule.num_ranks
    join(device, file=file, rank=number, ranks=ranks, patience=MEETING_PATIENCE)


def _fail(folder: Path, number: int, error: BaseException) -> None:
    """Say why, and end even where a lane waits for a message that nobody sends any more."""
    if not isinstance(error, Failed):
        _explain(folder, number, error)
        threading.Timer(GRACE_S, os._exit, (1,)).start()


def _explain(folder: Path, number: int, error: BaseException) -> None:
    """The first failure of this rank, for crew.py."""
    path = folder / f"failure-{number}.json"
    if not path.exists():
        leave(path, told_of(error))


def _result(rank: Rank) -> dict:
    return {
        "moved_bytes": rank.engine.traffic.moved,
        "moved_parts": rank.engine.traffic.parts,
        "settled": rank.engine.settled,
        "steps": len(rank.executor.step_numbers),
        "device_peak": rank.meter.peak,
        "events": [
            [e.name, e.kind, e.unit, e.microbatch, e.rank, e.lane, e.step, e.start_s, e.end_s,
             e.nbytes]
            for e in rank.executor.events
        ],
    }  # fmt: skip


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)  # a process group whose peers are gone may hang in its destructor
