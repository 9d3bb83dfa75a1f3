"""Mean cross-entropy of a linear head, with logits that never exist all at once.

The logits of 4 samples of 1024 tokens over 50,304 words fill 412 MB in bf16 and twice that in
fp32, and their gradient as much again: more than any layer of a windowed model. So rows are taken
in chunks. The loss is a scalar, so all that the backward pass adds to the logits' gradient is one
factor. Hence the forward pass turns each chunk's logits into their gradient as soon as they exist,
multiplies it with the head's matrix and with the rows, and forgets it (Hsu et al., "Liger Kernel",
2024); the backward pass applies the factor. That is three products, as without chunks. The price:
both gradients live from the forward pass on, and in bf16 each chunk rounds the sum in the matrix's
gradient once more, so chunks are few.

The mean's 1 / N is applied where the logits' gradient is rounded, and costs no rounding of its own.

Words come in any number, and matrix units want whole tiles: on an H200 a product with 50,257
columns takes 4.6 times as long as one with 50,304. So each product is two, one of all words but the
last few, and a small one of those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from workbench.core.native import triton_works

CHUNK_BYTES = 128 << 20
"""Bound on one chunk's logits; in bf16 4096 rows of V = 50,304 take four chunks of 98 MiB."""

ALIGNED = 64
"""Rows of a chunk and columns of its memory are multiples of this, so that matrix units get whole
tiles, and every row of logits, also one of 50,257 words, begins where wide accesses may."""

FP32_ROWS = 256
"""Rows that the forms in torch calls hold in fp32 at a time."""


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    after: Callable[[Tensor], Tensor] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Tensor:
    """Mean over tokens of -log softmax(after(x weight^T + bias))[target], an fp32 scalar.

    x [..., H], weight [V, H] and bias [V] of one dtype, targets int64 [...] below V. The softmax is
    fp32. ``after`` maps logits [N, V] to as many, each for itself: a cap, a factor; without it they
    stay. Logits exist ``chunk_bytes`` at a time, or 64 rows if that is more. One backward pass can
    be made through the result; the second raises RuntimeError.
    """
    x, targets = x.reshape(-1, x.shape[-1]), targets.reshape(-1).contiguous()
    cross_entropy_, multiply_ = _forms(x.device.type)
    if cross_entropy_ is _cross_entropy_ and 4 * len(x) * len(weight) <= chunk_bytes:
        logits = F.linear(x, weight, bias)
        return F.cross_entropy((after(logits) if after else logits).float(), targets)
    if after is not None:
        cross_entropy_ = functools.partial(_cross_entropy_after_, after)
    grads = torch.is_grad_enabled()  # inside a Function it never is
    return _Chunked.apply(x, weight, bias, targets, chunk_bytes, grads, cross_entropy_, multiply_)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        chunk_bytes: int,
        grads: bool,
        cross_entropy_: Callable[[Tensor, Tensor, Tensor, float | None], None],
        multiply_: Callable[[Tensor, Tensor], None],
    ) -> Tensor:
        want_x, want_weight, want_bias = (grads and need for need in ctx.needs_input_grad[:3])
        tokens, vocab = len(x), len(weight)
        columns = _round_up(vocab)
        whole = vocab - vocab % ALIGNED
        tiles = [part for part in (slice(0, whole), slice(whole, vocab)) if part.start < part.stop]
        rows = _rows(tokens, columns * x.element_size(), chunk_bytes)
        memory = x.new_empty(rows, columns)
        # A processor's bf16 tiles (AMX) read past the last word, and 0 times NaN is NaN.
        memory[:, vocab:].zero_()
        losses = x.new_empty(tokens, dtype=torch.float32)
        grad_x = x.new_empty(x.shape) if want_x else None
        grad_weight = weight.new_empty(weight.shape) if want_weight else None
        grad_bias = bias.new_zeros(bias.shape, dtype=torch.float32) if want_bias else None
        scale = 1 / tokens if want_x or want_weight or want_bias else None
        for start in range(0, tokens, rows):
            part = slice(start, min(start + rows, tokens))
            x_c = x[part]
            logits = memory[: len(x_c), :vocab]
            for words in tiles:
                torch.mm(x_c, weight[words].t(), out=logits[:, words])
            if bias is not None:
                logits.add_(bias)
            cross_entropy_(logits, targets[part], losses[part], scale)
            if want_bias:
                grad_bias.add_(logits.sum(0, dtype=torch.float32))
            for words in tiles:
                if want_x:
                    _add_product(
                        grad_x[part], logits[:, words], weight[words], new=words == tiles[0]
                    )
                if want_weight:
                    _add_product(grad_weight[words], logits[:, words].t(), x_c, new=start == 0)
        ctx.multiply_ = multiply_
        ctx.grads = grad_x, grad_weight, grad_bias.to(bias.dtype) if want_bias else None
        return losses.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        if ctx.grads is None:
            raise RuntimeError(
                "the gradients of this loss were handed on by an earlier backward pass; "
                "a further one needs its own forward pass"
            )
        # Not kept, so that autograd takes them over as they are and the memory ends with them.
        grads, ctx.grads = ctx.grads, None
        for tensor in grads:
            if tensor is not None:
                ctx.multiply_(tensor, grad)
        return *grads, *[None] * 5


