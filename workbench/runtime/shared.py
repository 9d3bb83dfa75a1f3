"""Host memory of all ranks of a machine: one copy of weights, masters, moments and stashes.

The published Harmony keeps a pinned copy of the weights per rank beside the shared one, so that a
server's memory limits the model by the number of its GPUs. Here every rank maps the same memory and
pins what it transfers itself. The memory is an unlinked file that the parent process holds open, so
it is gone with its last user, however that one ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

from workbench.runtime.pages import bring
from workbench.runtime.threads import available_cores, update_threads
from workbench.runtime.tiers import OutOfMemory
from workbench.schedule.schedule import HOST_TIER, Schedule

PAGE = 4096


def host_layout(schedule: Schedule) -> tuple[dict[str, tuple[int, int]], int]:
    """Where each host buffer lies, as (offset, bytes), each on pages of its own, and the bytes of
    all. The same on every rank."""
    places, at = {}, 0
    for label, buffer in schedule.buffers.items():
        if buffer.tier == HOST_TIER:
            places[label] = (at, buffer.nbytes)
            at += -(-buffer.nbytes // PAGE) * PAGE
    return places, at


def make_shared(nbytes: int, what: str = "host memory of all ranks") -> int:
    """A file descriptor of so much zeroed memory without a name. Raises OutOfMemory."""
    descriptor, size = os.memfd_create("workbench-host", os.MFD_CLOEXEC), max(nbytes, PAGE)
    try:
        os.ftruncate(descriptor, size)
        with mmap.mmap(descriptor, size) as pages:
            if not bring([(_address(pages), size)], available_cores()):
                os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        raise OutOfMemory(
            tier="host", what=what, asked=nbytes, in_use=0, budget=None, why=error.strerror
        ) from error
    return descriptor


def _address(pages: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(pages))


class SharedHost:
    """This rank's view of the host memory of all."""

    def __init__(self, path: Path, schedule: Schedule, rank: int, *, pin: bool) -> None:
        """`path` is the file, ``/proc/PID/fd/N`` of whoever made it. With `pin`, what this rank's
        actions touch is page-locked."""
        self._places, nbytes = host_layout(schedule)
        self._pinned: list[int] = []
        file = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(file, max(nbytes, PAGE))
        finally:
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
            if label in self._places
        }
        start = self._whole.data_ptr()
        bring(
            ((start + at, nbytes) for at, nbytes in map(self._places.get, touched)),
            update_threads("cuda", schedule.num_ranks),
        )
        for label in sorted(touched):
            at, nbytes = self._places[label]
            address = start + at
            if code := int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0)):
                self.close()
                raise OutOfMemory(
                    tier="host",
                    what=f"{label} of rank {rank}",
                    asked=nbytes,
                    in_use=0,
                    budget=None,
                    why=f"pinning failed with CUDA error {code}",
                )
            self._pinned.append(address)

    def view(self, label: str, dtype: torch.dtype = torch.uint8) -> Tensor:
        """A host buffer of the schedule, flat."""
        at, nbytes = self._places[label]
        return self._whole[at : at + nbytes].view(dtype)

    def close(self) -> None:
        """Unpin. The memory goes with its last user. Does nothing the second time."""
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()
