"""Layers whose weights and optimizer states stay on one rank's device, and are updated there.

Layers that share weights stay together: each has a place for what it borrows, whose gradients are
added to the owner's before their norm is taken, and which is copied again when the owner has been
updated. All of that is enqueued on the current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from workbench.runtime.host_updates import HostUpdates
from workbench.runtime.pack_memory import PackMemory
from workbench.runtime.visits import VisitLayout
from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind


class Residents:
    """Those of one rank. The host keeps a place for each, where runs begin and checkpoints end."""

    def __init__(
        self,
        memory: PackMemory,
        layouts: Sequence[VisitLayout],
        actions: Sequence[Action],
        updates: HostUpdates,
        rank: int,
    ) -> None:
        """`actions` are the rank's, in their order."""
        self._memory, self._layouts, self._updates, self._rank = memory, layouts, updates, rank
        last = {
            action.unit: action.name
            for action in actions
            if action.kind is Kind.BACKWARD and action.unit in self
        }
        summed = {action.unit for action in actions if action.kind is Kind.REDUCE}
        self._last = {name for unit, name in last.items() if unit not in summed}
        self._loans = [
            (borrower, loan)
            for borrower in sorted(memory.resident)
            for loan in layouts[borrower].loans
        ]

    def __contains__(self, unit: int) -> bool:
        return unit in self._memory.resident

    def bring(self) -> None:
        """From the host to the device."""
        for unit, here in self._memory.resident.items():
            here.copy_(self._updates.states(unit))
        for borrower, _ in self._loans:
            self._borrow(borrower)

    def give_back(self) -> None:
        """From the device to the host."""
        for unit, here in self._memory.resident.items():
            self._updates.states(unit).copy_(here)

    def passed(self, action: Action) -> None:
        """After a backward pass, which may complete the gradients of a layer that stays; where
        several ranks have a part of them, their sum does."""
        if action.name in self._last:
            self.complete(action.unit)

    def complete(self, unit: int, *, counts: bool = True) -> None:
        """Add to a layer's gradients those of layers that share its weights, which were complete
        before, and take their norm; of replicas it `counts` on one."""
        own = self._gradients(unit)
        for borrower, loan in self._loans:
            if loan.owner == unit:
                own[loan.lent].add_(self._here(name.gradients, borrower)[loan.place])
        if counts:
            self._updates.see_here(unit, own)

    def update(self, unit: int, step: int) -> None:
        """On the device, unless the step is skipped."""
        states = self._memory.resident[unit]
        self._updates.update_here(unit, step, states, self._gradients(unit))
        self._borrow(unit)

    def _borrow(self, unit: int) -> None:
        """Copy the weights that a layer shares with another one."""
        for borrower, loan in self._loans:
            if borrower == unit:
                lent = self._here(name.weights, loan.owner)[loan.lent]
                self._here(name.weights, unit)[loan.place].copy_(lent)

    def _gradients(self, unit: int) -> Tensor:
        """Of a layer's own weights."""
        return self._here(name.gradients, unit)[: self._layouts[unit].flat.numel]

    def _here(self, what: Callable[[int], str], unit: int) -> Tensor:
        """A layer's weights or gradients, with the place of what it borrows."""
        label = name.on_rank(self._rank, what(unit))
        return self._memory.place(label, self._layouts[unit].numel)