def _add_product(out: Tensor, a: Tensor, b: Tensor, *, new: bool) -> None:
    """out = a b where `new`, else out += a b."""
    if new:
        torch.mm(a, b, out=out)
    else:
        out.addmm_(a, b)


def _rows(tokens: int, row_bytes: int, chunk_bytes: int) -> int:
    """Rows of a chunk: as few chunks as the bound allows, and all of about the same size."""
    most = max(ALIGNED, chunk_bytes // row_bytes // ALIGNED * ALIGNED)
    chunks = max(1, -(-tokens // most))
    return min(tokens, _round_up(-(-tokens // chunks)))


def _round_up(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


@functools.cache
def _forms(device_type: str) -> tuple[Callable, Callable]:
    """``cross_entropy_`` and ``multiply_`` in the form that is best on a device."""
    if device_type == "cuda" and triton_works():
        from workbench.model import loss_kernel

        return loss_kernel.cross_entropy_, loss_kernel.multiply_
    return _cross_entropy_, _multiply_


def _cross_entropy_(logits: Tensor, targets: Tensor, losses: Tensor, scale: float | None) -> None:
    """``loss_kernel.cross_entropy_`` in torch calls, with an fp32 copy of ``FP32_ROWS`` rows."""
    parts = (tensor.split(FP32_ROWS) for tensor in (logits, targets[:, None], losses[:, None]))
    for z, chosen, loss in zip(*parts, strict=True):
        logp = z.log_softmax(1, dtype=torch.float32)
        torch.neg(logp.gather(1, chosen), out=loss)
        if scale is not None:
            p = logp.exp_().scatter_add_(1, chosen, loss.new_full(loss.shape, -1.0))
            z.copy_(p.mul_(scale))


def _cross_entropy_after_(
    after: Callable[[Tensor], Tensor],
    logits: Tensor,
    targets: Tensor,
    losses: Tensor,
    scale: float | None,
) -> None:
    """As `_cross_entropy_`, of what `after` makes of logits; the gradient is of the logits."""
    parts = (tensor.split(FP32_ROWS) for tensor in (logits, targets, losses))
    for z, chosen, loss in zip(*parts, strict=True):
        with torch.set_grad_enabled(scale is not None):
            given = z.detach().requires_grad_(scale is not None)
            made = F.cross_entropy(after(given).float(), chosen, reduction="none")
            loss.copy_(made.detach())
            if scale is not None:
                z.copy_(torch.autograd.grad(made, given, torch.full_like(made, scale))[0])


def _multiply_(tensor: Tensor, factor: Tensor) -> None:
    """``loss_kernel.multiply_`` in torch calls. A factor of 1 is applied too: neither a GPU nor a
    fake tensor can be asked for it."""
    for part in tensor.split(FP32_ROWS):
        part.copy_(part.float().mul_(factor))
