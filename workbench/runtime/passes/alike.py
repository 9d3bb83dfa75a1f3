"""Checks that tensors which flow on without growing with the batch are equal in all micro-batches.

A position bias made of weights is. A running sum over the batch is not, nor is noise: one buffer
for all samples has no place for each micro-batch's, and a backward pass of other micro-batches than
the forward ones would ask for values that nobody made. A run that would be wrong ends instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from workbench.runtime.passes.bundle import Boundary, Bundle

NEAR = 1e-2
"""Difference, of the largest value, that rounding in bf16 may make between kernels."""


class Alike:
    """Looks at the first step only: what is alike there is not made of samples."""

    def __init__(self, boundaries: Mapping[int, Boundary]) -> None:
        """`boundaries` by the unit they lead into."""
        self._apart = {unit: b.apart for unit, b in boundaries.items() if b.apart}
        self._seen: dict[int, Bundle] = {}
        self._step: int | None = None

    def see(self, unit: int, step: int, made: Bundle) -> None:
        """A unit put out `made`. Raises ValueError where micro-batches differ."""
        if unit + 1 not in self._apart:
            return
        self._step = step if self._step is None else self._step
        if step != self._step:
            self._seen.clear()
            return
        here = tuple(made[i].detach().cpu() for i in self._apart[unit + 1])
        before = self._seen.setdefault(unit, here)
        if not all(map(_alike, here, before)):
            raise ValueError(
                f"layer {unit} passes on a tensor that does not grow with the batch and that "
                "differs between micro-batches, so it belongs to samples; use one micro-batch, or "
                "have the layers pass on what it is made of"
            )


def _alike(one: Tensor, other: Tensor) -> bool:
    if one is other or not one.is_floating_point():
        return one is other or torch.equal(one, other)
    finite = other[other.isfinite()]
    most = float(finite.abs().max()) if finite.numel() else 0.0
    equal = one == other  # infinities, of which a mask is made, have no difference
    return bool((equal | ((one - other).abs() <= NEAR * most)).all())
