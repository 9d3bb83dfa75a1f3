"""The scalars, the checks and the inverse that all AdamW updates share, and torch's fused form.

An update of one layer may run long after it was issued, in another thread, while the training loop
has moved the learning rate on. So it takes its scalars from an immutable snapshot: the published
artifact kept them in one shared optimizer object, where concurrent updates overwrote each other's,
and its schedule never reached the offloaded layers.

The inverse. Exact clipping needs the norm of all gradients before the first update, unless updates
go ahead without it and those that a smaller ``grad_scale`` would have served are taken back. With
g the scaled gradient, w = 1 - beta1 and d = 1 - lr * weight_decay, old values follow from new ones:

    p = (p' - step) / d    m = (m' - w g) / (1 - w)    v = max(0, (v' - (1 - beta2) g g) / beta2)

where ``step`` is computed again from m' and v', to the same bits. An update is not one-to-one (a
moment shrinks before the gradient is added), so this is as exact as rounding leaves it. Each old
value differs from the true one by no more than about 2 ulp of the larger of old and new value, over
the beta or d that it is divided by: most weights and second moments come back to the bit. A
gradient that dwarfs a moment leaves less of it: what was below an ulp of m' or v' is lost, and then
0 is returned. So an update applied again with ``grad_scale`` reduced by c has moments off by about
2 ulp / c (m) and 2 ulp / c^2 (v) of their own where the gradient was all there was, and by an ulp
or two where it was not. A beta of 0 forgets the old moment and the inverse gives 0; a gradient that
overflowed (not finite, or its square) cannot be taken back.
"""

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from workbench.core.spec import RunSpec
from workbench.runtime.updates.split import join, split

# Elements that plain operations take at a time: they need several temporaries of 8 bytes each.
PIECE = 1 << 19
Part = Literal["all", "weights", "moments"]
PARTS = get_args(Part)
"""Parts of an update that a pass can write, in the order of the kernel's numbers."""
States = tuple[Tensor, Tensor, Tensor]
"""fp32 master weights, and both moments."""


class Diverged(ArithmeticError):
    """Gradients are not finite, and nobody waits for their norm: layers have been updated."""

    def __init__(self, step: int, unit: int) -> None:
        super().__init__(
            f"the gradients of unit {unit} are not finite at step {step}, and without clipping "
            "other layers have been updated by then; go on from a checkpoint, or set clip: under "
            "any limit such steps are skipped"
        )
        self.step, self.unit = step, unit


def clip_coefficient(limit: float | None, norm: float) -> float:
    """Factor for gradients of a global norm under a limit: torch's clip_grad_norm_."""
    return 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamStep:
    """Everything one update must know, fixed when it is issued."""

    step: int
    """1-based number of this update, for the bias corrections."""
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    """Decoupled: the weight shrinks by lr * weight_decay before the step."""
    grad_scale: float = 1.0
    """Gradients are multiplied by this: exact global clipping's coefficient, or 1 / loss scale."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not math.isfinite(value := getattr(self, field.name)):
                raise ValueError(f"{field.name} is {value}; a finite number is needed")
        if self.step < 1:
            raise ValueError(f"step is {self.step}; the first update is number 1")
        for name in ("beta1", "beta2"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}; it must be at least 0 and below 1")
        for name in ("lr", "eps", "weight_decay"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"{name} is {value}; it must not be negative")

    @classmethod
    def of(cls, spec: RunSpec, step: int, *, number: int, norm: float | None = None) -> Self:
        """The update that a run makes in its step `step` (from 0) as its `number`-th; clipped where
        the global norm is given and beyond the limit."""
        return cls(
            step=number,
            lr=spec.learning_rate(step),
            beta1=spec.beta1,
            beta2=spec.beta2,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            grad_scale=1.0 if norm is None else clip_coefficient(spec.clip, norm),
        )

    def scalars(self) -> dict[str, float]:
        """Factors for a kernel: computed in double, then rounded once to fp32, as torch does with
        Python's numbers."""
        correction1 = 1 - self.beta1**self.step
        correction2 = 1 - self.beta2**self.step
        exact = {
            "grad_scale": self.grad_scale,
            "decay": 1 - self.lr * self.weight_decay,
            "lerp_weight": 1 - self.beta1,
            "beta2": self.beta2,
            "one_minus_beta2": 1 - self.beta2,
            "sqrt_correction2": correction2**0.5,
            "eps": self.eps,
            "neg_step_size": -(self.lr / correction1),
        }
        return {name: ctypes.c_float(value).value for name, value in exact.items()}


