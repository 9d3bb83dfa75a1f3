"""Processes of the system: ones that end with their parent, stand still, or are about to end; and
how much a thread has computed."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PF_EXITING = 4
"""Flag of a process that the kernel takes apart (Linux, sched.h)."""


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when `parent` dies; Linux only, elsewhere does
    nothing.

    The signal comes when the parent's *thread* that started us ends, so this is only for parents
    that have one thread, or start us from their first. Call between fork and exec, or at once after
    exec.
    """
    try:
        prctl = ctypes.CDLL(None).prctl
    except AttributeError:
        return
    prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        os.kill(os.getpid(), number)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; False where the system does not tell."""
    return _stat(pid)[:1] == [b"T"]


def is_ending(pid: int) -> bool:
    """Whether a process does nothing any more and the kernel frees what it holds, which takes
    seconds where it has pinned memory or a GPU's; False where the system does not tell."""
    fields = _stat(pid)
    return len(fields) > 6 and bool(int(fields[6]) & _PF_EXITING)


def ticks_of(thread: int) -> list[bytes]:
    """Processor time of a thread of this process, by its number in the system: the kernel's ticks
    in its own code, and in the kernel."""
    return _stat(f"self/task/{thread}")[11:13]


def _stat(which: int | str) -> list[bytes]:
    """The fields behind the name of a process, or of a thread; none where there are none."""
    with suppress(OSError):
        return Path(f"/proc/{which}/stat").read_bytes().rpartition(b")")[2].split()
    return []
