"""Mean cross-entropy of a linear head, with logits that never exist all at once.

The logits of 4 samples of 1024 tokens over 50,304 words fill 824 MB in fp32, and their gradient as
much again: more than any layer of a windowed model. So, past a bound, rows are taken in chunks:
the forward pass keeps nothing, the backward pass recomputes a chunk's logits and turns them into
their gradient. That costs one more product with the head's matrix, a third of the head, itself the
work of V / 12 h layers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_BYTES = 128 << 20
"""Bound on the fp32 logits of one chunk; 640 rows at V = 50,304 still fill a matrix unit."""


def linear_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, *, chunk_bytes: int = CHUNK_BYTES
) -> Tensor:
    """Mean over tokens of -log softmax(x weight^T)[target], an fp32 scalar.

    x [..., H] and weight [V, H] of one dtype, targets [...] below V. The softmax is fp32.
    """
    x, targets = x.reshape(-1, x.shape[-1]), targets.reshape(-1)
    rows = max(1, chunk_bytes // (4 * len(weight)))
    if len(x) <= rows:
        return F.cross_entropy(F.linear(x, weight).float(), targets)
    rows = max(64, rows - rows % 64)
    return _Chunked.apply(x, weight, targets, rows)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, targets: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(x, weight, targets)
        ctx.rows = rows
        total = x.new_zeros((), dtype=torch.float32)
        for x_c, t_c in zip(x.split(rows), targets.split(rows), strict=True):
            logp = F.linear(x_c, weight).log_softmax(1, dtype=torch.float32)
            total -= logp.gather(1, t_c[:, None]).sum()
        return total / len(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight, targets = ctx.saved_tensors
        want_x, want_weight = ctx.needs_input_grad[:2]
        grad_x = torch.empty_like(x) if want_x else None
        grad_weight = torch.zeros_like(weight) if want_weight else None
        scale = grad / len(x)  # fp32, and on the narrow side of the products: H wide, not V
        minus_one = grad.new_full((ctx.rows, 1), -1.0)
        for start in range(0, len(x), ctx.rows):
            part = slice(start, start + ctx.rows)
            p = F.linear(x[part], weight).softmax(1, dtype=torch.float32)
            p.scatter_add_(1, targets[part, None], minus_one)
            p = p.to(weight.dtype)
            if want_x:
                grad_x[part] = (p @ weight).float() * scale
            if want_weight:
                grad_weight.addmm_(p.t(), (x[part].float() * scale).to(x.dtype))
        return grad_x, grad_weight, None, None
