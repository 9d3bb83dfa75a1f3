"""Gradients in host memory: added up, and the squares of what then is there, in one pass.

The native kernel (host_sums.cpp) says why it is one. Where there is no compiler, and for fp64,
which serves exact comparisons only, torch does the same in pieces that a cache holds: temporaries
as large as a layer would fill pages that nobody has touched yet, which takes ten times as long.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from workbench.core import native

SOURCE = Path(__file__).with_suffix(".cpp")
CHUNK = 1 << 20
"""Elements that torch takes at a time."""


def add(own: Tensor, added: Tensor | None, *, threads: int = 1) -> float:
    """Add one flat CPU tensor to another of the same type in its place; returns the sum of the
    squares of what is there then. Without `added`, of what is there.

    Sums are rounded as torch rounds them, squares are added up in fp64, in an order that `threads`
    do not change. Raises ValueError for tensors that do not match.
    """
    if added is not None and (own.shape, own.dtype) != (added.shape, added.dtype):
        raise ValueError(
            f"{tuple(added.shape)} {added.dtype} cannot be added to {tuple(own.shape)} {own.dtype}"
        )
    kernel = _kernel() if own.dtype in (torch.float32, torch.bfloat16) else None
    if kernel is not None and own.is_contiguous() and (added is None or added.is_contiguous()):
        other = None if added is None else added.data_ptr()
        bf16 = own.dtype == torch.bfloat16
        return kernel(own.data_ptr(), other, own.numel(), bf16, threads)
    total = 0.0
    for i, chunk in enumerate(own.split(CHUNK)):
        if added is not None:
            chunk += added[i * CHUNK : i * CHUNK + len(chunk)]
        total += float(torch.linalg.vector_norm(chunk, dtype=torch.float64)) ** 2
    return total


@functools.cache
def _kernel() -> Callable[..., float] | None:
    two, number = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int64
    takes = (*two, number, ctypes.c_int32, number)
    return native.function(SOURCE, "workbench_sum", takes, ctypes.c_double)
