"""Pages that threads bring are there, whole, and hold what they held."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from itertools import chain, repeat
from pathlib import Path

import pytest

from workbench.runtime.memory import pages, shared
from workbench.runtime.memory.tiers import OutOfMemory

NBYTES = 2 * pages.PIECE + 5 * shared.PAGE


KERNEL = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def here() -> int:
    """Bytes of files in memory that this process has mapped."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss_Shmem"))


@pytest.mark.parametrize("threads", [1, 3])
def test_memory_is_made_at_once_and_mapped_without_a_change(threads):
    (descriptor,) = shared.make_shared(NBYTES)
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
            assert here() - before == NBYTES
            assert memory[pages.PIECE - 2 : pages.PIECE + 3] == b"there"
            assert memory[:].count(0) == NBYTES - 5
    finally:
        os.close(descriptor)


def test_a_kernel_that_cannot_makes_them_itself(monkeypatch):
    monkeypatch.setattr(pages, "_madvise", lambda: lambda *_: errno.EINVAL)
    (descriptor,) = shared.make_shared(NBYTES)
    assert os.fstat(descriptor).st_blocks * 512 == NBYTES
    os.close(descriptor)


def test_where_there_are_none_left_it_says_so_and_keeps_nothing(monkeypatch):
    codes = chain([0, errno.ENOMEM, errno.EINVAL], repeat(0))
    monkeypatch.setattr(pages, "_madvise", lambda: lambda *_: next(codes))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OutOfMemory, match="Cannot allocate memory"):
        shared.make_shared(NBYTES)
    assert os.listdir("/proc/self/fd") == before


def test_who_brings_them_beside_stops_before_their_memory_goes(monkeypatch):
    """Once `end` has returned, nothing is asked for any more."""
    asked, going_on = [], threading.Event()

    def touch(at, nbytes):
        asked.append(at)
        going_on.set()
        time.sleep(0.01)
        return 0

    monkeypatch.setattr(pages, "_madvise", lambda: touch)
    bringing = pages.Bringing([(0, 64 * pages.PIECE)], 3)
    assert going_on.wait(60)
    bringing.end()
    seen = len(asked)
    time.sleep(0.1)
    assert 0 < seen == len(asked) < 64 * pages.PIECE // pages.STEP


@pytest.mark.parametrize("nbytes", [1, 4, 5, 8, 11])
def test_several_files_are_one_piece_of_memory(monkeypatch, nbytes):
    """Every page is there, and is that of the file at its place, for each who maps them."""
    monkeypatch.setattr(shared, "FILE_BYTES", 4 * shared.PAGE)
    monkeypatch.setattr(shared, "PIECE", shared.PAGE)
    nbytes *= shared.PAGE
    before = os.listdir("/proc/self/fd")
    files = shared.make_shared(nbytes)
    assert [os.fstat(file).st_size for file in files] == shared._file_sizes(nbytes)
    assert sum(os.fstat(file).st_blocks * 512 for file in files) == nbytes
    with shared._mapped(files, nbytes) as one, shared._mapped(files, nbytes) as other:
        for page in range(nbytes // shared.PAGE):
            one[page * shared.PAGE] = page + 1
        assert other[:] == one[:]
    for number, file in enumerate(files):
        assert os.pread(file, 1, 0) == bytes([4 * number + 1])
        os.close(file)
    assert os.listdir("/proc/self/fd") == before


def test_pieces_begin_in_all_files_before_any_is_done(monkeypatch):
    monkeypatch.setattr(shared, "PIECE", 10)
    assert shared._in_turn(100, [20, 20, 5]) == [
        (100, 10),
        (120, 10),
        (140, 5),
        (110, 10),
        (130, 10),
    ]


def test_a_larger_memory_has_larger_files_and_no_more_than_a_process_may_open():
    for nbytes in (0, shared.PAGE, shared.FILE_BYTES, 64 << 30, 65 << 30, 2 << 40):
        sizes = shared._file_sizes(nbytes)
        assert len(sizes) <= shared.MOST_FILES
        assert max(nbytes, shared.PAGE) == sum(sizes)
        assert all(size % shared.FILE_BYTES == 0 for size in sizes[:-1])
