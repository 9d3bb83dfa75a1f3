"""Steps that are asked of lanes one by one, and the life of a lane between them."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.runtime.executor import Executor


class Asked:
    """Steps that were asked of lanes."""

    def __init__(self, steps: range, *, ends: bool) -> None:
        """`ends`: no others will be."""
        self.first, self._end, self._ends = steps.start, steps.stop, ends
        self._told = threading.Condition()

    def ask(self, end: int) -> None:
        """Ask the steps before `end`."""
        with self._told:
            self._end = end
            self._told.notify_all()

    def close(self) -> None:
        """Ask no others."""
        with self._told:
            self._ends = True
            self._told.notify_all()

    def wait(self, step: int) -> bool:
        """Wait until a step is asked; False where it never will be."""
        with self._told:
            self._told.wait_for(lambda: step < self._end or self._ends)
            return step < self._end


def live(ref: weakref.ref[Executor], asked: Asked, lane: str, ended: threading.Event) -> None:
    """The life of a lane that has a thread of its own. Between steps it keeps no executor alive,
    and ends when the last one who asks has let go of it."""
    step, failed = asked.first, False
    try:
        while asked.wait(step) and (executor := ref()) is not None:
            try:
                if step == asked.first:
                    executor.prepare(lane)
                failed = not executor.walk(lane, range(step, step + 1))
            except BaseException as error:
                failed = True
                executor.fail(error)
            finally:
                del executor
            if failed:
                return
            step += 1
    finally:
        ended.set()
