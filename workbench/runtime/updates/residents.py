"""Layers whose weights and optimizer states stay on one rank's device, and are updated there.

A layer that borrows weights has a place for them, whose gradients are added to the owner's before
their norm is taken, and which is copied again when the owner has been updated: here where both are
on one device, else by messages between the two (peer_transport.py). All of that is enqueued on the
current stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from torch import Tensor

from workbench.runtime.executor.board import Board
from workbench.runtime.memory.pack_memory import PackMemory
from workbench.runtime.memory.visits import VisitLayout
from workbench.runtime.protocols import Updates
from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind


class Residents:
    """Resident layers of one rank. The host keeps a place for each, where runs begin and
    checkpoints end."""

    def __init__(
        self,
        memory: PackMemory,
        layouts: Sequence[VisitLayout],
        actions: Sequence[Action],
        updates: Updates,
        board: Board,
    ) -> None:
        """`actions` are the rank's, in their order."""
        self._memory, self._layouts, self._updates = memory, layouts, updates
        self._rank, self._first = board.position, board.replica == 0
        last: dict[int, str] = {}
        for kinds in ((Kind.BACKWARD, Kind.WEIGHT_GRAD), (Kind.REDUCE,)):
            last |= {action.unit: action.name for action in actions if action.kind in kinds}
        added = Counter(
            action.unit
            for action in actions
            if action.kind is Kind.RECV_GRAD and action.microbatch is None
        )
        self._last = {name for unit, name in last.items() if unit in self and not added[unit]}
        """Actions after which a unit's gradients are complete on this rank."""
        self._awaited = added
        """Unit -> messages of a step with gradients of other ranks that are added to its own."""
        self._missing = dict(added)
        """Unit -> how many of them have not come yet."""
        self._loans = [
            (borrower, loan)
            for borrower in sorted(memory.resident)
            for loan in layouts[borrower].loans
        ]
        """Loans of all units that borrow here; owners may be elsewhere."""

    def __contains__(self, unit: int) -> bool:
        return unit in self._memory.resident

    def bring(self) -> None:
        """From the host to the device."""
        for unit, here in self._memory.resident.items():
            here.copy_(self._updates.states(unit))
        for borrower, loan in self._loans:
            if loan.owner in self:
                self._borrow(borrower)
            else:
                place = self._here(name.weights, borrower)[loan.place]
                place.copy_(self._updates.states(loan.owner).weights[loan.lent])

    def give_back(self) -> None:
        """From the device to the host; replicas have equal ones."""
        for unit, here in self._memory.resident.items() if self._first else ():
            self._updates.states(unit).copy_(here)

    def passed(self, action: Action, *, counts: bool = True) -> None:
        """After a backward pass, or a sum over ranks, which may complete the gradients of a layer
        that stays; of replicas their norm `counts` on one."""
        if action.name in self._last:
            self._complete(action.unit, counts=counts)

    def _complete(self, unit: int, *, counts: bool = True) -> None:
        """Add to a layer's gradients those of layers here that share its weights, which were
        complete before, and take their norm."""
        own = self._gradients(unit)
        for borrower, loan in self._loans:
            if loan.owner == unit:
                own[loan.lent].add_(self._here(name.gradients, borrower)[loan.place])
        if counts:
            self._updates.see_here(unit, own)

    def lent(self, unit: int, borrower: int, *, gradients: bool) -> list[Tensor]:
        """Tensors of a message between the owner of weights and a borrower, on either side: weights
        of `unit`, or their gradients, flat views."""
        what = name.gradients if gradients else name.weights
        here, at_owner = unit if unit in self else borrower, unit in self
        whole = self._here(what, here)
        loans = [loan for loan in self._layouts[borrower].loans if loan.owner == unit]
        return [whole[loan.lent if at_owner else loan.place] for loan in loans]

    def receive(self, unit: int, borrower: int, came: Tensor, *, gradients: bool) -> None:
        """Take in what a message has brought: weights, or gradients, which are complete with the
        last of them."""
        parts = self.lent(unit, borrower, gradients=gradients)
        for here, new in zip(parts, came.split([part.numel() for part in parts]), strict=True):
            here.add_(new) if gradients else here.copy_(new)
        if gradients:
            self._missing[unit] -= 1
            if not self._missing[unit]:
                self._missing[unit] = self._awaited[unit]
                self._complete(unit, counts=self._first)

    def update(self, unit: int, step: int) -> None:
        """On the device, unless the step is skipped."""
        states = self._memory.resident[unit]
        self._updates.update_here(unit, step, states, self._gradients(unit))
        self._borrow(unit)

    def _borrow(self, unit: int) -> None:
        """Copy the weights that a layer shares with another one."""
        for borrower, loan in self._loans:
            if borrower == unit and loan.owner in self:
                lent = self._here(name.weights, loan.owner)[loan.lent]
                self._here(name.weights, unit)[loan.place].copy_(lent)

    def _gradients(self, unit: int) -> Tensor:
        """Gradients of a layer's own weights."""
        return self._here(name.gradients, unit)[: self._layouts[unit].flat.numel]

    def _here(self, what: Callable[[int], str], unit: int) -> Tensor:
        """A layer's weights or gradients, with the place of what it borrows."""
        label = name.on_rank(self._rank, what(unit))
        return self._memory.place(label, self._layouts[unit].numel)