def check_slabs(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    rest: Tensor | None,
    decay_split: int,
    device: torch.device,
    undo: AdamStep | None = None,
) -> None:
    """Raise ValueError unless one update on ``device`` can take these slabs, and ``undo`` back."""
    narrow = rest is not None
    slabs = {
        "weights": (weights, (torch.bfloat16 if narrow else torch.float32,)),
        "exp_avg": (exp_avg, (torch.float32,)),
        "exp_avg_sq": (exp_avg_sq, (torch.float32,)),
        "grad": (grad, (torch.float32, torch.bfloat16)),
    } | ({"rest": (rest, (torch.int16,))} if narrow else {})
    numel = weights.numel()
    spans = []
    for name, (tensor, allowed) in slabs.items():
        if tensor.dtype not in allowed:
            needed = " or ".join(map(str, allowed))
            where = f" {'beside' if narrow else 'without'} rest" if name == "weights" else ""
            raise ValueError(f"{name} is {tensor.dtype}; {needed} is needed{where}")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}; this update runs on {device}")
        if tensor.numel() != numel:
            raise ValueError(f"{name} has {tensor.numel()} elements; weights has {numel}")
        if not tensor.is_contiguous():
            shape, strides = tuple(tensor.shape), tensor.stride()
            raise ValueError(f"{name} is not contiguous: shape {shape} has strides {strides}")
        spans.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name))
    if not 0 <= decay_split <= numel:
        raise ValueError(
            f"decay_split is {decay_split}; it counts elements of weights, so 0 to {numel}"
        )
    if undo is not None and decay_split > 0 and undo.scalars()["decay"] == 0:
        raise ValueError(
            f"lr * weight_decay is {undo.lr * undo.weight_decay}; the update that it emptied the "
            "weights with cannot be taken back"
        )
    spans.sort()
    for (_, end, first), (begin, _, second) in pairwise(spans):
        if begin < end:
            raise ValueError(f"{first} and {second} overlap by {end - begin} bytes")


def plain_update(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep | None,
    *,
    decay_split: int,
    chunk: int,
    fused: bool,
    rest: Tensor | None = None,
    undo: AdamStep | None = None,
    part: Part = "all",
) -> None:
    """The update by torch's operations, on any device, at most ``chunk`` elements at a time.

    ``fused`` is for a CPU, where torch's fused AdamW rounds as our kernel does. On CUDA it rounds
    otherwise, as no inverse can know: torch 2.11's takes 1 - beta from a beta rounded to fp32, and
    a first moment that is taken back is off by 9 ulp. Without it, the operations are those that the
    inverse is made for, in more passes.

    The caller's gradients stay as they were, and split masters take ``4 * chunk`` bytes. With
    ``undo``, what an update with it and the same gradient did is taken back first; where ``hyper``
    is None, no more is done.
    """
    apply = _apply_fused if fused else _apply
    for states, gradient, decays in _chunks(
        weights, exp_avg, exp_avg_sq, grad, rest, decay_split, chunk, part
    ):
        if undo is not None:
            _revert(states, gradient, undo, decays)
        if hyper is not None:
            apply(states, gradient, hyper, decays)


