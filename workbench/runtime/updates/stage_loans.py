"""Weights that stages lend each other: gradients come to the owner, weights go to the borrower.

A borrower has a copy of a weight, which its own update sets to the owner's version; the gradients
that a step adds up there go to the owner, whose update of that step adds them to its own. A
schedule says when (schedule/loans.py). Between two stages of one process nothing is sent. A frozen
weight is copied before the pipeline fills, and never again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workbench.runtime.passes.stage_passes import there
from workbench.runtime.transport.meeting import wait

Pair = tuple[int, int]
"""Owner and borrower, units of the schedule."""


class StageLoans:
    """The loans of one process's stages."""

    def __init__(
        self, lent: Mapping[Pair, Sequence[nn.Parameter]],
        borrowed: Mapping[Pair, Sequence[nn.Parameter]],
    ) -> None:  # fmt: skip
        """`lent`: loan -> the owner's weights, where it is here; `borrowed`: loan -> the copies of
        the borrower, where it is here, in the same order. Of those that are trained, `grad` is a
        view that stays."""
        self._lent, self._borrowed = lent, borrowed
        self._gradients: dict[tuple[Pair, int], Sequence[Tensor]] = {}
        """Loan and step -> gradients that wait for the owner's update."""
        self._weights: dict[Pair, deque[Sequence[Tensor]]] = {pair: deque() for pair in borrowed}
        """Weights that wait for the borrower's update."""

    def brings(self, weight: nn.Parameter) -> bool:
        """Whether a weight is a borrower's copy."""
        return any(weight is copy for copies in self._borrowed.values() for copy in copies)

    def weights(self, pair: Pair) -> tuple[Tensor, ...]:
        """The owner's weights, here, or the borrower's copies: equal shapes in both."""
        held = self._lent.get(pair) or self._borrowed[pair]
        return tuple(weight.detach() for weight in _trained(held))

    def gradients(self, pair: Pair) -> tuple[Tensor, ...]:
        """Gradients of a borrower's copies."""
        return tuple(weight.grad for weight in _trained(self._borrowed[pair]))

    def weights_came(self, pair: Pair, came: Sequence[Tensor]) -> None:
        """Weights for the borrower's next update."""
        self._weights[pair].append(came)

    def gradients_came(self, pair: Pair, step: int, came: Sequence[Tensor]) -> None:
        """Gradients of a step, complete."""
        self._gradients[pair, step] = came

    def leave(self, pair: Pair, step: int) -> None:
        """A borrower's gradients of a step, complete, for an owner in this process."""
        self.gradients_came(pair, step, [each.clone() for each in self.gradients(pair)])

    @torch.no_grad()
    def before(self, unit: int, step: int) -> None:
        """Before a unit's update: what it lent has all gradients, and what it borrows has none."""
        for pair, own in self._lent.items():
            if pair[0] == unit and (trained := _trained(own)):
                came = there(self._gradients.pop((pair, step)))
                for weight, more in zip(trained, came, strict=True):
                    weight.grad.add_(more.to(weight.grad.device))
        for pair in self._borrowed:
            if pair[1] == unit:
                for gradient in self.gradients(pair):
                    gradient.zero_()

    @torch.no_grad()
    def after(self, unit: int) -> None:
        """With a unit's update: install what it borrows."""
        for pair, copies in self._borrowed.items():
            if pair[1] == unit and (trained := _trained(copies)):
                local = pair in self._lent
                came = self.weights(pair) if local else there(self._weights[pair].popleft())
                for weight, new in zip(trained, came, strict=True):
                    weight.copy_(new)

    @torch.no_grad()
    def spread(self, pairs: Mapping[Pair, tuple[int, int]], group: dist.ProcessGroup) -> None:
        """Give all borrowers the owners' weights of now; every process calls it while no lane runs.
        `pairs`: each loan of the pipeline -> ranks of owner and borrower."""
        rank = dist.get_rank(group)
        for pair, (owner, borrower) in pairs.items():
            if owner == borrower == rank:
                for copy, weight in zip(self._borrowed[pair], self._lent[pair], strict=True):
                    copy.copy_(weight)
            elif rank == owner:
                for weight in self._lent[pair]:
                    wait([dist.isend(weight.detach().cpu(), borrower, group=group)])
            elif rank == borrower:
                for copy in self._borrowed[pair]:
                    came = torch.empty_like(copy, device="cpu")
                    wait([dist.irecv(came, owner, group=group)])
                    copy.copy_(came)

    def forget(self) -> None:
        """Let go of what a step has left that failed."""
        self._gradients.clear()
        for waiting in self._weights.values():
            waiting.clear()


def _trained(weights: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    return [weight for weight in weights if weight.requires_grad]
