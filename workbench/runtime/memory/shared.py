"""Host memory of all ranks of a machine: one copy of weights, masters, moments and stashes.

The published Harmony keeps a pinned copy of the weights per rank beside the shared one, so that a
server's memory limits the model by the number of its GPUs. Here every rank maps the same memory and
pins what it transfers itself. The memory is unlinked files that the parent process holds open: it
is gone with its last user, however that one ends. They are mapped one behind the other, and are
several, since the kernel makes the pages of one file one after the other: 3.7 GB/s by 32 threads,
where 24 files of 1 GiB gave 11.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from pathlib import Path

import torch
from torch import Tensor

from workbench.core.host import available_cores
from workbench.runtime.executor.threads import update_threads
from workbench.runtime.memory.pages import PIECE, bring
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.schedule.schedule import HOST_TIER, PAGE, Schedule

FILE_BYTES, MOST_FILES = 1 << 30, 64
"""Bytes of a file, or twice as much and so on where that would be more files than `MOST_FILES`: all
are open."""
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
"""Linux: in the place of what is there, and without a claim to memory. Python 3.11 has neither."""


def host_layout(schedule: Schedule) -> tuple[dict[str, tuple[int, int]], int]:
    """Where each host buffer lies, as (offset, bytes), each on pages of its own, and the bytes of
    all. The same on every rank."""
    places, at = {}, 0
    for label, buffer in schedule.buffers.items():
        if buffer.tier == HOST_TIER:
            places[label] = (at, buffer.nbytes)
            at += -(-buffer.nbytes // PAGE) * PAGE
    return places, at


def make_shared(nbytes: int, what: str = "host memory of all ranks") -> list[int]:
    """File descriptors of so much zeroed memory without a name. Raises OutOfMemory."""
    descriptors: list[int] = []
    sizes = _file_sizes(nbytes)
    try:
        for size in sizes:
            descriptors.append(os.memfd_create("workbench-host", os.MFD_CLOEXEC))
            os.ftruncate(descriptors[-1], size)
        with _mapped(descriptors, nbytes) as pages:
            if not bring(_in_turn(_address(pages), sizes), available_cores()):
                for descriptor, size in zip(descriptors, sizes, strict=True):
                    os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise OutOfMemory(
            tier="host", what=what, asked=nbytes, in_use=0, budget=None, why=error.strerror
        ) from error
    return descriptors


def _file_sizes(nbytes: int) -> list[int]:
    """Sizes of the files that hold so many bytes; at least a page."""
    size = FILE_BYTES * max(1, -(-nbytes // (MOST_FILES * FILE_BYTES)))
    whole, rest = divmod(nbytes, size)
    return [size] * whole + [rest] * bool(rest) or [PAGE]


def _in_turn(start: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(address, bytes) of pieces of all files, those first with which each begins: threads that
    take one after the other are seldom at work on the same file."""
    pieces, at = [], start
    for size in sizes:
        pieces.append([(at + here, min(PIECE, size - here)) for here in range(0, size, PIECE)])
        at += size
    return [piece for piece in chain(*zip_longest(*pieces)) if piece]


def _mapped(descriptors: Sequence[int], nbytes: int) -> mmap.mmap:
    """Files one behind the other. What takes their addresses first also ends them."""
    sizes = _file_sizes(nbytes)
    whole = mmap.mmap(-1, sum(sizes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    at = _address(whole)
    for descriptor, size in zip(descriptors, sizes, strict=True):
        _map_at(at, size, descriptor)
        at += size
    return whole


def _map_at(address: int, nbytes: int, descriptor: int) -> None:
    """Raises OSError."""
    access, where = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED
    if _system_mmap()(address, nbytes, access, where, descriptor, 0) != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@functools.cache
def _system_mmap() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    number = ctypes.c_int
    function.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long,
    )  # fmt: skip
    return function


def _address(pages: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(pages))


class SharedHost:
    """This rank's view of the host memory of all."""

    def __init__(
        self, paths: Sequence[Path], schedule: Schedule, rank: int, *, pin: bool, replica: int = 0
    ) -> None:
        """`paths` are the files, ``/proc/PID/fd/N`` of the process that made them.
        With `pin`, the memory that this rank's actions touch is page-locked. Of buffers in parts,
        this process has the `replica`'s."""
        self._places, nbytes = host_layout(schedule)
        self._buffers, self._replica = schedule.buffers, replica
        self._pinned: list[int] = []
        files: list[int] = []
        try:
            files += (os.open(path, os.O_RDWR) for path in paths)
            self._map = _mapped(files, nbytes)
        finally:
            for file in files:
                os.close(file)
        self._whole = torch.frombuffer(self._map, dtype=torch.uint8)
        if pin:
            self._pin(schedule, rank)

    def _pin(self, schedule: Schedule, rank: int) -> None:
        touched = {
            label
            for action in schedule.actions
            if action.rank == rank
            for label in (*action.takes, *action.uses, *action.frees)
            if label in self._places and self._places[label][1]  # CUDA registers no empty memory
        }
        start = self._whole.data_ptr()
        bring(
            ((start + at, nbytes) for at, nbytes in map(self._places.get, touched)),
            update_threads("cuda", schedule.mesh.processes),
        )
        for label in sorted(touched):
            at, nbytes = self._places[label]
            address = start + at
            if code := int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0)):
                self.close()
                raise OutOfMemory(
                    tier="host",
                    what=f"{label}, pinned by rank {rank},",
                    asked=nbytes,
                    in_use=0,
                    budget=None,
                    why=f"pinning failed with CUDA error {code}",
                )
            self._pinned.append(address)

    def view(self, label: str, dtype: torch.dtype = torch.uint8) -> Tensor:
        """A host buffer of the schedule, or this replica's part, flat."""
        parts = self._buffers[label].parts
        nbytes = self._places[label][1] // parts
        at = self._places[label][0] + (self._replica * nbytes if parts > 1 else 0)
        return self._whole[at : at + nbytes].view(dtype)  # [nbytes / size of dtype]

    def close(self) -> None:
        """Unpin. The memory goes with its last user. Does nothing the second time."""
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()
