"""Pages that threads bring are there, whole, and hold what they held."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

import pytest

from workbench.runtime import pages, shared
from workbench.runtime.tiers import OutOfMemory

NBYTES = 2 * pages.PIECE + 5 * shared.PAGE


KERNEL = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def here() -> int:
    """Bytes of files in memory that this process has mapped."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssShmem"))


@pytest.mark.parametrize("threads", [1, 3])
def test_memory_is_made_at_once_and_mapped_without_a_change(threads):
    descriptor = shared.make_shared(NBYTES)
    try:
        assert os.fstat(descriptor).st_blocks * 512 == NBYTES
        os.pwrite(descriptor, b"there", pages.PIECE - 2)
        with mmap.mmap(descriptor, NBYTES) as memory:
            before = here()
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            parts = (start, 7 * shared.PAGE), (start + 7 * shared.PAGE, NBYTES - 7 * shared.PAGE)
            if not pages.bring(parts, threads):
                assert KERNEL < (5, 14)
                pytest.skip("this kernel touches no pages for others (Linux before 5.14)")
            # The kernel counts the last pages of each thread later.
            assert NBYTES - 4 * 64 * shared.PAGE <= here() - before <= NBYTES
            assert memory[pages.PIECE - 2 : pages.PIECE + 3] == b"there"
            assert memory[:].count(0) == NBYTES - 5
    finally:
        os.close(descriptor)


def test_a_kernel_that_cannot_makes_them_itself(monkeypatch):
    monkeypatch.setattr(pages, "_madvise", lambda: lambda *_: errno.EINVAL)
    descriptor = shared.make_shared(NBYTES)
    assert os.fstat(descriptor).st_blocks * 512 == NBYTES
    os.close(descriptor)


def test_where_there_are_none_left_it_says_so_and_keeps_nothing(monkeypatch):
    codes = iter([0, errno.ENOMEM, errno.EINVAL])
    monkeypatch.setattr(pages, "_madvise", lambda: lambda *_: next(codes))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OutOfMemory, match="Cannot allocate memory"):
        shared.make_shared(NBYTES)
    assert os.listdir("/proc/self/fd") == before
