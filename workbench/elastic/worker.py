"""What a training library calls in a worker; it needs no torch.

worker = Worker.join()               None where the launcher did not start this process
...
worker.loaded(step, folder)          after it has taken up the checkpoint of worker.resume_step
worker.progress(step, seconds)       after each step
if worker.save_wanted():             workers may hear it at different steps: agree on one
    ...                              write the checkpoint beside its place
    if worker.may_commit(step, to):  one rank, before it renames the checkpoint's folder in `to`
        ...
        worker.committed(step)       and after it
    worker.leave()                   and end the process, with status 0
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
from typing import Any, Self

from workbench.core.files import write_whole
from workbench.core.jsonfile import parse_json
from workbench.elastic.messages import LONGEST, Message, pack, unpack

AGENT = "WORKBENCH_AGENT"
"""Environment variable that tells a worker of its agent: it identifies, and configures nothing."""
CHECKPOINTS, NOTE = "checkpoints", "checkpoints.json"
"""Of the run's folder: where checkpoints go if a script names no folder, and the file that names
the folder of the last one."""
LOSS_LOG = "varuna_loss.log"
"""File of the run's folder for losses; the manager adds a line for each round."""
ANSWER_S = 30.0
"""Longest wait for an answer that does not come if this host is cut off."""


class Worker:
    """A worker's line to its agent. Calls may come from several threads."""

    def __init__(
        self, line: socket.socket, *, round: int, rank: int, batch: int, folder: Path,
        cut: str = "", nbytes: int = 0, resume_step: int | None = None, profiling: str = "",
        job: str = "", began: int | None = None,
    ) -> None:  # fmt: skip
        """`batch` is the samples of a whole step, `folder` the run's, on this host; the rest are
        those of messages.Start, and the `job`'s id."""
        self.round, self.rank, self.batch, self.folder = round, rank, batch, folder
        self.cut, self.nbytes = cut, nbytes
        self.resume_step, self.profiling = resume_step, profiling
        self.job, self.began = job, began
        self._line, self._lock = line, threading.RLock()
        self._answer: Message | None = None
        self._wanted = self._signalled = self._left = False

    @classmethod
    def join(cls) -> Self | None:
        """Take part; call it once, in the main thread. From now on SIGUSR1 means that saving is
        wanted. None where this process is no worker of the launcher."""
        if (worker := cls.here()) is not None:
            signal.signal(signal.SIGUSR1, worker.on_signal)
            worker.working()
        return worker

    @classmethod
    def here(cls) -> Self | None:
        """As `join`, for a part of the script that only tells that it gets on. Raises ValueError
        where the environment variable is not what the launcher has set."""
        if (text := os.environ.get(AGENT)) is None:
            return None
        try:
            about = parse_json(text, AGENT)
            if about.pop("pid") != os.getpid():  # a child of a worker is none
                return None
            line = socket.socket(fileno=os.dup(about.pop("line")))
            return cls(line, folder=Path(about.pop("folder")), **about)
        except (OSError, OverflowError, LookupError, TypeError, AttributeError, ValueError):
            raise ValueError(
                f"{AGENT} is {text!r:.80}; `workbench varuna` alone sets this variable of the "
                "environment, for its workers: unset it"
            ) from None

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handler of SIGUSR1. A script may set its own instead, and ``signal.getsignal`` tells."""
        self._signalled = True

    def save_wanted(self) -> bool:
        """Whether this worker is to save after the step, and to leave. It stays so."""
        with self._lock:
            if self._signalled and not self._wanted:
                self._wanted = True
                self._tell("wanted")
            self._read()
        return self._wanted

    def progress(
        self, step: int, seconds: float, forward_s: float | None = None, loss: str = ""
    ) -> None:
        """`step` steps are done in all, the last one in so many seconds: workers that do not get on
        are seen by it. `forward_s`, of a micro-batch's forward pass, shows slow machines; people
        are shown the `loss` of the first rank."""
        self._tell("step", step=step, seconds=seconds, forward_s=forward_s, loss=loss)

    def working(self) -> None:
        """It gets on with something that is no step: making, loading, evaluating, saving. Call it
        now and then where these take longer than ten steps and ten seconds."""
        self._tell("working")

    def may_commit(self, step: int, to: Path | None = None) -> bool:
        """Whether a checkpoint that is written may be put in its place, as ``step-N`` of a folder.
        False where a later round may have begun, as for a host that was cut off: then leave it
        there, and end. Raises OSError where the run's folder cannot be written to."""
        with self._lock:
            self._answer = None
            self._tell("ask", step=step)
            while self._answer is None or self._answer.step != step:
                if not self._read(ANSWER_S):
                    return False
            may = self._answer.kind == "yes"
        if may and to is not None:
            self._note(to)
        return may

    def loaded(self, step: int, folder: Path) -> None:
        """The checkpoint of a step, in a folder, is taken up."""
        with suppress(OSError):  # to be told again before the first commit
            self._note(folder)
        self._tell("loaded", step=step)

    def committed(self, step: int) -> None:
        """Checkpoint `step` is in its place, whole, and forced to the disk."""
        self._tell("committed", step=step)

    def has_cut(self, cut: str, nbytes: int) -> None:
        """The first rank tells the slices of each stage, so that no later round of this shape
        measures them, and the bytes of the module's parameters."""
        self._tell("cut", cut=cut, nbytes=nbytes)

    def leave(self) -> None:
        """This worker's process is about to end on purpose: training is done, or it has saved. A
        script that ends with status 0 need not say so."""
        if not self._left:
            self._left = True
            self._tell("ended")

    def _note(self, folder: Path) -> None:
        """Have whoever begins a round look for checkpoints in a folder: managers may die before
        they hear of one."""
        path, text = self.folder / NOTE, json.dumps({"folder": str(folder.resolve())})
        if self.rank == 0 and not (path.exists() and path.read_text() == text):
            write_whole(path, text)

    def _tell(self, kind: str, **fields: Any) -> None:
        lossy = kind in ("step", "working")  # an agent that stands still must not stop a step
        message = Message(kind=kind, round=self.round, rank=self.rank, **fields)
        with self._lock, suppress(OSError):  # nobody is there, or a lossy one finds no room
            self._line.send(pack(message), socket.MSG_DONTWAIT if lossy else 0)

    def _read(self, patience_s: float = 0.0) -> bool:
        """Take in what the agent tells within so long; False where it tells nothing."""
        self._line.settimeout(patience_s or None)
        try:
            message = unpack(self._line.recv(LONGEST, 0 if patience_s else socket.MSG_DONTWAIT))
        except (OSError, ValueError):  # nothing has come, or nobody is there any more
            return False
        finally:
            self._line.settimeout(None)
        if message.kind == "save":
            self._wanted = True
        else:
            self._answer = message
        return True
