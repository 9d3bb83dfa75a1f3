"""Activations and their gradients on one rank's device, by the buffers they lie in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from workbench.runtime.bundle import Boundary, Bundle, copy_into, read_all_here
from workbench.runtime.links import holds_all, what_of


class Flow(dict[str, Bundle]):
    """Buffer -> the bundle that lies there. Some hold one micro-batch, some all samples of the
    rank, of which passes read and write theirs."""

    def __init__(
        self, boundaries: Mapping[int, Boundary], first: int, end: int, device: torch.device
    ) -> None:
        """`boundaries` by the unit they lead into; the rank's samples are [first, end)."""
        super().__init__()
        self._boundaries, self._first, self._end = boundaries, first, end
        self._device = device

    def boundary_of(self, unit: int) -> Boundary:
        """What flows into a unit."""
        return self._boundaries[unit]

    def boundary(self, label: str) -> Boundary:
        """Of what lies in a buffer of activations or of their gradients."""
        what, unit = what_of(label)
        if what in ("y", "d", "ds"):  # named after the unit that they come out of
            unit += 1
        boundary = self._boundaries[unit]
        return boundary.gradients() if what in ("d", "ds", "e") else boundary

    def read(self, label: str, span: tuple[int, int]) -> Bundle:
        """What lies in a buffer, or of these samples in one that holds all."""
        held = self[label]
        read_all_here(held)
        if holds_all(label):
            first, end = span
            return self.boundary(label).rows(held, first - self._first, end - self._first)
        return held

    def write(
        self, label: str, span: tuple[int, int], value: Bundle, *, borrowed: bool = False
    ) -> None:
        """Let a bundle lie in a buffer, or among the samples of one that holds all. What is
        `borrowed` is copied in any case."""
        if not holds_all(label):
            self[label] = tuple(t.clone() for t in value) if borrowed else value
            return
        boundary, first, end = self.boundary(label), *span
        if label not in self:
            self[label] = boundary.new(self._end - self._first, self._device)
        rows = boundary.rows(self[label], first - self._first, end - self._first)
        copy_into(rows, value)

    def drop(self, labels: Iterable[str]) -> None:
        """Let go of what lies in these buffers, if anything does."""
        for label in labels:
            read_all_here(self.pop(label, ()))
