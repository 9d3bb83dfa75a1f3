"""Numbers that the device writes to the host, without a transfer.

A copy of four bytes waits for the copy engine like any other, and that may be busy with the states
of whole layers. A kernel can write to pinned host memory itself: the host reads the number as soon
as an event behind the kernel has happened.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PinnedScalars:
    """`count` fp32 numbers in pinned host memory, written by kernels on `device`."""

    def __init__(self, count: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._here = torch.zeros(count, pin_memory=cuda)  # [steps in flight]
        self._there = torch.as_tensor(_Mapped(self._here), device=device) if cuda else self._here

    def write_norm(self, index: int, norms: list[Tensor]) -> None:
        """Write the 2-norm of `norms`, fp32 vectors, on the current stream."""
        torch.linalg.vector_norm(torch.cat(norms), out=self._there[index])

    def __getitem__(self, index: int) -> float:
        """The number; its reader has waited for the stream that wrote it."""
        return float(self._here[index])


class _Mapped:
    """Pinned host memory, presented to torch as device memory of another library."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.data_ptr(), False),
            "version": 2,
        }
