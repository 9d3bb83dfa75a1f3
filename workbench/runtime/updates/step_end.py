"""The end of a step: weights that stages share, the global norm, the loss, and the loss scale.

All processes exchange one small tensor: the sum of the losses and their weight, the squared norm of
the gradients, and whether anybody wants a checkpoint. So loss, norm and overflow are equal on all
of them, and so is what each decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

GROW_AFTER = 2000
"""Steps without an overflow after which the loss scale doubles."""
PIECE = 1 << 22
"""Gradients whose squares are added up at once: torch copies them into fp64 before."""


@dataclass
class LossScale:
    """The factor of the loss that keeps gradients of half precision from vanishing; 1 for other
    precisions. Halved by an overflow, doubled after `GROW_AFTER` steps without one."""

    value: float = 1.0
    least: float = 1.0
    dynamic: bool = False
    quiet: int = 0
    """Steps since the last change."""

    def update(self, *, overflow: bool) -> None:
        """After a step."""
        if not self.dynamic:
            return
        self.quiet = 0 if overflow else self.quiet + 1
        if overflow:
            self.value = max(self.value / 2, self.least)
        elif self.quiet == GROW_AFTER:
            self.value, self.quiet = self.value * 2, 0


class Tie(NamedTuple):
    """A weight that several stages hold, here."""

    gradient: Tensor
    group: dist.ProcessGroup | None
    """Processes of this replica that hold it; None where all copies are here."""
    others: Sequence[Tensor]
    """Gradients of further copies here."""
    counts: bool
    """Whether this process counts it in the norm."""


class Ended(NamedTuple):
    """What all processes know of a step."""

    loss: float
    """Mean over everything that counts."""
    overflow: bool
    """Whether gradients are not finite, so that nobody may update."""
    norm: float
    """Global norm of the gradients before they were clipped."""
    wanted: bool
    """Whether some process wants a checkpoint."""


def add_ties(ties: Sequence[Tie]) -> None:
    """Make the gradients of shared weights the sum of all copies'."""
    for tie in ties:
        for other in tie.others:
            tie.gradient.add_(other)
        if tie.group is not None:
            dist.all_reduce(tie.gradient, group=tie.group)
        for other in tie.others:
            other.copy_(tie.gradient)


def squares(gradients: Iterable[Tensor]) -> float:
    """Sum of all squares, which is finite where all gradients are."""
    norms = []
    for each in gradients:
        if each.itemsize == 2:  # in fp32 as they are read
            norms.append(torch.linalg.vector_norm(each, dtype=torch.float32).double())
            continue
        pieces = each.flatten().split(PIECE)
        norms += [torch.linalg.vector_norm(piece, dtype=torch.float64) for piece in pieces]
    return float(torch.stack(norms).square().sum()) if norms else 0.0


def counted_again(ties: Sequence[Tie]) -> float:
    """Squares among a stage's that are not to count: a shared weight counts once in the model."""
    return sum(
        (len(tie.others) + (not tie.counts)) * squares([tie.gradient])
        for tie in ties if tie.others or not tie.counts
    )  # fmt: skip


def agree(
    gradients: Tensor,
    ties: Sequence[Tie],
    *,
    losses: float,
    weight: float,
    first: bool,
    wanted: bool,
    scale: float,
    nominal: float,
    clip: float | None,
    everybody: dist.ProcessGroup,
    counted: Sequence[Tensor] | None = None,
) -> Ended:
    """Turn gradients of `scale / nominal` times the sum of the losses into those of the mean loss,
    clipped to a global norm of `clip`. `losses` and `weight` are this process's
    parts of the sums; `first`: the first replica, whose norm counts. `counted` are the parts of the
    gradients that count here, where these are not all."""
    add_ties(ties)
    squared = squares([gradients])
    if finite := isfinite(squared):
        if counted is not None:
            every = sum(each.numel() for each in counted) == gradients.numel()
            squared = squared if every else squares(counted)
        else:
            squared = squared - counted_again(ties) if first else 0.0
    else:
        squared = 0.0
    sums = torch.tensor([losses, weight, squared, not finite, wanted], dtype=torch.float64)  # [5]
    dist.all_reduce(sums, group=everybody)
    losses, weight, squared, lost, asked = sums.tolist()
    factor = nominal / (scale * weight)
    norm = float("inf") if lost else max(squared, 0.0) ** 0.5 * factor
    overflow = lost > 0 or not norm < float("inf")
    if clip is not None and not overflow:
        factor *= min(1.0, clip / (norm + 1e-6))
    if not overflow and factor != 1.0:
        gradients.mul_(factor)
    return Ended(losses / weight, overflow, norm, asked > 0)
