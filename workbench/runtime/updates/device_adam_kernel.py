"""The AdamW of ``host_adam.cpp`` as one Triton kernel: one pass, no temporaries.

``device_adam`` imports this where Triton works. Each program updates one block of a slab. Per
parameter it moves 26 bytes (bf16 gradient read; weight, rest of the master and both moments read
and written; an fp32 weight is as wide as a bf16 one with its rest), at the memory's speed. Taking
an update back, or back and on again, moves no more.

Arithmetic. Operations, order and roundings are the host kernel's, so that a layer trains the same
on either tier. That takes correctly rounded roots and quotients (``sqrt_rn``, ``div_rn``), and no
contraction but those that are written out. Triton lets the compiler fuse any product with any
sum unless the launch says ``enable_fp_fusion=False``. Where the host divides by a reciprocal that
it corrects, this does too: near the ends of fp32's range that is not what a division gives.
"""

from ctypes import c_float
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor, cuda

from workbench.runtime.updates.adam_step import AdamStep

BLOCK = 512  # 4 elements a thread: one 16-byte access of fp32, and no tensor changes its layout
WARPS = 4


class Scalars(NamedTuple):
    """Scalars of an update to apply, as ``AdamStep.scalars`` names them."""

    grad_scale: float
    decay: float
    lerp_weight: float
    beta2: float
    one_minus_beta2: float
    sqrt_correction2: float
    eps: float
    neg_step_size: float


class Undo(NamedTuple):
    """Scalars of an update to take back, and the reciprocals of its divisors."""

    grad_scale: float
    decay: float
    lerp_weight: float
    beta2: float
    one_minus_beta2: float
    sqrt_correction2: float
    eps: float
    neg_step_size: float
    over_decay: float
    over_beta2: float
    over_correction2: float

    @classmethod
    def of(cls, step: AdamStep) -> "Undo":
        """The numbers that take a step back."""
        s = step.scalars()
        return cls(
            **s,
            over_decay=reciprocal(s["decay"]),
            over_beta2=reciprocal(s["beta2"]),
            over_correction2=reciprocal(s["sqrt_correction2"]),
        )

    @property
    def over_kept_m(self) -> float:
        """1 / beta1 in double, or 0 where beta1 is 0: that update has forgotten the old moment."""
        return 0.0 if self.lerp_weight == 1 else 1 / (1 - self.lerp_weight)


def reciprocal(x: float) -> float:
    """1 / x of an fp32 number, in fp32; 0 for 0. (Rounding a double's quotient again changes no
    bit.)"""
    return c_float(1 / x).value if x else 0.0


def launch(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep | None,
    *,
    decay_split: int,
    rest: Tensor | None,
    undo: AdamStep | None,
) -> None:
    """Enqueue, on their device's current stream, an update of slabs that were checked.

    ``undo`` is taken back first, then ``hyper`` is applied; at most one of them is None.
    """
    numel = weights.numel()
    if numel == 0:
        return
    applied = None if undo is None else Undo.of(undo)
    with cuda.device(weights.device):
        adamw[(triton.cdiv(numel, BLOCK),)](
            weights,
            rest,
            exp_avg,
            exp_avg_sq,
            grad,
            numel,
            decay_split,
            applied,
            0.0 if applied is None else applied.over_kept_m,
            None if hyper is None else Scalars(**hyper.scalars()),
            BLOCK=BLOCK,
            num_warps=WARPS,
            enable_fp_fusion=False,
        )


