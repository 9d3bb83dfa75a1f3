"""Tensors that flow from one stage to the next, as the one tensor that torch's pipelines pass on.

Up to 2.11 torch asks for a gradient of every tensor that a stage receives, which integers and masks
have none of. So several tensors go as one flat tensor of the run's dtype: first the bytes of all
that have no gradient, then the others. Bytes are copied and never computed with, and their gradient
is 0. A single tensor goes as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from workbench.model.base import Part
from workbench.runtime.passes.bundle import Boundary, bundled

ALIGNED = 8
"""Bytes of the widest element; those of what has no gradient are filled up to a multiple."""


class Packed:
    """The form of what flows into a unit, of one micro-batch."""

    def __init__(self, parts: Sequence[Part], samples: int, dtype: torch.dtype) -> None:
        """`dtype` is the run's. Raises ValueError for a gradient of another one."""
        learned = [part for part in parts if part.differentiable]
        for part in learned:
            if part.dtype not in (None, dtype):
                raise ValueError(
                    f"a {part.dtype} tensor with a gradient flows between layers; torch's "
                    f"pipelines take {dtype} ones here, so train it by 1f1b"
                )
        self.alone = len(parts) == len(learned) == 1
        self._order = [part.differentiable for part in parts]
        self._fixed = Boundary([part for part in parts if not part.differentiable], dtype)
        self._shapes = [part.full_shape(samples) for part in learned]
        self._samples, self._nbytes = samples, self._fixed.nbytes(samples)
        filled = -(-self._nbytes // ALIGNED) * ALIGNED
        self._sizes = [filled // dtype.itemsize, *map(prod, self._shapes)]
        shape = self._shapes[0] if self.alone else (sum(self._sizes),)
        self.example = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
        """A tensor of that form, on the meta device."""

    def pack(self, made: Tensor | tuple[Tensor, ...]) -> Tensor:
        """One tensor of a unit's output."""
        if self.alone:
            return made
        parts = bundled(made)
        learned = [part for part, own in zip(parts, self._order, strict=True) if own]
        fixed = [part for part, own in zip(parts, self._order, strict=True) if not own]
        memory = self.example.new_zeros(self._sizes[:1], device=parts[0].device)
        held = self._fixed.carve(memory.view(torch.uint8)[: self._nbytes], self._samples)
        for place, part in zip(held, fixed, strict=True):
            place.copy_(part)
        return torch.cat([memory, *(part.reshape(-1) for part in learned)])

    def unpack(self, flat: Tensor) -> Tensor | tuple[Tensor, ...]:
        """A unit's input, of what `pack` made."""
        if self.alone:
            return flat
        memory, *learned = flat.split(self._sizes)
        held = memory.detach().view(torch.uint8)[: self._nbytes]
        fixed = iter(self._fixed.carve(held, self._samples))
        own = (part.view(shape) for part, shape in zip(learned, self._shapes, strict=True))
        parts = tuple(next(own if learns else fixed) for learns in self._order)
        return parts if len(parts) > 1 else parts[0]
