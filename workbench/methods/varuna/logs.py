"""Logs of workers, in the formats of the original: a file of each worker's tasks, one of losses.

    varuna_logs-2dp-4mBS-stage1of4_0      start time T; task micro-batch start seconds; BATCH END
    varuna_loss.log                       step time, total time, loss scale, learning rate, loss

Losses are read back here, for timelines of morphing (`read_losses`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from workbench.core.stage_map import StageMap
from workbench.elastic.worker import LOSS_LOG
from workbench.schedule.simulate import Event

TASKS = {
    "F": "fwd", "R": "rec", "B": "bwd", "RECV": "recvacts", "RECV_GRAD": "recvgrads",
    "SEND": "sendacts", "SEND_GRAD": "sendgrads", "REDUCE": "all-reduce",
}  # fmt: skip
"""Kind of an action -> the task's name."""
NAME = re.compile(r"varuna_logs-(\d+)dp-(\d+)mBS-stage(\d+)of(\d+)_(\d+)", re.ASCII)
RESUMED = re.compile(r"resumed to config (\d+)x(\d+) at step (\d+)", re.ASCII)


class LossLine(NamedTuple):
    """A step of a log of losses."""

    step: int
    """Counted within the log."""
    step_s: float
    total_s: float
    loss: float
    shape: tuple[int, int] | None
    """Stages and replicas, once the log has them."""


class WorkerLogs:
    """Writes the logs of one worker into a folder."""

    def __init__(self, folder: Path, ranks: StageMap, rank: int, micro_size: int) -> None:
        """The first replica of the last stage writes losses, too."""
        folder.mkdir(parents=True, exist_ok=True)
        (stage, replica), stages, replicas = ranks.place(rank), ranks.stages, ranks.replicas
        name = f"varuna_logs-{replicas}dp-{micro_size}mBS-stage{stage}of{stages}_{replica}"
        self._tasks, self._began = folder / name, time.monotonic()
        self._losses = folder / LOSS_LOG if (stage, replica) == (stages - 1, 0) else None
        self._total = 0.0
        with self._tasks.open("a") as file:
            file.write(f"start time {time.time():.6f}\n")

    def step(
        self, events: Iterable[Event], began: float, *, scale: float, rate: float, loss: float
    ) -> None:
        """Add a step, which began at a moment of the monotonic clock and ends now; `rate` is the
        optimizer's learning rate."""
        start, seconds = began - self._began, time.monotonic() - began
        with self._tasks.open("a") as file:
            for event in sorted(events, key=lambda event: event.start_s):
                if (task := TASKS.get(event.kind)) is not None:
                    micro = -1 if event.microbatch is None else event.microbatch
                    file.write(
                        f"{task} {micro} {start + event.start_s:.6f} "
                        f"{event.end_s - event.start_s:.6f}\n"
                    )
            file.write(f"BATCH END {start:.6f} {seconds:.6f}\n")
        self._total += seconds
        if self._losses is not None:
            with self._losses.open("a") as file:
                file.write(f"{seconds:.6f}, {self._total:.6f}, {scale:g}, {rate:g}, {loss:.8g}\n")


def read_losses(path: Path) -> list[LossLine]:
    """The steps of a log of losses, each with the shape that the line before it told."""
    found: list[LossLine] = []
    shape = None
    for line in path.read_text(errors="replace").splitlines():
        if resumed := RESUMED.search(line):
            shape = int(resumed[1]), int(resumed[2])
            continue
        try:
            step_s, total_s, _, _, loss = map(float, line.split(","))
        except ValueError:
            continue
        found.append(LossLine(len(found), step_s, total_s, loss, shape))
    return found
