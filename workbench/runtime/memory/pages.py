"""Pages of memory, brought by several threads before anyone waits for them.

The first thread to touch a page waits until the kernel has found and zeroed one, and every process
that maps the same memory waits once more for its own entry. One thread does 1.5 GB/s of that, and
to page-lock memory is to touch all of it by one thread: a minute of a start for 100 GB. Anonymous
memory has large pages against this (tiers.py); most systems make none for what processes share.
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
PIECE = 1 << 26
"""Bytes that a thread asks for at a time."""


def bring(ranges: Iterable[tuple[int, int]], threads: int) -> bool:
    """Touch all pages of memory as a write would: (address, bytes), from the beginnings of pages.

    False where this system cannot. Raises OSError where there are none left.
    """
    madvise = _madvise()
    if madvise is None:
        return False
    pieces = [
        (address + at, min(PIECE, nbytes - at))
        for address, nbytes in ranges
        for at in range(0, nbytes, PIECE)
    ]
    with ThreadPoolExecutor(max(1, min(threads, len(pieces)))) as pool:
        codes = {code for code in pool.map(lambda piece: madvise(*piece), pieces) if code}
    if codes - {errno.EINVAL}:
        code = min(codes - {errno.EINVAL})
        raise OSError(code, os.strerror(code))
    return not codes


@functools.cache
def _madvise() -> Callable[[int, int], int] | None:
    """The system's advice for a range of bytes; it returns an error number, or 0."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return lambda at, nbytes: function(at, nbytes, POPULATE_WRITE) and ctypes.get_errno()
