"""Cross-entropy and its gradient in one pass over the logits, in place, as Triton kernels.

``loss`` imports this where Triton works. A program has one row. It sweeps the row once for the
largest logit and the sum of exponentials, each thread for itself so that none waits for another
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), and once more to
overwrite the logits with their gradient. Arithmetic is fp32 in registers: nothing as wide as a row
ever lies in memory in fp32, where torch's forms keep two or three such tensors.
"""

import triton
import triton.language as tl
from torch import Tensor, cuda

# A thread reads 8 neighbours at a time, 16 bytes of bf16. With 16 warps a program, few enough rows
# (4 of 100 kB on each multiprocessor) are at work at a time that the second sweep finds much of
# its row in a Hopper's 50 MB of cache.
WARPS = 16
WIDTH = 8

MULTIPLY_BLOCK = 4096
LOWEST = tl.constexpr(-3.0e38)  # below any logit, and finite: -inf minus itself is NaN


def cross_entropy_(logits: Tensor, targets: Tensor, losses: Tensor, scale: float | None) -> None:
    """Write the loss of each row, and the gradient of ``scale`` times their sum over the logits.

    logits [N, V] with stride 1 along a row, targets int64 [N], losses fp32 [N]. If ``scale`` is
    None the logits stay as they are. A target that is no column makes the loss NaN.
    """
    rows, columns = logits.shape
    with cuda.device(logits.device):
        cross_entropy[(rows,)](
            logits,
            targets,
            losses,
            logits.stride(0),
            columns,
            0.0 if scale is None else scale,
            GRADIENT=scale is not None,
            LANES=32 * WARPS,
            WIDTH=WIDTH,
            num_warps=WARPS,
        )


def multiply_(tensor: Tensor, factor: Tensor) -> None:
    """Multiply a contiguous tensor by an fp32 scalar on its device, rounding once.

    The scalar is read on the device, and if it is 1 nothing else moves: the host need not wait to
    know. (``Tensor.mul_`` would first round the scalar to the tensor's type.)
    """
    blocks = triton.cdiv(tensor.numel(), MULTIPLY_BLOCK)
    with cuda.device(tensor.device):
        multiply[(blocks,)](tensor, factor, tensor.numel(), BLOCK=MULTIPLY_BLOCK, num_warps=16)


@triton.jit(do_not_specialize=["columns"])
def cross_entropy(
    logits,
    targets,
    losses,
    stride,
    columns: tl.int32,
    scale: tl.float32,
    GRADIENT: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Each row's loss [rows] and, in place of its logits, their gradient [rows, columns]."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    within = (target >= 0) & (target < columns)
    # Read here: the reductions below keep every thread from overwriting it before.
    chosen = tl.load(logits + target, mask=within, other=float("nan")).to(tl.float32)
    target = target.to(tl.int32)

    # The sweeps run into the padding, whose end is known to lie at a multiple of 16: a mask that
    # ends anywhere would make every access one of a single element.
    lanes = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    top = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for begin in range(0, stride, LANES * WIDTH):
        at = begin + lanes
        z = tl.load(logits + at, mask=at < stride).to(tl.float32)
        z = tl.where(at < columns, z, float("-inf"))
        higher = tl.maximum(top, tl.max(z, axis=1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(z - higher[:, None]), axis=1)
        top = higher
    row_top = tl.max(top, axis=0)
    row_total = tl.sum(total * tl.exp(top - row_top), axis=0)
    tl.store(losses + row, tl.log(row_total) + (row_top - chosen))

    if GRADIENT:
        factor = tl.div_rn(scale, row_total)
        for begin in range(0, stride, LANES * WIDTH):
            at = begin + lanes
            z = tl.load(logits + at, mask=at < stride).to(tl.float32)
            g = tl.exp(z - row_top) * factor - tl.where(at == target, scale, 0.0)
            tl.store(logits + at, g, mask=at < stride)


@triton.jit(do_not_specialize=["numel"])
def multiply(tensor, factor, numel: tl.int64, BLOCK: tl.constexpr):
    """A tensor of numel numbers times a factor on the device, in place."""
    by = tl.load(factor)
    if by != 1.0:
        begin = tl.program_id(0).to(tl.int64) * BLOCK
        at = begin + tl.arange(0, BLOCK)
        if begin + BLOCK <= numel:
            tl.store(tensor + at, tl.load(tensor + at).to(tl.float32) * by)
        else:
            x = tl.load(tensor + at, mask=at < numel).to(tl.float32)
            tl.store(tensor + at, x * by, mask=at < numel)
