"""Where a unit's numbers are: flat slabs with a fixed layout, and modules that are views of them.

Each unit's parameters lie in one slab, those that decay first, so that a transfer is one copy and
an update one kernel call. The same layout serves weights, gradients and both moments. A module
never owns memory: its parameters and gradients are pointed into slabs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from workbench.core.host import available_cores
from workbench.model.base import LayeredModel
from workbench.runtime.updates import split

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Types of working weights and activations, by the names in specs."""
ROUNDING = 4
"""Threads that round weights on the host, at most; they wait for its memory."""
MOMENTS = 2
"""exp_avg and exp_avg_sq."""


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
        """The places of a unit's parameters in one flat tensor: those that decay first."""
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

    def gathered(self, tensors: list[Tensor]) -> list[Tensor]:
        """Copies of tensors in the order of the pieces, views of one new slab."""
        slab = torch.empty(self.numel, dtype=tensors[0].dtype, device=tensors[0].device)  # [numel]
        views = [view for _, view in self.views(slab)]
        torch._foreach_copy_(views, tensors)
        return views

    def slab_of(self, views: list[Tensor]) -> Tensor | None:
        """The slab that these are all the views of, in the order of the pieces; None where they lie
        elsewhere."""
        first, size = views[0], views[0].itemsize
        room = first.untyped_storage().nbytes() // size - first.storage_offset()
        pairs = zip(self.pieces, views, strict=True)
        there = all(v.data_ptr() == first.data_ptr() + p.start * size for p, v in pairs)
        if room < self.numel or not there:
            return None
        return first.as_strided((self.numel,), (1,), first.storage_offset())

    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """The module's parameters in the order of the pieces."""
        return [module.get_parameter(piece.name) for piece in self.pieces]


@dataclass(slots=True)
class States:
    """Tensors that an update changes: views of slabs in the tier where the unit is updated."""

    weights: Tensor
    """Working weights. In fp32 training they are the master weights; bf16 ones are the upper half
    of them (split.py)."""
    rest: Tensor | None
    """The lower half of bf16 weights' masters, None in fp32 training."""
    exp_avg: Tensor
    exp_avg_sq: Tensor

    @classmethod
    def within(cls, weights: Tensor, whole: Tensor) -> Self:
        """The states that lie in one piece of bytes: exp_avg, exp_avg_sq, and of weights that are
        not fp32 the masters' rest."""
        numel = len(weights)
        moments = whole[: MOMENTS * 4 * numel].view(torch.float32)  # [2 * numel]
        narrow = weights.dtype != torch.float32
        return cls(
            weights=weights,
            rest=whole[MOMENTS * 4 * numel :].view(torch.int16) if narrow else None,
            exp_avg=moments[:numel],
            exp_avg_sq=moments[numel:],
        )

    def copy_(self, other: States) -> None:
        """Take all numbers from elsewhere, which must be ready; they are here when this returns."""
        for own, new in (
            (self.weights, other.weights),
            (self.rest, other.rest),
            (self.exp_avg, other.exp_avg),
            (self.exp_avg_sq, other.exp_avg_sq),
        ):
            if own is not None:
                own.copy_(new)

    def master(self) -> Tensor:
        """fp32 weights: themselves in fp32 training, else a copy."""
        if self.rest is None:
            return self.weights
        return split.join(self.weights.to(self.rest.device), self.rest)

    def rounded(self, dtype: torch.dtype) -> Tensor:
        """Weights in a type; for fp32 `master` as it is, so fp64 in fp64 training."""
        if dtype == torch.float32:
            return self.master()
        if self.rest is None:
            return self.weights.to(dtype)
        weights = self.weights.to(self.rest.device)
        return split.rounded(weights, self.rest, dtype, threads=min(ROUNDING, available_cores()))

    def set_master(self, master: Tensor) -> None:
        """Take fp32 weights from a CPU tensor of as many elements."""
        if self.rest is None:
            self.weights.copy_(master)
            return
        if not self.weights.is_cuda:
            split.split(master, self.weights, self.rest)
            return
        for part, weights, rest in zip(
            *(t.split(split.CHUNK) for t in (master, self.weights, self.rest)), strict=True
        ):
            halves = [torch.empty(len(part), dtype=t.dtype) for t in (weights, rest)]
            split.split(part, *halves)
            weights.copy_(halves[0])
            rest.copy_(halves[1])


def read_here(tensor: Tensor) -> None:
    """Its memory, from another stream's, is free only when the current stream has read it."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream())
