"""Counts in memory that processes share: raising one publishes what was written before.

A count is stored behind everything that its writer wrote (a release) and read before everything
that its reader reads (an acquire), so nobody sees a count without what it stands for. Without a
compiler for ``board_wait.cpp`` stores and loads are plain: x86 keeps those in their order by
itself, other processors are refused.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from workbench.core import native

SOURCE = Path(__file__).with_name("board_wait.cpp")
NAP_S = 2e-5
"""Sleep between two looks, where there is no compiler."""
PATIENCE_S = 0.05
"""Until a wait asks whether this rank has itself failed."""
PATIENCE_NS = round(PATIENCE_S * 1e9)
NOBODY = -1


class Counts:
    """A row of 64-bit counts."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers, self._at = numbers, numbers.ctypes.data
        self._load, self._store, self._wait = _calls()

    def __getitem__(self, index: int) -> int:
        return self._load(self._at + 8 * index)

    def __setitem__(self, index: int, value: int) -> None:
        self._store(self._at + 8 * index, value)

    def least(self) -> int:
        """The smallest."""
        return min(self[index] for index in range(len(self.numbers)))

    def wait(self, index: int, seen: int, failed: Counts) -> bool:
        """Until a count is above a number; False after a while, or when somebody has failed."""
        return bool(self._wait(self._at + 8 * index, seen, failed._at, NOBODY, PATIENCE_NS))


@functools.cache
def _calls() -> tuple[Callable[..., int], ...]:
    """Load, store and wait, by the address of a count. Raises ValueError where neither a compiler
    nor the processor keeps the order."""
    number, pointer, plain = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64.from_address
    try:
        library = native.load(SOURCE)
    except native.CannotBuild as error:
        if platform.machine() not in ("x86_64", "AMD64"):
            raise ValueError(
                f"ranks need a C++ compiler on {platform.machine()}, without which one could read "
                f"what another has not written yet: {error}"
            ) from error
        return (
            lambda at: plain(at).value,
            lambda at, value: setattr(plain(at), "value", value),
            lambda at, seen, *_: plain(at).value > seen or time.sleep(NAP_S),
        )
    held = ctypes.PyDLL(None, handle=library._handle)  # quick: the interpreter's lock is kept
    load, store, wait = held.workbench_load, held.workbench_store, library.workbench_wait
    load.argtypes, load.restype = (pointer,), number
    store.argtypes, store.restype = (pointer, number), None
    wait.argtypes, wait.restype = (pointer, number, pointer, number, number), ctypes.c_int32
    return load, store, wait
