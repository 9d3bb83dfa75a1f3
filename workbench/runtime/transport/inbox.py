"""Messages between ranks of one machine: the receiver lends a place, the sender writes into it.

Each rank keeps an inbox in its device memory, whose places the schedule assigns. The others map it:
on GPUs through the driver's handles for other processes, so that a message is one copy from device
to device that occupies no multiprocessor; without a GPU as a file in memory. When a place is free,
and when it is filled, the ranks tell each other on the board.

Sends and receives of NCCL are kernels that wait for their partner on the device. Two ranks that
wait for each other's kernels behind each other's compute hang, in an order that no schedule sees;
here a host waits for what the validator has proved to be issued, and a device only for what has
been (signals.py). NCCL also keeps half a gigabyte of each device for every pair.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from workbench.runtime.executor.notes import find, leave
from workbench.runtime.memory.device_budget import DeviceMeter


class Inbox:
    """The inboxes of all ranks, as one of them sees them."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        nbytes: int,
        meter: DeviceMeter,
        device: torch.device,
        check: Callable[[], None],
    ) -> None:
        """`nbytes` are this rank's own. `check` raises when another rank has failed."""
        self._folder, self._rank, self._device, self._check = folder, rank, device, check
        self._inboxes: dict[int, Tensor] = {}
        self._descriptor: int | None = None
        if nbytes:
            make = self._make_on_device if device.type == "cuda" else self._make_in_file
            self._inboxes[rank] = make(nbytes, meter)

    def place(self, rank: int, offset: int, nbytes: int) -> Tensor:
        """Bytes in a rank's inbox."""
        if rank not in self._inboxes:
            self._inboxes[rank] = self._open(rank)
        return self._inboxes[rank][offset : offset + nbytes]

    def close(self) -> None:
        """Let go of all; messages must have ended."""
        self._inboxes.clear()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _path(self, rank: int) -> Path:
        return self._folder / f"inbox-{rank}.json"

    def _open(self, rank: int) -> Tensor:
        """Another rank's inbox, as soon as it is there."""
        how = find(self._path(rank), self._check)
        if "file" in how:
            return _mapped(how["file"], how["nbytes"])
        # The memory of the other device is mapped into this one's: naming the other would make
        # torch open a context of its own there, which takes as much as NCCL does.
        storage = torch.UntypedStorage._new_shared_cuda(
            self._device.index,
            bytes.fromhex(how["handle"]),
            how["size"],
            how["offset"],
            bytes.fromhex(how["counter"]),
            how["counter_offset"],
            b"",
            False,
        )
        whole = torch.empty(0, dtype=torch.uint8, device=self._device)
        return whole.set_(storage, 0, (how["nbytes"],), (1,))

    def _make_on_device(self, nbytes: int, meter: DeviceMeter) -> Tensor:
        own = meter.zeros(nbytes, torch.uint8)  # [bytes of all places]
        torch.cuda.synchronize(self._device)
        _, handle, size, offset, counter, counter_offset, *_ = own.untyped_storage()._share_cuda_()
        leave(
            self._path(self._rank),
            {
                "handle": handle.hex(),
                "size": size,
                "offset": offset,
                "counter": counter.hex(),
                "counter_offset": counter_offset,
                "nbytes": nbytes,
            },
        )
        return own

    def _make_in_file(self, nbytes: int, meter: DeviceMeter) -> Tensor:
        """Memory that ends with the last process that has it open."""
        self._descriptor = os.memfd_create("inbox")
        os.ftruncate(self._descriptor, nbytes)
        file = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        own = _mapped(file, nbytes)
        meter.register(own)
        leave(self._path(self._rank), {"file": file, "nbytes": nbytes})
        return own


def _mapped(file: str, nbytes: int) -> Tensor:
    descriptor = os.open(file, os.O_RDWR)
    try:
        memory = mmap.mmap(descriptor, nbytes)
    finally:
        os.close(descriptor)
    return torch.frombuffer(memory, dtype=torch.uint8)
