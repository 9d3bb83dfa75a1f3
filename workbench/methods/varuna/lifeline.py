"""A pipeline's process and the outside: its launcher, SIGUSR1, and a script's own handler of it.

A notice may come at any instant, to any process. It rides on the small tensor that ends a step, so
all processes save after one and the same step: on entry to the next, when the optimizer and the
scheduler have stepped. A script's own handler is called there too, and not in the middle of a step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from workbench.elastic.worker import CHECKPOINTS, Worker

Handler = Callable[[int, FrameType | None], object]


class Lifeline:
    """What one process hears, and tells."""

    def __init__(self) -> None:
        """Take part in a launcher's job, where this process is in one. In the main thread. Raises
        ValueError where that wants a profile instead."""
        self._own: Handler | None = None
        self.worker: Worker | None
        self._signalled, self.worker = False, None
        if threading.current_thread() is threading.main_thread():
            self._take_over()
        self.worker = Worker.join()
        if self.worker is not None and self.worker.profiling:
            raise ValueError(
                f"the script was given --profiling={self.worker.profiling} and makes a Varuna; let "
                "it run a Profiler instead and end, or give --nstages and --chunk_size"
            )
        if self.worker is not None and self._own is not None:
            signal.signal(signal.SIGUSR1, self._on_signal)

    @property
    def folder(self) -> Path | None:
        """Where checkpoints go, if a script names no folder."""
        return self.worker.folder / CHECKPOINTS if self.worker is not None else None

    @property
    def logs(self) -> Path | None:
        """Where logs go, if a script names no folder."""
        return self.worker.folder if self.worker is not None else None

    def wanted(self) -> bool:
        """Whether this process has heard that a checkpoint is wanted."""
        if threading.current_thread() is threading.main_thread():
            self._take_over()
        asked = self.worker is not None and self.worker.save_wanted()
        return asked or self._signalled

    def answer(self, save: Callable[[], None]) -> None:
        """At the point where all processes may save: have the script's handler do what it does;
        without one, `save`, and end the process where a launcher asked."""
        self._signalled = False
        if self._own is not None:
            self._own(signal.SIGUSR1, None)
            return
        if self.worker is None:
            return
        save()
        self.worker.leave()
        raise SystemExit(0)

    @property
    def resume_step(self) -> int | None:
        """Step of the checkpoint that the launcher's job goes on from; None for none, or no job."""
        return None if self.worker is None else self.worker.resume_step

    def loaded(self, folder: Path, step: int | None) -> None:
        """A folder's checkpoint of a step is taken up, or it has none. Raises ValueError where the
        launcher's job goes on from one: the script would begin anew unnoticed."""
        if self.resume_step is not None and step is None:
            raise ValueError(
                f"{folder} has no checkpoint of this job, which goes on from one of step "
                f"{self.resume_step}; give load_checkpoint the folder into which checkpoints are "
                "written"
            )
        if self.worker is not None and step is not None:
            self.worker.loaded(step, folder)

    def check_begins(self, step: int) -> None:
        """Raise ValueError where the first step of a round is not the one after the checkpoint that
        the launcher's job goes on from."""
        if self.resume_step not in (None, step):
            raise ValueError(
                f"the job goes on from step {self.resume_step} (--resume_step), and this model is "
                f"at step {step}; call load_checkpoint before the first step"
            )

    def may_commit(self, folder: Path, step: int) -> bool:
        """Whether a checkpoint may be put in its place in a folder."""
        return self.worker is None or self.worker.may_commit(step, folder)

    def _take_over(self) -> None:
        """Call a handler that the script has set, at the right point only."""
        set_now = signal.getsignal(signal.SIGUSR1)
        ours = [self._on_signal, *([self.worker.on_signal] if self.worker is not None else [])]
        if callable(set_now) and set_now not in ours:
            self._own = set_now
            signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        if self.worker is not None:
            self.worker.on_signal(number, frame)
