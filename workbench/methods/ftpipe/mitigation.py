"""Weights of some updates ahead, and gradients of stale weights made smaller: pure formulas.

A forward pass whose backward pass comes n updates later may read a prediction of the weights of
then (Eliad et al., ATC'21, after SpecTrain, Chen et al. 2018): the optimizer's next n steps with
gradients of zero, of which momentum is left, or with the gradient that has been added up so far.
Gap-aware training (Barkai, Hakimi, Schuster, ICLR 2020) divides each gradient by how far, in steps
of the usual size, the weights have moved since it was computed.

Tensors of a call have one shape. Nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor

Rate = float | Sequence[float]
"""A learning rate, or those of the next steps."""


def predict_sgd(
    theta: Tensor, velocity: Tensor, *, lr: Rate, momentum: float, steps: int,
    weight_decay: float = 0.0, gradient: Tensor | None = None, nesterov: bool = False,
    scaled: bool = False,
) -> Tensor:  # fmt: skip
    """Weights after so many steps of SGD with momentum: v = momentum v + g, theta -= lr v. Of the
    next gradient `gradient` is known (the first step's), further ones are zero; `weight_decay` adds
    its part to all. With `scaled` the velocity has the rate in it (TensorFlow's form: v = momentum
    v + lr g, theta -= v). `nesterov` looks one step ahead where there are none.
    Raises ValueError for fewer rates than steps."""
    steps = max(steps, 1) if nesterov else steps
    for number, rate in enumerate(_rates(lr, steps)):
        change = weight_decay * theta
        if gradient is not None and number == 0:
            change = change + gradient
        velocity = momentum * velocity + (rate * change if scaled else change)
        theta = theta - (velocity if scaled else rate * velocity)
    return theta


def predict_adam(
    theta: Tensor, mean: Tensor, square: Tensor, *, lr: Rate, betas: tuple[float, float],
    eps: float, done: int, steps: int, weight_decay: float = 0.0, decoupled: bool = False,
    gradient: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Weights after so many steps of Adam, of which `done` are made; the second moment `square`
    stays as it is. Gradients as of `predict_sgd`; `weight_decay` is added to them, or with
    `decoupled` taken from the weights (AdamW). Raises ValueError for fewer rates than steps."""
    first, second = betas
    for number, rate in enumerate(_rates(lr, steps), start=1):
        change = torch.zeros_like(theta)
        if decoupled:
            theta = theta * (1 - rate * weight_decay)
        else:
            change = weight_decay * theta
        if gradient is not None and number == 1:
            change = change + gradient
        mean = first * mean + (1 - first) * change
        unbiased = mean / (1 - first ** (done + number))
        spread = square.sqrt() / sqrt(1 - second ** (done + number))
        theta = theta - rate * unbiased / (spread + eps)
    return theta


def gap_penalty(
    gap: Tensor, running: Tensor, *, count: int, lr_max: float, decay: float = 0.999,
    eps: float = 1e-8,
) -> Tensor:  # fmt: skip
    """The factor >= 1 that a gradient is divided by: 1 and the gap between the weights now and
    those that it was computed with, in steps of the usual size. `running` is the mean of `count`
    squared velocities that decays by `decay`; `lr_max` is the largest rate so far. Raises
    ValueError for a count of none."""
    if count < 1:
        raise ValueError(f"the running mean has {count} steps; it must have 1 or more")
    usual = lr_max * ((running / (1 - decay**count)).sqrt() + eps)
    return 1 + gap.abs() / usual


def _rates(lr: Rate, steps: int) -> Sequence[float]:
    if steps < 0:
        raise ValueError(f"{steps} steps ahead; give 0 or more")
    if isinstance(lr, int | float):
        return [lr] * steps
    if len(lr) < steps:
        raise ValueError(f"{len(lr)} rates for {steps} steps; give one for each")
    return lr[:steps]
