"""What a training library calls in a worker; it needs no torch.

    worker = Worker.join()                      None where the launcher did not start this process
    ...
    worker.progress(step, seconds)              after each step
    if worker.save_wanted():                    each worker may hear it at another step, so ask
        ...                                     all ranks, save after the same one,
        if worker.may_commit(step):             one rank: before it renames the checkpoint's folder
            ...
            worker.committed(step)              and after it
        worker.leave()                          and end the process
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Self

from workbench.elastic.messages import (
    LONGEST,
    Checkpoint,
    Ended,
    Message,
    Progress,
    Turn,
    pack,
    unpack,
)

AGENT = "WORKBENCH_AGENT"
"""Environment variable of a worker that tells it of its agent: it identifies, and configures
nothing."""
LOSS_LOG = "varuna_loss.log"
"""File of the run's folder for losses, where the manager writes each change of the shape, too."""
ANSWER_S = 30.0
"""Longest wait for an answer that may not come, since this host is cut off."""


class Worker:
    """A worker's line to its agent. Calls may come from several threads."""

    def __init__(self, line: socket.socket, *, round: int, rank: int, batch: int, folder: Path):
        self.round, self.rank = round, rank
        self.batch = batch
        """Samples of a whole step."""
        self.folder = folder
        """The run's, on this host."""
        self._line, self._lock = line, threading.Lock()
        self._answers: list[Checkpoint] = []
        self._wanted = self._signalled = self._left = False

    @classmethod
    def join(cls) -> Self | None:
        """Take part; call it once, in the main thread. SIGUSR1 means from now on that saving is
        wanted. None where this process is no worker of the launcher."""
        about = json.loads(os.environ.get(AGENT, "null"))
        if about is None or about["pid"] != os.getpid():  # a child of a worker is none
            return None
        worker = cls(
            socket.socket(fileno=about["line"]),
            round=about["round"], rank=about["rank"], batch=about["batch"],
            folder=Path(about["folder"]),
        )  # fmt: skip
        signal.signal(signal.SIGUSR1, worker.on_signal)
        return worker

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handler of SIGUSR1. A script may set its own instead: whoever calls that at the end of a
        step sees by ``signal.getsignal`` that it is not this one."""
        self._signalled = True

    def save_wanted(self) -> bool:
        """Whether this worker is to save after the step, and to leave. It stays so."""
        with self._lock:
            if self._signalled and not self._wanted:
                self._wanted = True
                self._send(Turn(round=self.round, turn="wanted"))
            self._read()
        return self._wanted

    def progress(self, step: int, seconds: float, forward_s: float | None = None) -> None:
        """`step` steps are done in all, the last one in so long. By this, the agent sees that the
        worker gets on, and the manager how fast; `forward_s`, of a forward pass of a micro-batch,
        shows slow machines."""
        self._tell(
            Progress(
                round=self.round, rank=self.rank, step=step, seconds=seconds, forward_s=forward_s
            )
        )

    def working(self) -> None:
        """It gets on with something that is no step: loading, evaluating, saving. Call it now and
        then where these take longer than ten steps and ten seconds."""
        self._tell(Progress(round=self.round, rank=self.rank))

    def may_commit(self, step: int) -> bool:
        """Whether a checkpoint that this round has written may be put in its place. False where a
        later round may have begun, as for a host that was cut off: then leave it, and end."""
        asked = Checkpoint(round=self.round, rank=self.rank, step=step, is_it="asked")
        with self._lock:
            self._answers.clear()
            self._send(asked)
            while not self._answers:
                if not self._read(ANSWER_S):
                    return False
            return self._answers[-1].step == step and self._answers[-1].is_it == "granted"

    def committed(self, step: int) -> None:
        """Checkpoint `step` is in its place, whole, and forced to the disk."""
        self._tell(Checkpoint(round=self.round, rank=self.rank, step=step, is_it="done"))

    def leave(self) -> None:
        """This worker ends on purpose, and its process is about to: training is done, or it has
        saved because it was asked to. One whose script ends with status 0 need not say so."""
        if not self._left:
            self._left = True
            self._tell(Ended(round=self.round, rank=self.rank))

    def _tell(self, message: Message) -> None:
        with self._lock:
            self._send(message)

    def _send(self, message: Message) -> None:
        lossy = isinstance(message, Progress)  # an agent that stands still must not stop a step
        with suppress(BlockingIOError, ConnectionError):
            self._line.send(pack(message), socket.MSG_DONTWAIT if lossy else 0)

    def _read(self, patience_s: float = 0.0) -> bool:
        """Take in what the agent has told, after so long at most; False where it tells nothing."""
        self._line.settimeout(patience_s or None)
        try:
            message = unpack(self._line.recv(LONGEST, 0 if patience_s else socket.MSG_DONTWAIT))
        except (OSError, ValueError):  # nothing has come, or nobody is there any more
            return False
        finally:
            self._line.settimeout(None)
        if isinstance(message, Checkpoint):
            self._answers.append(message)
        else:
            self._wanted = True
        return True
