"""Gradients of units on the device, over the micro-batches of a step and over several steps.

A step may *hold* its gradients: it updates nothing, and the next one adds its own to them, as if
its micro-batches were further ones of that step. Gradients with memory of their own on the device
wait there. Those that share a slot wait on the host, and come back before the first is added.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.runtime.memory.memory import Memory
from workbench.runtime.memory.storage import Flat, read_here
from workbench.runtime.memory.traffic import Traffic
from workbench.schedule import buffers as name
from workbench.schedule.schedule import Schedule


class Gradients(dict[int, list[Tensor]]):
    """Unit -> its gradients on the device, in the order of its pieces: views of a slab, or for
    resident blocks what autograd returned, from their backward pass to their update."""

    def __init__(
        self, memory: Memory, schedule: Schedule, flats: list[Flat], traffic: Traffic
    ) -> None:
        super().__init__()
        self._memory, self._schedule, self._flats = memory, schedule, flats
        self._traffic = traffic
        self.held = False
        """Whether the last step's wait for those of the next."""
        for unit, flat in enumerate(flats):
            if (slab := self.slab(unit)) is not None:
                self[unit] = [view for _, view in flat.views(slab)]

    def slab(self, unit: int) -> Tensor | None:
        """Where a unit's gradients gather on the device; None for a resident block whose gradients
        stay what autograd returns.
        """
        own = self._schedule.buffers[name.gradients(unit)]
        if unit in self._memory.resident or own.permanent:
            return self._memory.gradients(unit)
        return self._memory.gradient_slots[own.slot][: self._flats[unit].numel]

    def take(
        self, unit: int, grads: list[Tensor], *, first: bool, carried: bool, own: bool
    ) -> None:
        """Keep a micro-batch's gradients of a block, or add them to those of the ones before, of
        this step or where they are `carried` of the steps before. `own`: the next pass writes over
        these."""
        if first and carried:
            self.recall(unit)
            first = False
        if first and self.slab(unit) is None:
            fresh = self._flats[unit].gathered(grads) if own else [g.contiguous() for g in grads]
            self[unit] = fresh
        elif not grads:
            return
        elif first:
            torch._foreach_copy_(self[unit], grads)
        else:
            torch._foreach_add_(self[unit], grads)

    def out(self, unit: int, *, held: bool) -> None:
        """Copy a unit's gradients to the host, where updates read them, or they wait."""
        memory = self._memory
        target = memory.sum_of_gradients(unit) if held else memory.host_gradients(unit)
        self._traffic.copy("store", target, self.slab(unit))

    def recall(self, unit: int) -> None:
        """Have the gradients of steps before on the device, where a pass adds to them."""
        if not (unit in self._memory.resident or self._memory.gradients(unit) is not None):
            self._traffic.copy("load", self.slab(unit), self._memory.sum_of_gradients(unit))

    def drop(self, unit: int) -> None:
        """Drop the gradients of a resident unit, where autograd returned them."""
        if self.slab(unit) is None:
            for grad in self.pop(unit):
                read_here(grad)

    def forget(self) -> None:
        """Let go of what a step that failed, or gradients that nobody wants, have left."""
        self.held = False
        for unit in [unit for unit in self if self.slab(unit) is None]:
            del self[unit]