# Types are annotated so that no value of a number (a length of 1, a rate that changes every step)
# makes a kernel of its own; only the tensors' types and 16-byte alignment do, and which of rest,
# undo and hyper are None: what is None leaves no code. Python's numbers in a tuple are fp32
# whatever their value, so the one double comes beside it.
@triton.jit(do_not_specialize=["numel", "decay_split"])
def adamw(
    weights,
    rest,
    exp_avg,
    exp_avg_sq,
    grad,
    numel: tl.int64,
    decay_split: tl.int64,
    undo,
    over_kept_m: tl.float64,
    hyper,
    BLOCK: tl.constexpr,
):
    begin = tl.program_id(0).to(tl.int64) * BLOCK  # slabs may pass 2^31 elements
    at = begin + tl.arange(0, BLOCK)
    decays = at < decay_split
    shrink = tl.where(decays, 1.0 if hyper is None else hyper.decay, 1.0)
    work = (decays, undo, over_kept_m, shrink, hyper)
    # A mask of any length forbids wide accesses, so the last block alone has one.
    if begin + BLOCK <= numel:
        update_block(weights, rest, exp_avg, exp_avg_sq, grad, at, None, work)
    else:
        update_block(weights, rest, exp_avg, exp_avg_sq, grad, at, at < numel, work)


@triton.jit
def update_block(weights, rest, exp_avg, exp_avg_sq, grad, at, mask, work):
    """Update the elements ``at`` where ``mask``; ``rest`` is None where ``weights`` are fp32."""
    decays, undo, over_kept_m, shrink, hyper = work
    g = tl.load(grad + at, mask=mask).to(tl.float32)
    m = tl.load(exp_avg + at, mask=mask)
    v = tl.load(exp_avg_sq + at, mask=mask)
    if rest is None:
        p = tl.load(weights + at, mask=mask)
    else:
        high = tl.load(weights + at, mask=mask).to(tl.int16, bitcast=True).to(tl.int32)
        low = tl.load(rest + at, mask=mask).to(tl.int32)
        p = ((high << 16) + low).to(tl.float32, bitcast=True)

    if undo is not None:
        p, m, v = revert(p, m, v, g, decays, undo, over_kept_m)
    if hyper is not None:
        p, m, v = apply(p, m, v, g, shrink, hyper)

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


@triton.jit
def apply(p, m, v, g, shrink, s):
    """The update: new weight and moments from old ones and the gradient, which ``s`` scales."""
    g = g * s.grad_scale
    from_start = s.lerp_weight < 0.5  # torch interpolates from the nearer end
    weight = tl.where(from_start, s.lerp_weight, s.lerp_weight - 1.0)
    m = tl.fma(weight, g - m, tl.where(from_start, m, g))
    v = tl.fma(s.one_minus_beta2 * g, g, v * s.beta2)
    denominator = tl.div_rn(tl.sqrt_rn(v), s.sqrt_correction2) + s.eps
    p = p * shrink + tl.div_rn(s.neg_step_size * m, denominator)
    return p, m, v


@triton.jit
def revert(p, m, v, g, decays, s, over_kept_m):
    """Its inverse, operation by operation; ``host_adam.cpp`` says which are in double and why."""
    ROUNDING: tl.constexpr = 2.0**-24  # of a sum, relative to it: what is no more than that was 0
    g = g * s.grad_scale
    left_m = m.to(tl.float64) - g.to(tl.float64) * s.lerp_weight
    left_v = tl.fma(-s.one_minus_beta2 * g, g, v)
    denominator = quotient(tl.sqrt_rn(v), s.sqrt_correction2, s.over_correction2) + s.eps
    left_p = p - tl.div_rn(s.neg_step_size * m, denominator)

    no_m = tl.abs(left_m) <= (tl.abs(m) * ROUNDING).to(tl.float64)
    old_m = tl.where(no_m, 0.0, (left_m * over_kept_m).to(tl.float32))
    old_v = tl.where(left_v <= v * ROUNDING, 0.0, quotient(left_v, s.beta2, s.over_beta2))
    shrink = tl.where(decays, s.decay, 1.0)
    old_p = quotient(left_p, shrink, tl.where(decays, s.over_decay, 1.0))
    return old_p, old_m, old_v


@triton.jit
def quotient(x, divisor, over):
    """x / divisor by the rounded reciprocal ``over``, corrected twice by its exact remainder."""
    near = x * over
    near = tl.fma(tl.fma(near, -divisor, x), over, near)
    return tl.fma(tl.fma(near, -divisor, x), over, near)
