"""What every AdamW update shares, wherever it runs: its scalars, its checks, and torch's fused
form of it.

An update of one layer may run long after it was issued, in another thread, while the training loop
has moved the learning rate on. So it takes its scalars from an immutable snapshot: the published
artifact kept them in one shared optimizer object, where concurrent updates overwrote each other's,
and its schedule never reached the offloaded layers.
"""

import math
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from torch import Tensor


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


def check_slabs(
    param: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    working: Tensor | None,
    decay_split: int,
    device: torch.device,
) -> None:
    """Raise ValueError unless these are slabs that one update on ``device`` can take."""
    states = {"param": param, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    others = {"grad": grad} | ({} if working is None else {"working": working})
    numel = param.numel()
    spans = []
    for name, tensor in (states | others).items():
        allowed = (torch.float32,) if name in states else (torch.float32, torch.bfloat16)
        if tensor.dtype not in allowed:
            raise ValueError(
                f"{name} is {tensor.dtype}; {' or '.join(map(str, allowed))} is needed"
            )
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}; this update runs on {device}")
        if tensor.numel() != numel:
            raise ValueError(f"{name} has {tensor.numel()} elements; param has {numel}")
        if not tensor.is_contiguous():
            shape, strides = tuple(tensor.shape), tensor.stride()
            raise ValueError(f"{name} is not contiguous: shape {shape} has strides {strides}")
        spans.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name))
    if not 0 <= decay_split <= numel:
        raise ValueError(
            f"decay_split is {decay_split}; it counts elements of param, so 0 to {numel}"
        )
    spans.sort()
    for (_, end, first), (begin, _, second) in pairwise(spans):
        if begin < end:
            raise ValueError(f"{first} and {second} overlap by {end - begin} bytes")


def fused_update(
    param: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep,
    decay_split: int,
    working: Tensor | None,
    chunk: int,
) -> None:
    """The update by torch's fused AdamW, on any device, at most ``chunk`` elements at a time.

    The fused kernel wants gradients in the weights' type; and it divides (rather than multiplies)
    by a scale of its own and overwrites the gradients with the result. So where either matters, a
    chunk's gradient is widened or scaled into a temporary of at most ``4 * chunk`` bytes first,
    and the caller's gradients stay as they were.
    """
    param, exp_avg, exp_avg_sq, grad = (t.view(-1) for t in (param, exp_avg, exp_avg_sq, grad))
    numel = param.numel()
    step = torch.full((), float(hyper.step), device=param.device)
    for begin, end in pairwise(sorted({*range(0, numel, chunk), decay_split, numel, 0})):
        part = slice(begin, end)
        chunk_grad = grad[part].float()
        if hyper.grad_scale != 1:
            chunk_grad = chunk_grad * hyper.grad_scale
        torch._fused_adamw_(
            [param[part]],
            [chunk_grad],
            [exp_avg[part]],
            [exp_avg_sq[part]],
            [],
            [step],
            lr=hyper.lr,
            beta1=hyper.beta1,
            beta2=hyper.beta2,
            weight_decay=hyper.weight_decay if begin < decay_split else 0.0,
            eps=hyper.eps,
            amsgrad=False,
            maximize=False,
        )
    if working is not None:
        working.view(-1).copy_(param)
