"""Versions of the weights of one stage, for passes that read others than the newest.

An optimizer updates a stage's parameters in place. Passes run on leaves of their own, each with the
gradient of its parameter and memory that they share with it: autograd does not mind, then, that an
update comes between a forward and a backward pass. With one copy the update overwrites the weights
of graphs on their way. With several it is made on the next copy of a ring, and a backward pass
finds the weights of its forward pass. Validators prove that there are enough copies
(schedule/rules.py).

Forward passes may read weights of later updates, as someone predicts them from the newest. A
prediction is made for all passes of a step that are as many updates ahead, when the first of them
begins, and its memory is used again when the last pass that reads it ends: the schedule names both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind

Leaves = list[nn.Parameter]
"""A copy of all weights, in one order."""


class Predict(Protocol):
    """Predicts weights."""

    def __call__(self, parameter: nn.Parameter, into: Tensor, *, done: int, steps: int) -> None:
        """Write a parameter's values so many steps from now; the updates of `done` steps of the
        run are made. Nothing else changes."""


class WeightVersions:
    """Versions of one stage. A `Versions` (runtime/protocols.py)."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], modules: Iterable[nn.Module], *,
        copies: int = 1, predict: Predict | None = None,
    ) -> None:  # fmt: skip
        """`parameters` are updated; they have their gradients, and `modules` read them. `copies` as
        the schedule has them of the stage's weights."""
        self._own, self._predict = list(parameters), predict
        number = {id(parameter): n for n, parameter in enumerate(self._own)}
        self._places = [
            (module, local, number[id(parameter)])
            for root in modules
            for module in root.modules()
            for local, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if id(parameter) in number
        ]
        self._ring = [self._leaves([own.data for own in self._own])]
        self._ring += [self._copy() for _ in range(copies - 1)]
        self._at = 0
        """The copy with the newest weights."""
        self._done: int | None = None
        """Steps of the run whose updates the newest weights have."""
        self._read: dict[tuple[int, int], int] = {}
        """Micro-batch and step -> the copy that its forward pass read."""
        self._predicted: dict[tuple[str, int], Leaves] = {}
        self._unused: list[Leaves] = []
        """Memory of predictions that nobody reads."""
        self._differentiated: Leaves = []
        """The weights that the last backward pass read."""

    def begin(self) -> None:
        """Before the pipeline fills: no pass is on its way, and the weights are those of now."""
        self._done = None

    @contextmanager
    def reading(self, action: Action, step: int) -> Iterator[None]:
        """During a pass the modules have the weights that it reads."""
        place, label = (action.microbatch or 0, step), name.prediction(action)
        if self._done is None:
            self._done = step
        if label is not None:
            leaves = self._prediction(label, step)
        elif len(self._ring) == 1 or not action.stale:
            leaves = self._ring[self._at]
        elif action.kind is Kind.FORWARD:
            leaves = self._ring[self._read.setdefault(place, self._at)]
        else:
            leaves = self._ring[self._read[place]]
        if action.kind is Kind.BACKWARD:
            self._read.pop(place, None)
            self._differentiated = leaves
        self._lend(leaves)
        try:
            yield
        finally:
            self._lend(self._own)
            if label is not None and label in action.frees:
                self._unused.append(self._predicted.pop((label, step)))

    def differentiated(self) -> Iterable[tuple[nn.Parameter, Tensor]]:
        """Each parameter and its values in the last backward pass, until the next pass."""
        return zip(self._own, self._differentiated, strict=True)

    @torch.no_grad()
    def renew(self, step: int) -> None:
        """Before the update of a step: the parameters get memory of their own, where passes may
        read the weights of now."""
        self._done = step + 1
        if len(self._ring) > 1:
            now, self._at = self._ring[self._at], (self._at + 1) % len(self._ring)
            for own, old, new in zip(self._own, now, self._ring[self._at], strict=True):
                new.copy_(old)
                own.data = new.data

    @torch.no_grad()
    def _prediction(self, label: str, step: int) -> Leaves:
        """Weights expected after the updates of all steps before this one, or one step ahead."""
        if (label, step) not in self._predicted:
            leaves = self._unused.pop() if self._unused else self._copy()
            for own, leaf in zip(self._own, leaves, strict=True):
                self._predict(own, leaf.data, done=self._done, steps=step - self._done)
            self._predicted[label, step] = leaves
        return self._predicted[label, step]

    def _copy(self) -> Leaves:
        return self._leaves([torch.empty_like(own.data) for own in self._own])

    def _leaves(self, values: Sequence[Tensor]) -> Leaves:
        leaves = [
            nn.Parameter(value, requires_grad=own.requires_grad)
            for value, own in zip(values, self._own, strict=True)
        ]
        for leaf, own in zip(leaves, self._own, strict=True):
            leaf.grad = own.grad
        return leaves

    def _lend(self, leaves: Leaves) -> None:
        for module, local, number in self._places:
            module._parameters[local] = leaves[number]
