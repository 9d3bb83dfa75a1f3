"""Activations and their gradients on one rank's device, by the buffers they lie in.

The lane that made a bundle is kept beside it: its memory is free again when that lane has waited
for the lane that reads it last (deferred_frees.py)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import torch

from workbench.runtime.memory.deferred_frees import DeferredFrees
from workbench.runtime.memory.shared import SharedHost
from workbench.runtime.passes.bundle import Boundary, Bundle, copy_into
from workbench.runtime.passes.links import holds_all, what_of
from workbench.schedule.action import Action


class ActivationStore(dict[str, Bundle]):
    """Buffer -> the bundle that lies there. Some buffers hold one micro-batch, some all samples of
    the rank, of which passes read and write theirs. In the latter, a tensor that does not grow with
    the batch is equal in all passes, and each micro-batch has a gradient of its own for it."""

    def __init__(
        self,
        boundaries: Mapping[int, Boundary],
        first: int,
        end: int,
        device: torch.device,
        deferred: DeferredFrees,
    ) -> None:
        """`boundaries` by the unit they lead into; the rank's samples are [first, end)."""
        super().__init__()
        self._boundaries, self._first, self._end = boundaries, first, end
        self._device, self._deferred = device, deferred
        self._made_on: dict[str, str] = {}
        """Buffer -> the lane on which what lies there was made; not of places in an inbox."""
        self._apart: dict[str, dict[tuple[int, int], Bundle]] = {}
        """Buffer of all samples' gradients -> samples -> those of parts that do not grow."""
        self._stashes: dict[str, Bundle] = {}
        """By their actions: they lie where they lay in the step before."""

    def boundary_of(self, unit: int) -> Boundary:
        """The boundary of the tensors that flow into a unit."""
        return self._boundaries[unit]

    def boundary(self, label: str) -> Boundary:
        """The boundary of the tensors in a buffer of activations or of their gradients."""
        what, unit = what_of(label)
        if what in ("y", "d", "ds"):  # named after the unit that they come out of
            unit += 1
        boundary = self._boundaries[unit]
        return boundary.gradients() if what in ("d", "ds", "e") else boundary

    def read(self, label: str, span: tuple[int, int]) -> Bundle:
        """The bundle in a buffer, or the rows of `span` in a buffer of all samples."""
        held = self[label]
        if not holds_all(label):
            return held
        boundary, (first, end) = self.boundary(label), span
        rows = boundary.rows(held, first - self._first, end - self._first)
        if label not in self._apart:
            return rows
        own = dict(zip(boundary.apart, self._apart[label][span], strict=True))
        return tuple(own.get(i, tensor) for i, tensor in enumerate(rows))

    def stashed(self, action: Action, label: str, host: SharedHost, batch: int) -> Bundle:
        """An action's samples in a stash, of the whole batch or of those that pass this rank."""
        if action.name not in self._stashes:
            memory, boundary, span = host.view(label), self.boundary(label), action.span
            whole = len(memory) == boundary.nbytes(batch)
            first, end = (0, batch) if whole else (self._first, self._end)
            bundle = boundary.carve(memory, end - first)
            self._stashes[action.name] = boundary.rows(bundle, span[0] - first, span[1] - first)
        return self._stashes[action.name]

    def lay(self, label: str, bundle: Bundle, action: Action) -> None:
        """Put a bundle that `action` has made into a buffer."""
        self[label], self._made_on[label] = bundle, action.lane

    def write(self, label: str, value: Bundle, action: Action, *, borrowed: bool = False) -> None:
        """Put an action's bundle into a buffer, or among the samples of one that holds all. A
        `borrowed` bundle is copied in any case."""
        if not holds_all(label):
            self.lay(label, tuple(t.clone() for t in value) if borrowed else value, action)
            return
        boundary, (first, end) = self.boundary(label), action.span
        apart = boundary.apart if what_of(label)[0] == "ds" else ()
        if label not in self:
            made = boundary.new(self._end - self._first, self._device, without=apart)
            self.lay(label, made, action)
        rows = boundary.rows(self[label], first - self._first, end - self._first)
        together = [i for i in range(len(rows)) if i not in apart]
        copy_into(tuple(rows[i] for i in together), tuple(value[i] for i in together))
        if apart:
            own = tuple(value[i].clone() for i in apart)
            self._apart.setdefault(label, {})[action.span] = own

    def drop(self, action: Action, step: int) -> None:
        """Let go of the bundles in the buffers that an action frees, if there are any."""
        for label in action.frees:
            bundle, made_on = self.pop(label, ()), self._made_on.pop(label, None)
            apart = self._apart.pop(label, {}).values()
            if made_on is not None:
                self._deferred.hold((*bundle, *chain(*apart)), made_on, action, step)

    def begin(self, action: Action, step: int) -> None:
        """Free what the action's lane has waited for: an action begins, after all its waits."""
        self._deferred.release(action, step)

    def clear(self) -> None:
        """Let go of all bundles; every lane has ended."""
        super().clear()
        self._made_on.clear()
        self._apart.clear()
        self._stashes.clear()
        self._deferred.clear()
