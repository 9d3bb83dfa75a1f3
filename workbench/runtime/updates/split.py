"""fp32 master weights as two halves: a bf16 working weight and the rest.

A bf16 model trained with AdamW needs fp32 weights to add small steps to, and bf16 ones to compute
with. Kept side by side they cost 6 bytes per parameter; but the bf16 weight is nearly the upper
half of the fp32 one, so storing what is missing beside it costs 4, and host memory moves 2 bytes
less in each update and needs no second copy to transfer from.

``weights`` is the master rounded to bf16, to nearest, ties away from zero, and ``rest`` the
difference of their bits as a signed 16-bit integer:

    weights = (bits + 0x8000) >> 16        rest = bits - (weights << 16), from -2^15 to 2^15 - 1

So every pair of halves is exactly one fp32 value, and joining is exact. torch's own cast rounds
ties to even, which 16 bits cannot undo: half of the ties would leave -2^15 and the other half
+2^15. So ``weights`` differs from torch's cast in exact ties alone. Zeros, subnormals and
infinities are values like all others. A NaN survives joining, but those with the largest payloads
show as a zero in ``weights``.
"""

import ctypes
import functools
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from workbench.core import native

SOURCE = Path(__file__).with_suffix(".cpp")

# Elements at a time; bounds the temporary of 4 bytes each to 4 MiB, which stays in cache.
CHUNK = 1 << 20
IN_CACHE = 1 << 18
"""Elements that torch joins at a time, where they go on at once."""


def split(master: Tensor, weights: Tensor, rest: Tensor) -> None:
    """Write the halves of ``master`` (fp32) to ``weights`` (bf16) and ``rest`` (int16).

    All are contiguous, on one device, with as many elements; shapes may differ. Raises ValueError
    otherwise.
    """
    _check(weights, rest, master)
    bits, upper, lower = master.view(-1).view(torch.int32), _bits(weights), rest.view(-1)
    for part in _parts(bits.numel()):
        lower[part] = bits[part]  # keeps the lower 16 bits
        upper[part] = (bits[part] + 0x8000).bitwise_right_shift_(16)


def join(weights: Tensor, rest: Tensor, out: Tensor | None = None) -> Tensor:
    """The fp32 masters of which ``weights`` (bf16) and ``rest`` (int16) are the halves.

    In the shape of ``weights``; a new tensor, or ``out`` (fp32). All are contiguous, on one device,
    with as many elements. Raises ValueError otherwise.
    """
    if out is None:
        out = torch.empty_like(weights, dtype=torch.float32)
    _check(weights, rest, out)
    bits, upper, lower = out.view(-1).view(torch.int32), _bits(weights), rest.view(-1)
    for part in _parts(bits.numel()):
        bits[part] = upper[part]
        bits[part].bitwise_left_shift_(16).add_(lower[part])
    return out


def rounded(weights: Tensor, rest: Tensor, dtype: torch.dtype, *, threads: int = 1) -> Tensor:
    """The masters in a narrower type, as torch's cast rounds them: a new tensor, in the shape of
    ``weights``.

    Both halves are contiguous, on one device, with as many elements. Raises ValueError otherwise.
    On the host, where there is a compiler, so many ``threads`` round to bf16.
    """
    _check(weights, rest)
    out = torch.empty_like(weights, dtype=dtype)
    here = weights.device.type == "cpu" and dtype == torch.bfloat16
    kernel = _kernel() if here else None
    if kernel is not None:
        kernel(weights.data_ptr(), rest.data_ptr(), out.data_ptr(), out.numel(), threads)
        return out
    # Pages of new memory for whole masters would take longer than the rest.
    flat = (t.view(-1).split(IN_CACHE) for t in (out, weights, rest))
    for own, *halves in zip(*flat, strict=True):
        own.copy_(join(*halves))
    return out


@functools.cache
def _kernel() -> Callable[..., None] | None:
    pointers, counts = (ctypes.c_void_p,) * 3, (ctypes.c_int64,) * 2
    return native.function(SOURCE, "workbench_round", (*pointers, *counts), None)


def _bits(weights: Tensor) -> Tensor:
    return weights.view(-1).view(torch.int16)


def _parts(numel: int) -> list[slice]:
    return [slice(*ends) for ends in pairwise([*range(0, numel, CHUNK), numel])]


def _check(weights: Tensor, rest: Tensor, master: Tensor | None = None) -> None:
    wanted = {"weights": (weights, torch.bfloat16), "rest": (rest, torch.int16)}
    if master is not None:
        wanted["master"] = (master, torch.float32)
    for name, (tensor, dtype) in wanted.items():
        if tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype}; {dtype} is needed")
        if tensor.numel() != weights.numel():
            raise ValueError(f"{name} has {tensor.numel()} elements; weights has {weights.numel()}")
        if tensor.device != weights.device:
            raise ValueError(f"{name} is on {tensor.device}; weights is on {weights.device}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} is not contiguous: strides {tensor.stride()}")
