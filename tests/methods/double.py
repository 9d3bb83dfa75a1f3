"""Everything in fp64: the same schedules, engine and messages, with no rounding to hide behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workbench.methods.ftpipe import run
from workbench.model.base import LayeredModel
from workbench.profile.profile import Profile
from workbench.profile.unit_costs import ProfiledSizes
from workbench.runtime.memory.storage import States
from workbench.runtime.updates import host_adam
from workbench.runtime.updates.adam_step import AdamStep
from workbench.training import rank as rank_work
from workbench.training import rank_host

FP64_BYTES = 8


class Doubled(ProfiledSizes):
    """Sizes in fp64, from a profile of fp32."""

    def __init__(
        self, profiles: Mapping[int, Profile], *, tied: Mapping[int, tuple[int, int]]
    ) -> None:
        doubled = {n: replace(each, weight_bytes=FP64_BYTES) for n, each in profiles.items()}
        super().__init__(doubled, tied=tied)

    def input_bytes(self, unit: int, samples: int) -> int:
        return 2 * super().input_bytes(unit, samples)

    def state_bytes(self, unit: int) -> int:
        return 2 * super().weight_bytes(unit)


def use(patch: pytest.MonkeyPatch) -> None:
    """From now on what asks for fp32 gets fp64 in this process."""
    for module in (rank_host, rank_work):
        patch.setattr(module, "DTYPES", {"fp32": torch.float64})
    patch.setattr(torch.Tensor, "float", lambda tensor: tensor.to(torch.float64))
    patch.setattr(States, "within", _within)
    patch.setattr(host_adam, "update", _update)


def stages(patch: pytest.MonkeyPatch) -> None:
    """`use`, for stages that stay with a process: weights are drawn in fp32, and widened."""
    use(patch)
    patch.setattr(run, "DTYPES", {"fp32": torch.float64})
    drawn = LayeredModel.build

    def build(*args: Any, **kw: Any) -> nn.Module:
        torch.set_default_dtype(torch.float32)
        try:
            return drawn(*args, **kw | {"dtype": torch.float64})
        finally:
            torch.set_default_dtype(torch.float64)

    patch.setattr(LayeredModel, "build", build)
    torch.set_default_dtype(torch.float64)


def _within(weights: Tensor, whole: Tensor) -> States:
    moments = whole[: 2 * FP64_BYTES * len(weights)].view(torch.float64)
    exp_avg, exp_avg_sq = moments.split(len(weights))
    return States(weights=weights, rest=None, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)


def _update(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep | None,
    *,
    decay_split: int,
    undo: AdamStep | None = None,
    **others: Any,
) -> None:
    if undo is not None:
        _revert(weights, exp_avg, exp_avg_sq, grad, undo, decay_split)
    if hyper is None:
        return
    grad = grad * hyper.grad_scale
    weights[:decay_split] *= 1 - hyper.lr * hyper.weight_decay
    exp_avg.lerp_(grad, 1 - hyper.beta1)
    exp_avg_sq.mul_(hyper.beta2).addcmul_(grad, grad, value=1 - hyper.beta2)
    weights.sub_(_step(exp_avg, exp_avg_sq, hyper))


def _revert(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep,
    decay_split: int,
) -> None:
    """The inverse as ``adam_step`` has it; what is left of a moment is off by an ulp of fp64."""
    grad = grad * hyper.grad_scale
    weights.add_(_step(exp_avg, exp_avg_sq, hyper))
    weights[:decay_split] /= 1 - hyper.lr * hyper.weight_decay
    exp_avg.sub_(grad, alpha=1 - hyper.beta1).div_(hyper.beta1)
    exp_avg_sq.addcmul_(grad, grad, value=hyper.beta2 - 1).div_(hyper.beta2).clamp_(min=0)


def _step(exp_avg: Tensor, exp_avg_sq: Tensor, hyper: AdamStep) -> Tensor:
    """Change of the weights by these moments."""
    root = exp_avg_sq.sqrt() / math.sqrt(1 - hyper.beta2**hyper.step)
    rate = hyper.lr / (1 - hyper.beta1**hyper.step)
    return rate * exp_avg / root.add_(hyper.eps)
