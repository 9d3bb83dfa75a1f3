"""Layers as they come to a device: their own weights, and behind them those they borrow.

A tied head has no matrix of its own. Where it visits another rank than the embedding, or the same
rank at another time, it brings a copy of the embedding's, and its gradients are added to the
embedding's on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.model.base import LayeredModel
from workbench.runtime.memory.storage import Flat


@dataclass(frozen=True, kw_only=True, slots=True)
class Loan:
    """A parameter that a unit reads and another one owns."""

    name: str
    """In the module that borrows it."""
    owner: int
    shape: torch.Size
    lent: slice
    """Elements of the owner's slab."""
    place: slice
    """Elements of the visit."""


@dataclass(frozen=True, kw_only=True)
class VisitLayout:
    """The elements of one unit on a device."""

    flat: Flat
    loans: tuple[Loan, ...]
    numel: int

    @classmethod
    def of(cls, model: LayeredModel, unit: int, flats: list[Flat]) -> VisitLayout:
        """The places of a unit's own parameters, and behind them of the weights that it borrows."""
        loans, end = [], flats[unit].numel
        for (borrower, local), (owner, lent) in model.tied().items():
            if borrower == unit != owner:
                piece = next(p for p in flats[owner].pieces if p.name == lent)
                start, end = end, end + piece.end - piece.start
                loans.append(
                    Loan(
                        name=local,
                        owner=owner,
                        shape=piece.shape,
                        lent=slice(piece.start, piece.end),
                        place=slice(start, end),
                    )
                )
        return cls(flat=flats[unit], loans=tuple(loans), numel=end)

    def point(self, module: nn.Module, visit: Tensor) -> list[nn.Parameter]:
        """Make the module's parameters views of the visit; returns them in the visit's order."""
        self.flat.point_weights(module, visit[: self.flat.numel])
        for loan in self.loans:
            module.get_parameter(loan.name).data = visit[loan.place].view(loan.shape)
        return [
            *self.flat.parameters(module),
            *(module.get_parameter(loan.name) for loan in self.loans),
        ]

    def views(self, visit: Tensor) -> list[Tensor]:
        """Views of the visit, in the same order and of the same shapes."""
        return [
            *(view for _, view in self.flat.views(visit[: self.flat.numel])),
            *(visit[loan.place].view(loan.shape) for loan in self.loans),
        ]
