"""A fixed number of aligned buffers that transfers take turns with.

Memory that a transfer needs on its way (a slab on its way to the disk, an update of states that
live there) must not grow with the model, so it comes from a pool of known size: a transfer that
finds it empty waits, and that waiting is what keeps reading ahead and writing behind within bounds.
"""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from torch import Tensor

from workbench.runtime.memory.tiers import Tier, slab

ALIGNMENT = 4096
"""Alignment in bytes of addresses, lengths and offsets for direct disk I/O on any common device."""


def round_up(nbytes: int) -> int:
    """The smallest multiple of ALIGNMENT that is not below ``nbytes``."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class StagingPool:
    """``count`` buffers of ``nbytes`` (rounded up) each, accounted in ``tier``. Thread-safe."""

    def __init__(
        self, tier: Tier, label: str, *, count: int, nbytes: int, pin: bool = False
    ) -> None:
        if count < 1 or nbytes < 1:
            raise ValueError(
                f"a staging pool of {count} buffers of {nbytes} bytes; both must be at least 1"
            )
        self.nbytes = round_up(nbytes)
        """Size of one buffer."""
        self._slabs = []
        try:
            for index in range(count):
                self._slabs.append(slab(tier, f"{label} {index}", self.nbytes, pin=pin))
        except BaseException:
            self.close()
            raise
        self._free: queue.LifoQueue[Tensor] = (
            queue.LifoQueue()
        )  # the last one used is the one in cache
        for buffer in self._slabs:
            self._free.put(buffer.tensor)

    def acquire(self, timeout_s: float | None = None) -> Tensor:
        """A uint8 tensor of ``nbytes`` that is the caller's until ``release``; waits while all are
        out.

        TimeoutError after ``timeout_s`` seconds (None: wait for ever).
        """
        try:
            return self._free.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(
                f"no staging buffer came free in {timeout_s} s: all {len(self._slabs)} are in use"
            ) from None

    def release(self, buffer: Tensor) -> None:
        """Give back a buffer that ``acquire`` returned."""
        self._free.put(buffer)

    @contextmanager
    def lease(self) -> Iterator[Tensor]:
        """A buffer for the length of a ``with`` block."""
        buffer = self.acquire()
        try:
            yield buffer
        finally:
            self.release(buffer)

    def close(self) -> None:
        """Free the buffers; none may be in use."""
        for buffer in self._slabs:
            buffer.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
