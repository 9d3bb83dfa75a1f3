"""The formulas of mitigation.py on the states of torch's optimizers.

A prediction reads weights, states and gradients, and changes none. A gap-aware optimizer keeps its
mean of squared steps among its states, so that checkpoints have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from workbench.methods.ftpipe.mitigation import gap_penalty, predict_adam, predict_sgd
from workbench.methods.ftpipe.options import Options
from workbench.methods.ftpipe.stage_sizes import PIECE
from workbench.runtime.updates.sgd_tf import VELOCITY, SgdTf
from workbench.runtime.updates.weight_versions import WeightVersions

STATES = SQUARE, COUNT, LARGEST = "gap_square", "gap_count", "gap_lr_max"
"""States of a gap-aware optimizer: the mean of squared steps, their number, of SGD the largest rate
so far."""
NOT_KNOWN = ("dampening", "nesterov", "amsgrad", "maximize")
"""Settings that the formulas do not have."""


def check_optimizer(optimizer: Optimizer, use: str) -> None:
    """Raise ValueError for an optimizer whose steps the formulas are not."""
    kind = type(optimizer).__name__
    if type(optimizer) not in (SGD, SgdTf, Adam, AdamW):
        raise ValueError(f"{use} with {kind}: its steps are not known, use SGD, Adam or AdamW")
    for group in optimizer.param_groups:
        for setting in NOT_KNOWN:
            if group.get(setting):
                raise ValueError(f"{use} with {kind} and {setting} {group[setting]}; leave it out")


def versions_of(
    optimizer: Optimizer, modules: Iterable[nn.Module], options: Options, *, copies: int,
    rate: Callable[[int], float],
) -> WeightVersions:  # fmt: skip
    """Versions of the weights of a stage, whose modules an optimizer trains: so many copies, and
    what the options say of predictions and gaps. Raises ValueError as those do."""
    kind = options.prediction
    modules = [*modules]
    parameters = dict.fromkeys(theta for module in modules for theta in module.parameters())
    predict = None if kind == "none" else Prediction(optimizer, kind, rate)
    versions = WeightVersions(parameters, modules, copies=copies, predict=predict)
    if options.gap_aware:
        GapAware(optimizer, versions.differentiated)
    return versions


class Prediction:
    """Predicts the weights of one stage. A `Predict` (runtime/updates/weight_versions.py)."""

    def __init__(self, optimizer: Optimizer, kind: str, rate: Callable[[int], float]) -> None:
        """`kind` is ``msnag``: gradients are zero; ``aggmsnag``: the next one is that which has
        been added up; or ``nag``: zero, and one step ahead where no update is lacking. `rate` of
        each step of the run. Raises ValueError as `check_optimizer`."""
        check_optimizer(optimizer, f"prediction {kind}")
        self._optimizer, self._kind, self._rate = optimizer, kind, rate
        self._groups = {
            parameter: group for group in optimizer.param_groups for parameter in group["params"]
        }

    def __call__(self, parameter: nn.Parameter, into: Tensor, *, done: int, steps: int) -> None:
        group, state = self._groups.get(parameter), self._optimizer.state.get(parameter, {})
        steps = max(steps, 1) if self._kind == "nag" else steps
        if group is None or not steps:
            into.copy_(parameter)
            return
        common = {
            "lr": [self._rate(done + n) for n in range(steps)],
            "steps": steps,
            "weight_decay": group["weight_decay"],
        }
        gradient = parameter.grad if self._kind == "aggmsnag" else None
        if isinstance(self._optimizer, Adam):
            moments = [state.get("exp_avg"), state.get("exp_avg_sq")]
        else:
            moments = [_velocity(state)]
        for out, theta, gradient_, *own in _pieces(into, parameter, gradient, *moments):
            known = [torch.zeros_like(theta) if moment is None else moment for moment in own]
            if not isinstance(self._optimizer, Adam):
                after = predict_sgd(
                    theta, *known, momentum=group["momentum"], gradient=gradient_,
                    scaled=isinstance(self._optimizer, SgdTf), **common,
                )  # fmt: skip
            else:
                after = predict_adam(
                    theta, *known, betas=group["betas"], eps=group["eps"], gradient=gradient_,
                    done=int(state.get("step", 0)), decoupled=isinstance(self._optimizer, AdamW),
                    **common,
                )  # fmt: skip
            out.copy_(after)


class GapAware:
    """Makes an optimizer divide each gradient by its `gap_penalty` before a step."""

    def __init__(
        self, optimizer: Optimizer, used: Callable[[], Iterable[tuple[nn.Parameter, Tensor]]]
    ) -> None:
        """`used` tells of each parameter the weights that its gradient was computed with. Raises
        ValueError as `check_optimizer`."""
        check_optimizer(optimizer, "gap-aware training")
        self._used = used
        optimizer.register_step_pre_hook(self._before)
        if isinstance(optimizer, Adam):
            optimizer.register_step_post_hook(_record_steps)

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        used = dict(self._used())
        for group in optimizer.param_groups:
            for theta in group["params"]:
                if theta.grad is None:
                    continue
                penalty = _penalty(optimizer, theta, group, used[theta])
                if penalty is None:
                    continue
                theta.grad.div_(penalty)
                decay = group["weight_decay"] * (1 - penalty) / penalty
                if isinstance(optimizer, AdamW):  # the optimizer takes the decay itself
                    theta.mul_(1 - group["lr"] * decay)
                else:
                    theta.grad.add_(decay * theta)


def _penalty(optimizer: Optimizer, theta: Tensor, group: dict, used: Tensor) -> Tensor | None:
    """The penalty; None where no step has been made from which to tell the usual one."""
    state, gap = optimizer.state.get(theta, {}), theta - used
    if isinstance(optimizer, Adam):
        if not state.get(COUNT):
            return None
        return gap_penalty(
            gap, state[SQUARE], count=int(state[COUNT]), lr_max=1.0, decay=group["betas"][1],
            eps=group["eps"],
        )  # fmt: skip
    velocity, state = _velocity(state) if group["momentum"] else theta.grad, optimizer.state[theta]
    state[LARGEST] = max(group["lr"], float(state.get(LARGEST, 0.0)))
    if velocity is None:
        return None
    _average(state, velocity, 0.999)
    if not state[LARGEST]:  # the weights have not moved
        return None
    scaled = isinstance(optimizer, SgdTf) and group["momentum"]  # velocities are steps
    largest = 1.0 if scaled else state[LARGEST]
    return gap_penalty(gap, state[SQUARE], count=state[COUNT], lr_max=largest)


def _velocity(state: dict[str, Any]) -> Tensor | None:
    """SGD's, of a parameter's states; None before the first step."""
    return state.get("momentum_buffer", state.get(VELOCITY))


@torch.no_grad()
def _record_steps(optimizer: Optimizer, *_: Any) -> None:
    """After a step of Adam's: add it to the mean, as it was without decay of weights."""
    for group in optimizer.param_groups:
        for theta in group["params"]:
            if theta.grad is None:
                continue
            state, (first, second) = optimizer.state[theta], group["betas"]
            done = int(state["step"])
            spread = (state["exp_avg_sq"] / (1 - second**done)).sqrt() + group["eps"]
            step = group["lr"] * state["exp_avg"] / (1 - first**done) / spread
            _average(state, step, second)


def _average(state: dict[str, Any], steps: Tensor, decay: float) -> None:
    """Add steps to the decaying mean of squared ones."""
    square = state.setdefault(SQUARE, torch.zeros_like(steps))
    square.mul_(decay).addcmul_(steps, steps, value=1 - decay)
    state[COUNT] = int(state.get(COUNT, 0)) + 1


def _pieces(into: Tensor, *tensors: Tensor | None) -> Iterator[tuple[Tensor | None, ...]]:
    """Rows of tensors of one shape, some at a time."""
    if not into.dim():
        yield into, *tensors
        return
    rows = max(1, PIECE * len(into) // max(1, into.numel()))
    for first in range(0, len(into), rows):
        each = (into, *tensors)
        yield tuple(None if one is None else one[first : first + rows] for one in each)
