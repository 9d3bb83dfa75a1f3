"""Pages of memory, brought by several threads before anyone waits for them.

The first thread to touch a page waits until the kernel has found and zeroed one, and every process
that maps the same memory waits once more for its own entry. One thread does 1.5 GB/s of that, and
to page-lock memory is to touch all of it by one thread: a minute of a start for 100 GB, also where
anonymous memory has large pages (tiers.py); most systems make none for what processes share.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

POPULATE_WRITE = 23
"""Linux 5.14: touch as a write does, change nothing, and say what a write would die of."""
PIECE, STEP = 1 << 24, 1 << 21
"""Bytes that a thread takes, and those that it asks for at a time: while it waits for them, nothing
of the process can be mapped."""


def bring(
    ranges: Iterable[tuple[int, int]], threads: int, ended: Callable[[], bool] = lambda: False
) -> bool:
    """Touch all pages of memory as a write would: (address, bytes), from the beginnings of pages.
    Those that are left when it has `ended` are not touched.

    False where this system cannot. Raises OSError where there are none left.
    """
    madvise = _madvise()
    if madvise is None:
        return False

    def touch(at: int, nbytes: int) -> set[int]:
        steps = range(at, at + nbytes, STEP)
        return {madvise(here, min(STEP, at + nbytes - here)) for here in steps if not ended()}

    pieces = [
        (address + at, min(PIECE, nbytes - at))
        for address, nbytes in ranges
        for at in range(0, nbytes, PIECE)
    ]
    with ThreadPoolExecutor(max(1, min(threads, len(pieces)))) as pool:
        codes = {code for codes in pool.map(lambda piece: touch(*piece), pieces) for code in codes}
    codes -= {0}
    if codes - {errno.EINVAL}:
        code = min(codes - {errno.EINVAL})
        raise OSError(code, os.strerror(code))
    return not codes


class Bringing:
    """Pages that threads `bring` while their owner does something else. Whoever needs one before
    has it brought by the system, as where there are no such threads."""

    def __init__(self, ranges: Iterable[tuple[int, int]], threads: int) -> None:
        self._ended = False
        pool = ThreadPoolExecutor(1)
        self._done = pool.submit(bring, [*ranges], threads, lambda: self._ended)
        pool.shutdown(wait=False)

    def end(self) -> None:
        """Bring no more: their memory may go when this returns."""
        self._ended = True
        self._done.exception()


@functools.cache
def _madvise() -> Callable[[int, int], int] | None:
    """The system's advice for a range of bytes; it returns an error number, or 0."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return lambda at, nbytes: function(at, nbytes, POPULATE_WRITE) and ctypes.get_errno()
