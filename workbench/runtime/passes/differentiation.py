"""Passes of units through autograd, whose graphs are kept until backward passes take them.

Every engine of several positions runs its units' passes here, whether a unit is a layer whose
weights visit the device (rank_passes.py) or a stage of several layers that stays there
(stage_engine.py). The engine says where inputs come from, and takes gradients to where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.passes.halves import WeightHalf, input_half

Key = Hashable
"""Unit, micro-batch, and step where several are in flight."""


class Above(NamedTuple):
    """The beginning of a backward pass: gradients of what the unit put out, or a factor of the loss
    that it put out."""

    gradients: Bundle = ()
    """Of the outputs that are `differentiable`, in their order and shapes."""
    differentiable: Sequence[bool] = ()
    """Of each output whether a gradient comes back."""
    share: float | None = None
    """The factor; None for a unit that puts out no loss."""

    def ends(self, made: Bundle) -> tuple[Sequence[Tensor], Sequence[Tensor] | None]:
        """Tensors of which autograd starts, and their gradients; no tensors where nothing is
        learned below."""
        if self.share is not None:
            return ([made[0] * self.share] if self.share else []), None
        back = (t for t, wanted in zip(made, self.differentiable, strict=True) if wanted)
        pairs = [(t, g) for t, g in zip(back, self.gradients, strict=True) if t.requires_grad]
        return [t for t, _ in pairs], [g for _, g in pairs]


class Differentiation:
    """Graphs of one process's units."""

    def __init__(self) -> None:
        self._graphs: dict[Key, tuple[Bundle, Bundle]] = {}
        self._halves: dict[Key, WeightHalf] = {}

    def forward(
        self, key: Key, run: Callable[[Bundle], Bundle], came: Bundle,
        differentiable: Sequence[bool] | None = None,
    ) -> Bundle:  # fmt: skip
        """The outputs of a forward pass over the inputs that `came`. Its graph is kept if it is
        said which of them are `differentiable`."""
        if differentiable is None:
            with torch.no_grad():
                return run(came)
        pairs = zip(came, differentiable, strict=True)
        came = tuple(t.detach().requires_grad_(wanted) for t, wanted in pairs)
        with torch.enable_grad():
            made = run(came)
        self._graphs[key] = came, made
        return made

    def __contains__(self, key: Key) -> bool:
        """Whether a graph is kept."""
        return key in self._graphs

    def backward(
        self, key: Key, above: Above, parameters: Sequence[Tensor]
    ) -> tuple[Bundle, Bundle]:
        """Gradients of the differentiable inputs and of the parameters; zeros where none come."""
        came, made = self._graphs.pop(key)
        through = [t for t in came if t.requires_grad]
        wanted, (ends, gradients) = [*through, *parameters], above.ends(made)
        if ends and wanted:
            found = torch.autograd.grad(ends, wanted, gradients, materialize_grads=True)
        else:
            found = tuple(map(torch.zeros_like, wanted))
        return found[: len(through)], found[len(through) :]

    def accumulate(self, key: Key, above: Above) -> Bundle:
        """Gradients of the differentiable inputs; those of the weights are added to the `grad` of
        each as soon as they are made, so that no second set of all gradients is ever there."""
        came, made = self._graphs.pop(key)
        ends, gradients = above.ends(made)
        if any(t.requires_grad for t in ends):
            torch.autograd.backward(ends, gradients)
        through = (t for t in came if t.requires_grad)
        return tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in through)

    def input_half(self, key: Key, above: Above, parameters: Sequence[Tensor]) -> Bundle:
        """Gradients of the inputs alone; the other half is kept."""
        came, made = self._graphs.pop(key)
        through = [t for t in came if t.requires_grad]
        found, self._halves[key] = input_half(*above.ends(made), through, parameters)
        return found

    def weight_half(self, key: Key) -> Bundle:
        """Gradients of the parameters, of a pass whose other half is done."""
        return self._halves.pop(key).gradients()

    def forget(self) -> None:
        """Let go of all graphs."""
        self._graphs.clear()
        self._halves.clear()
