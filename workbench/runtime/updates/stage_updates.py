"""Updates of stages that stay on their device, by an optimizer of torch's for each stage.

A schedule says when a stage is updated, by an action of its own. Stages may be at different steps
then, and none waits for another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.core.spec import RunSpec
from workbench.runtime.updates.adam_step import clip_coefficient
from workbench.runtime.updates.sgd_tf import SgdTf
from workbench.runtime.updates.stage_loans import StageLoans


def adamw(
    spec: RunSpec, named: Mapping[str, nn.Parameter], decaying: Container[str], device: torch.device
) -> torch.optim.AdamW:
    """torch's AdamW as a spec has it, fused on a GPU; `decaying` names weights that decay."""
    return optimizer_of("adamw", spec, named, decaying, device)


def optimizer_of(
    kind: str, spec: RunSpec, named: Mapping[str, nn.Parameter], decaying: Container[str],
    device: torch.device, *, momentum: float = 0.0, nesterov: bool = False,
) -> torch.optim.Optimizer:  # fmt: skip
    """An optimizer of a kind, with the rate, the decay and the betas of a spec; `momentum` and
    `nesterov` are SGD's. `decaying` names weights that decay: Adam and SGD add the decay to the
    gradient, AdamW and Adafactor take it off the weights. AdamW and Adam are fused on a GPU."""
    groups = [
        {
            "params": [weight for name, weight in named.items() if (name in decaying) == decays],
            "weight_decay": spec.weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]
    groups, lr = [group for group in groups if group["params"]] or groups, spec.learning_rate(0)
    if kind in ("adamw", "adam"):
        made = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
        betas, fused = (spec.beta1, spec.beta2), device.type == "cuda"
        return made(groups, lr=lr, betas=betas, eps=spec.eps, fused=fused)
    if kind == "adafactor":
        return torch.optim.Adafactor(groups, lr=lr)
    made = {"sgd": torch.optim.SGD, "sgd-tf": SgdTf}[kind]
    return made(groups, lr=lr, momentum=momentum, nesterov=nesterov)


def clip_own(gradients: Tensor, limit: float | None) -> bool:
    """Clip the gradients of one stage, flat, by their own norm. Returns whether they are finite;
    others are left as they are."""
    norm = float(torch.linalg.vector_norm(gradients, dtype=torch.float64))
    if math.isfinite(norm) and limit is not None:
        gradients.mul_(clip_coefficient(limit, norm))
    return math.isfinite(norm)


@dataclass(frozen=True)
class StageOptimizer:
    """The optimizer of one stage."""

    optimizer: torch.optim.Optimizer
    gradients: Tensor
    """Of its weights, flat: each parameter's `grad` is a view."""
    before: Callable[[int], bool] = lambda step: True
    """Called with the step before each update, such as for the rate of the step; returns whether
    there is to be one."""


class StageOptimizers:
    """The optimizers of a process's stages. A `StageUpdates`."""

    def __init__(
        self, of: Mapping[int, StageOptimizer], after: Callable[[int, int], object] | None = None,
        loans: StageLoans | None = None,
    ) -> None:  # fmt: skip
        """`of` units of the schedule; `after` is told of each that was updated, and of the step.
        `loans` are weights that they lend each other."""
        self._of, self._after, self._loans = of, after, loans or StageLoans({}, {})

    def begin(self, gradients: Tensor, step: int) -> None:
        """Gradients of a stage begin at zero after its update, whichever step others are at."""

    def update(self, unit: int, step: int) -> None:
        """Update the weights of a stage by the gradients that have been added up."""
        stage = self._of[unit]
        self._loans.before(unit, step)
        if stage.before(step):
            stage.optimizer.step()
        stage.gradients.zero_()
        self._loans.after(unit)
        if self._after is not None:
            self._after(unit, step)
