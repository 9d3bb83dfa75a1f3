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

from itertools import pairwise

import torch
from torch import Tensor

# Elements at a time; bounds the temporary of 4 bytes each to 4 MiB, which stays in cache.
CHUNK = 1 << 20


def split(master: Tensor, weights: Tensor, rest: Tensor) -> None:
    """Write the halves of ``master`` (fp32) to ``weights`` (bf16) and ``rest`` (int16).

    All are contiguous, on one device, with as many elements; shapes may differ. Raises ValueError
    otherwise.
    """
    _check(master, weights, rest)
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
    _check(out, weights, rest)
    bits, upper, lower = out.view(-1).view(torch.int32), _bits(weights), rest.view(-1)
    for part in _parts(bits.numel()):
        bits[part] = upper[part]
        bits[part].bitwise_left_shift_(16).add_(lower[part])
    return out


def _bits(weights: Tensor) -> Tensor:
    return weights.view(-1).view(torch.int16)


def _parts(numel: int) -> list[slice]:
    return [slice(*ends) for ends in pairwise([*range(0, numel, CHUNK), numel])]


def _check(master: Tensor, weights: Tensor, rest: Tensor) -> None:
    wanted = {
        "master": (master, torch.float32),
        "weights": (weights, torch.bfloat16),
        "rest": (rest, torch.int16),
    }
    for name, (tensor, dtype) in wanted.items():
        if tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype}; {dtype} is needed")
        if tensor.numel() != master.numel():
            raise ValueError(f"{name} has {tensor.numel()} elements; master has {master.numel()}")
        if tensor.device != master.device:
            raise ValueError(f"{name} is on {tensor.device}; master is on {master.device}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} is not contiguous: strides {tensor.stride()}")
