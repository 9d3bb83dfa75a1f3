"""The AdamW of ``host_adam.cpp`` as one Triton kernel: one pass, no temporaries.

``device_adam`` imports this where Triton works. Each program updates one block of a slab. Per
parameter it moves 26 bytes (bf16 gradient read; weight, rest of the master and both moments read
and written; an fp32 weight is as wide as a bf16 one with its rest), at the memory's speed.

Arithmetic. Operations, order and roundings are the host kernel's, so that a layer trains the same
on either tier. That takes correctly rounded roots and quotients (``sqrt_rn``, ``div_rn``), and no
contraction but the two that are written out. Triton lets the compiler fuse any product with any
sum unless the launch says ``enable_fp_fusion=False``.
"""

import triton
import triton.language as tl
from torch import Tensor, cuda

from workbench.runtime.adam_step import AdamStep

BLOCK = 512  # 4 elements a thread: one 16-byte access of fp32, and no tensor changes its layout
WARPS = 4


def launch(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep,
    decay_split: int,
    rest: Tensor | None,
) -> None:
    """Enqueue the update of slabs that were checked, on their device's current stream."""
    numel = weights.numel()
    if numel == 0:
        return
    with cuda.device(weights.device):
        adamw[(triton.cdiv(numel, BLOCK),)](
            weights,
            rest,
            exp_avg,
            exp_avg_sq,
            grad,
            numel,
            decay_split,
            **hyper.scalars(),
            BLOCK=BLOCK,
            num_warps=WARPS,
            enable_fp_fusion=False,
        )


# Types are annotated so that no value of a number (a length of 1, a rate that changes every step)
# makes a kernel of its own; only the tensors' types and 16-byte alignment do.
@triton.jit(do_not_specialize=["numel", "decay_split"])
def adamw(
    weights,
    rest,
    exp_avg,
    exp_avg_sq,
    grad,
    numel: tl.int64,
    decay_split: tl.int64,
    grad_scale: tl.float32,
    decay: tl.float32,
    lerp_weight: tl.float32,
    beta2: tl.float32,
    one_minus_beta2: tl.float32,
    sqrt_correction2: tl.float32,
    eps: tl.float32,
    neg_step_size: tl.float32,
    BLOCK: tl.constexpr,
):
    begin = tl.program_id(0).to(tl.int64) * BLOCK  # slabs may pass 2^31 elements
    at = begin + tl.arange(0, BLOCK)
    rate = (grad_scale, lerp_weight, beta2, one_minus_beta2, sqrt_correction2, eps, neg_step_size)
    shrink = tl.where(at < decay_split, decay, 1.0)
    # A mask of any length forbids wide accesses, so the last block alone has one.
    if begin + BLOCK <= numel:
        update_block(weights, rest, exp_avg, exp_avg_sq, grad, at, None, shrink, rate)
    else:
        update_block(weights, rest, exp_avg, exp_avg_sq, grad, at, at < numel, shrink, rate)


@triton.jit
def update_block(weights, rest, exp_avg, exp_avg_sq, grad, at, mask, shrink, rate):
    """Update the elements ``at`` where ``mask``; ``rest`` is None where ``weights`` are fp32."""
    grad_scale, lerp_weight, beta2, one_minus_beta2, sqrt_correction2, eps, neg_step_size = rate
    g = tl.load(grad + at, mask=mask).to(tl.float32) * grad_scale
    m = tl.load(exp_avg + at, mask=mask)
    v = tl.load(exp_avg_sq + at, mask=mask)
    if rest is None:
        p = tl.load(weights + at, mask=mask)
    else:
        high = tl.load(weights + at, mask=mask).to(tl.int16, bitcast=True).to(tl.int32)
        low = tl.load(rest + at, mask=mask).to(tl.int32)
        p = ((high << 16) + low).to(tl.float32, bitcast=True)

    from_start = lerp_weight < 0.5  # torch interpolates from the nearer end
    weight = tl.where(from_start, lerp_weight, lerp_weight - 1.0)
    m = tl.fma(weight, g - m, tl.where(from_start, m, g))
    v = tl.fma(one_minus_beta2 * g, g, v * beta2)
    denominator = tl.div_rn(tl.sqrt_rn(v), sqrt_correction2) + eps
    p = p * shrink + tl.div_rn(neg_step_size * m, denominator)

    tl.store(exp_avg + at, m, mask=mask)
    tl.store(exp_avg_sq + at, v, mask=mask)
    if rest is None:
        tl.store(weights + at, p, mask=mask)
    else:
        # A device's NaN is 0x7fffffff, and rounding its upper half up would make a weight of -0.
        bits = tl.where(p == p, p.to(tl.int32, bitcast=True), 0x7FC00000)
        high = (bits + 0x8000) >> 16
        tl.store(weights + at, high.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=mask)
        tl.store(rest + at, (bits - (high << 16)).to(tl.int16), mask=mask)
