"""Threads of the lanes of a segment: how they begin, are asked for steps, and end."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from workbench.core.garbage import keep_what_is_there

SWITCH_S = 2e-4
"""How long a lane's thread may keep the interpreter from the others on CUDA."""
START_S = 1.0
"""How long a thread whose start was interrupted may take to begin, if it ever does."""


class Walker(Protocol):
    """Whoever does the work of lanes (executor.py)."""

    def prepare(self, lane: str) -> None:
        """Prepare the thread of a lane."""

    def walk(self, thread: str, steps: range) -> bool:
        """Do a thread's work of some steps; False where a lane has failed."""

    def fail(self, error: BaseException) -> None:
        """Note what failed, so that all lanes end."""


class Lanes:
    """Threads of lanes, of one segment after the other."""

    def __init__(self, *, launches: bool, abandon_s: float | None) -> None:
        """`launches`: lanes only launch what a device does, and must not wait for each other.
        `abandon_s` after a failure, a lane that does not end is left behind."""
        self._launches, self._abandon_s = launches, abandon_s
        self._asked = Asked(range(0), ends=True)
        self._threads: list[tuple[threading.Thread, threading.Event]] = []
        """Each with what it sets when it has ended."""
        self._interval: float | None = None

    def __bool__(self) -> bool:
        """Whether some are left."""
        return bool(self._threads)

    def start(
        self, executor: Walker, names: Iterable[str], steps: range, *, ends: bool, first: bool
    ) -> None:
        """Have lanes do some steps; no others if it `ends`. `first`: of all segments."""
        if self._launches:
            self._interval = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_S)
            keep_what_is_there(collect=first)
        self._asked = asked = Asked(steps, ends=ends)
        ref = weakref.ref(executor, lambda _: asked.close())
        for name in names:
            ended = threading.Event()
            given = {"target": live, "args": (ref, asked, name, ended), "name": f"lane {name}"}
            thread = threading.Thread(**given, daemon=True)
            self._threads.append((thread, ended))
            thread.start()

    def ask(self, end: int) -> None:
        """Ask for the steps before `end`."""
        self._asked.ask(end)

    def idle(self) -> None:
        """Wait until each has done all that was asked, or one has failed."""
        self._asked.idle(len(self._threads))

    def close(self) -> None:
        """Ask for no others."""
        self._asked.close()

    def wait(self, failed: Callable[[], bool]) -> bool:
        """Wait until all have ended; False where some are left behind."""
        for thread, ended in self._threads:
            if thread.ident is None:  # its start was interrupted: it begins yet, or never
                ended.wait(START_S)
            # `join`, interrupted, takes a running thread for dead (gh-90882)
            if thread.ident is not None and self._has_ended(ended, failed):
                thread.join()
        left = any(not ended.is_set() for thread, ended in self._threads if thread.ident)
        self._threads.clear()
        return not left

    def rest(self) -> None:
        """Have the interpreter as it was before the segment."""
        if self._interval is not None:
            sys.setswitchinterval(self._interval)
            gc.unfreeze()
            self._interval = None

    def _has_ended(self, ended: threading.Event, failed: Callable[[], bool]) -> bool:
        while not ended.wait(self._abandon_s):
            if failed():
                return False
        return True


class Asked:
    """Steps that were asked of lanes."""

    def __init__(self, steps: range, *, ends: bool) -> None:
        """`ends`: no others will be."""
        self.first, self._end, self._ends = steps.start, steps.stop, ends
        self._told, self._idle = threading.Condition(), 0
        """Lanes that have done the steps before the end."""

    def ask(self, end: int) -> None:
        """Ask the steps before `end`."""
        with self._told:
            self._end, self._idle = end, 0
            self._told.notify_all()

    def idle(self, lanes: int) -> None:
        """Wait until so many lanes have done what was asked, or nothing else will be."""
        with self._told:
            self._told.wait_for(lambda: self._idle == lanes or self._ends)

    def close(self) -> None:
        """Ask no others."""
        with self._told:
            self._ends = True
            self._told.notify_all()

    def wait(self, step: int) -> bool:
        """Wait until a step is asked; False where it never will be."""
        with self._told:
            if step == self._end:
                self._idle += 1
                self._told.notify_all()
            self._told.wait_for(lambda: step < self._end or self._ends)
            return step < self._end


def live(ref: weakref.ref[Walker], asked: Asked, lane: str, ended: threading.Event) -> None:
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
