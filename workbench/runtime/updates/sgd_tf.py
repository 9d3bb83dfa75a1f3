"""SGD with momentum in TensorFlow's form, whose velocity has the learning rate in it.

With v = momentum v + lr g the weights become theta - v, or theta - (momentum v + lr g) with
Nesterov's. torch.optim.SGD multiplies v by the rate of the present step instead, so the two differ
wherever the rate changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

VELOCITY = "velocity"


class SgdTf(torch.optim.Optimizer):
    """The optimizer; `weight_decay` is added to the gradient."""

    def __init__(
        self, params: Iterable[Any], *, lr: float, momentum: float = 0.0, nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        shared = {"lr": lr, "momentum": momentum, "nesterov": nesterov}
        super().__init__(params, {**shared, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            momentum = group["momentum"]
            for weight in (each for each in group["params"] if each.grad is not None):
                moved = group["lr"] * weight.grad.add(weight, alpha=group["weight_decay"])
                if momentum:
                    state = self.state[weight]
                    velocity = state.setdefault(VELOCITY, torch.zeros_like(weight))
                    velocity.mul_(momentum).add_(moved)
                    moved = moved.add(velocity, alpha=momentum) if group["nesterov"] else velocity
                weight.sub_(moved)
