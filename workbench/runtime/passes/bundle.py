"""Tensors that flow between two units, and their bytes.

Most models pass one tensor on; one with masks or skip connections passes several, which go as one
bundle wherever they go. In memory of its own (a stash, an inbox) each of a bundle's tensors has all
its samples together, those of the widest elements first, so that none needs padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from workbench.model.base import Part

Bundle = tuple[Tensor, ...]


class Boundary:
    """The parts of what flows into one unit, or of the gradients that flow back."""

    def __init__(self, parts: Sequence[Part], dtype: torch.dtype) -> None:
        """`dtype` is that of parts which have none of their own: the run's."""
        self.parts = tuple(parts)
        self.dtypes = tuple(part.dtype or dtype for part in parts)
        self.differentiable = tuple(part.differentiable for part in parts)

    def gradients(self) -> Boundary:
        """Boundary of the parts for which a gradient comes back."""
        chosen = [i for i, wanted in enumerate(self.differentiable) if wanted]
        back = Boundary([self.parts[i] for i in chosen], torch.float32)
        back.dtypes = tuple(self.dtypes[i] for i in chosen)
        return back

    def nbytes(self, samples: int) -> int:
        """Bytes of the bundle of so many samples."""
        return sum(
            prod(part.full_shape(samples)) * dtype.itemsize
            for part, dtype in zip(self.parts, self.dtypes, strict=True)
        )

    def carve(self, memory: Tensor, samples: int) -> Bundle:
        """The bundle of so many samples in flat bytes."""
        found: dict[int, Tensor] = {}
        at = 0
        for i in sorted(range(len(self.parts)), key=lambda i: -self.dtypes[i].itemsize):
            shape, dtype = self.parts[i].full_shape(samples), self.dtypes[i]
            end = at + prod(shape) * dtype.itemsize
            found[i] = memory[at:end].view(dtype).view(shape)  # [samples, ...]
            at = end
        return tuple(found[i] for i in range(len(self.parts)))

    def new(self, samples: int, device: torch.device, without: Sequence[int] = ()) -> Bundle:
        """Memory for so many samples; none for the parts that are left out."""
        return tuple(
            torch.empty(0 if i in without else part.full_shape(samples), dtype=dtype, device=device)
            for i, (part, dtype) in enumerate(zip(self.parts, self.dtypes, strict=True))
        )

    @property
    def apart(self) -> tuple[int, ...]:
        """Parts that do not grow with the batch; of their gradients, each micro-batch has some."""
        return tuple(i for i, part in enumerate(self.parts) if part.batch_dim is None)

    def rows(self, bundle: Bundle, first: int, end: int) -> Bundle:
        """Samples [first, end) of a bundle."""
        return tuple(
            tensor
            if part.batch_dim is None
            else tensor.narrow(part.batch_dim, first * part.rows, (end - first) * part.rows)
            for part, tensor in zip(self.parts, bundle, strict=True)
        )


def copy_into(target: Bundle, source: Bundle) -> None:
    """Enqueue the copies on the current stream."""
    for to, of in zip(target, source, strict=True):
        to.copy_(of, non_blocking=True)


def bytes_of(bundle: Bundle) -> int:
    """Bytes of all tensors of a bundle."""
    return sum(tensor.nbytes for tensor in bundle)


def bundled(value: Tensor | Bundle) -> Bundle:
    """The output of a unit, as a bundle."""
    return value if isinstance(value, tuple) else (value,)


def single(bundle: Bundle) -> Tensor | Bundle:
    """A bundle as a unit takes it: one tensor by itself."""
    return bundle[0] if len(bundle) == 1 else bundle
