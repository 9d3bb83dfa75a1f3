"""Where a unit's numbers are: flat slabs with a fixed layout, and modules that are views of them.

Each unit's parameters lie in one slab, those that decay first, so that a transfer is one copy and
an update one kernel call. The same layout serves working weights, gradients, master weights and
both moments. A module never owns memory: its parameters and gradients are pointed into slabs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.model.base import LayeredModel


@dataclass(frozen=True, slots=True)
class Piece:
    """One parameter's place in its unit's slab, in elements."""

    name: str
    shape: torch.Size
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Flat:
    """The layout of one unit's slab."""

    pieces: tuple[Piece, ...]
    numel: int
    decay_split: int
    """Elements [0, decay_split) decay."""

    @classmethod
    def of(cls, model: LayeredModel, unit: int) -> Flat:
        shapes = model.shapes(unit)
        decaying = [name for name in shapes if model.decays(unit, name)]
        others = [name for name in shapes if name not in decaying]
        pieces, end, split = [], 0, 0
        for name in decaying + others:
            start, end = end, end + shapes[name].numel()
            pieces.append(Piece(name, shapes[name], start, end))
            if name in decaying:
                split = end
        return cls(tuple(pieces), end, split)

    def views(self, slab: Tensor) -> Iterator[tuple[str, Tensor]]:
        """(name, view of the parameter's shape) for every parameter in the slab."""
        for piece in self.pieces:
            yield piece.name, slab[piece.start : piece.end].view(piece.shape)

    def point_weights(self, module: nn.Module, slab: Tensor) -> None:
        """Make the module's parameters views of `slab`."""
        for name, view in self.views(slab):
            module.get_parameter(name).data = view

    def point_gradients(self, module: nn.Module, views: Iterable[Tensor]) -> None:
        """Make `views` of a slab the gradients of the module's parameters; autograd accumulates
        there.
        """
        for piece, view in zip(self.pieces, views, strict=True):
            module.get_parameter(piece.name).grad = view

    def copy_in(self, module: nn.Module, slab: Tensor) -> None:
        """Write the module's weights into `slab`."""
        with torch.no_grad():
            for name, view in self.views(slab):
                view.copy_(module.get_parameter(name))


@dataclass(slots=True)
class States:
    """Optimizer states of one unit: views of slabs in the tier where the unit is updated."""

    master: Tensor
    """fp32 weights; the working weights themselves in fp32 training."""
    exp_avg: Tensor
    exp_avg_sq: Tensor
    working: Tensor | None
    """Where the update writes the narrower working weights, None in fp32 training."""