def _chunks(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    rest: Tensor | None,
    decay_split: int,
    chunk: int,
    part: Part,
) -> Iterator[tuple[States, Tensor, bool]]:
    """(states, grad, decays) of each chunk, to be updated in place; copies of states that are not
    of the `part`."""
    weights, exp_avg, exp_avg_sq, grad = (t.view(-1) for t in (weights, exp_avg, exp_avg_sq, grad))
    numel = weights.numel()
    for begin, end in pairwise(sorted({*range(0, numel, chunk), decay_split, numel, 0})):
        at = slice(begin, end)
        master = weights[at] if rest is None else join(weights[at], rest.view(-1)[at])
        if part == "moments":
            master = master.clone()
        moments = exp_avg[at], exp_avg_sq[at]
        if part == "weights":
            moments = exp_avg[at].clone(), exp_avg_sq[at].clone()
        yield (master, *moments), grad[at], begin < decay_split
        if rest is not None and part != "moments":
            split(master, weights[at], rest.view(-1)[at])


def _apply_fused(states: States, grad: Tensor, hyper: AdamStep, decays: bool) -> None:
    """Torch's kernel wants gradients in the weights' type; and it divides (rather than multiplies)
    by a scale of its own and overwrites the gradients with the result. So where either matters,
    they are widened or scaled into a temporary first."""
    master, exp_avg, exp_avg_sq = states
    grad = grad.float()
    if hyper.grad_scale != 1:
        grad = grad * hyper.grad_scale
    torch._fused_adamw_(
        [master],
        [grad],
        [exp_avg],
        [exp_avg_sq],
        [],
        [torch.full((), float(hyper.step), device=master.device)],
        lr=hyper.lr,
        beta1=hyper.beta1,
        beta2=hyper.beta2,
        weight_decay=hyper.weight_decay if decays else 0.0,
        eps=hyper.eps,
        amsgrad=False,
        maximize=False,
    )


def _apply(states: States, grad: Tensor, hyper: AdamStep, decays: bool) -> None:
    """The update with the scalars, and by the step, that ``_revert`` takes it back with."""
    s = hyper.scalars()
    for p, m, v, g in _pieces(*states, grad):
        g = g.float() * s["grad_scale"]
        m.lerp_(g, s["lerp_weight"])
        v.mul_(s["beta2"]).addcmul_(g, g, value=s["one_minus_beta2"])
        if decays:
            p.mul_(s["decay"])
        p.add_(_step(m, v, s))


def _revert(states: States, grad: Tensor, hyper: AdamStep, decays: bool) -> None:
    """The inverse, rounded as in ``host_adam.cpp``: products that must stay exact are in double."""
    s = hyper.scalars()
    rounding = 2.0**-24  # of a sum, relative to it
    kept_m = 1 - s["lerp_weight"]
    for p, m, v, g in _pieces(*states, grad):
        g = g.float() * s["grad_scale"]
        p.sub_(_step(m, v, s))
        if decays:
            p.div_(s["decay"])

        left = m.double().sub_(g.double().mul_(s["lerp_weight"]))
        forgotten = left.abs() <= m.double().abs_().mul_(rounding)
        m.copy_(left.mul_(1 / (kept_m or math.inf))).masked_fill_(forgotten, 0)

        added = (g * s["one_minus_beta2"]).double().mul_(g)
        left = v.double().sub_(added).float()
        forgotten = left <= v * rounding
        v.copy_(left.div_(s["beta2"] or math.inf)).masked_fill_(forgotten, 0)


def _pieces(*slabs: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(slab.split(PIECE) for slab in slabs), strict=True)


def _step(exp_avg: Tensor, exp_avg_sq: Tensor, s: dict[str, float]) -> Tensor:
    """Change of the weights by these moments. Roots are in double: those of fp32 are not always
    rounded correctly."""
    rms = exp_avg_sq.double().sqrt_().float().div_(s["sqrt_correction2"])
    return (exp_avg * s["neg_step_size"]).div_(rms.add_(s["eps"]))
