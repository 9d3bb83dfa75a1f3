"""Updates of a rank: of layers in the host memory of all ranks, whole or its share of each, and of
layers that stay on its device.

Norms come from where gradients arrive; the first rank adds them up, decides the clip coefficient
and whether the step is skipped, and all others read that from the board. So every update of a step
sees the same numbers, and a step with a gradient that is not finite changes nothing anywhere.
Without clipping nobody waits for norms, and such a step ends the run (`check`).

Updates on the host need not wait for that: as on one device (optimizer.py) they may be guesses,
which stand where nothing is clipped and are taken back exactly where something is. What a rank
guesses depends on the step before and on gradients that it has seen itself, not on when others are
done: equal runs give equal bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.core.spec import RunSpec
from workbench.runtime.executor.board import Board
from workbench.runtime.executor.threads import POLITENESS, update_threads
from workbench.runtime.memory.shared import SharedHost
from workbench.runtime.memory.storage import States
from workbench.runtime.memory.visits import VisitLayout
from workbench.runtime.passes.links import residents
from workbench.runtime.updates import device_adam, host_adam, host_sums
from workbench.runtime.updates.adam_step import AdamStep, Diverged, clip_coefficient
from workbench.runtime.updates.guesses import Settled, apply
from workbench.schedule import buffers as name
from workbench.schedule.action import GUESS, Kind
from workbench.schedule.schedule import Schedule


class HostUpdates:
    """The optimizer of one rank, of whose layers each is updated on the host or where it stays."""

    def __init__(
        self,
        spec: RunSpec,
        schedule: Schedule,
        host: SharedHost,
        board: Board,
        layouts: list[VisitLayout],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """The schedule says which ranks update each layer, on the host each its share."""
        self._spec, self._host, self._board, self._layouts = spec, host, board, layouts
        updates = [action for action in schedule.actions if action.kind is Kind.UPDATE]
        self._dtype, self._sharers = (
            dtype,
            [sorted({a.rank for a in updates if a.unit == unit}) for unit in range(len(layouts))],
        )
        self._clipped = any(action.kind is Kind.NORM for action in schedule.actions)
        self._threads = update_threads(device.type, schedule.mesh.processes)
        self._niceness = POLITENESS if device.type == "cuda" else 0
        mine = (action for action in updates if action.rank == board.position)
        self._guesses = tuple(action.unit for action in mine if action.turn == GUESS)
        """Layers that are updated before the norm is known, in the order their gradients come."""
        self._guessed: dict[int, AdamStep] = {}
        """Layer -> the update it was given before the norm was known."""
        self.settled = Settled()
        self._squares = torch.from_numpy(board.norms[board.rank])
        lenders = {loan.owner for layout in layouts for loan in layout.loans}
        self._lenders = lenders - residents(schedule)
        """Layers whose gradients are in host memory when others' are added to them."""

    def share(self, unit: int) -> int:
        """Elements of a rank's share of a layer's gradients, padding included."""
        nbytes = len(self._host.view(self._gradients(unit, self._sharers[unit][0])))
        return nbytes // self._dtype.itemsize

    def _gradients(self, unit: int, rank: int) -> str:
        shared = len(self._sharers[unit]) > 1
        return name.on_rank(rank if shared else 0, name.host_gradients(unit))

    def part_number(self, unit: int) -> int:
        """Number of the part of a layer that this rank updates, among its sharers' parts."""
        sharers = self._sharers[unit]
        return sharers.index(self._board.position) if len(sharers) > 1 else 0

    def gradients(self, unit: int, rank: int) -> Tensor:
        """Where a rank's gradients of a layer arrive: its share, or all of them."""
        return self._host.view(self._gradients(unit, rank), self._dtype)  # [parameters of the unit]

    def see(self, unit: int, gradients: Tensor) -> None:
        """Take the norm of gradients on their way to the host. Those that borrowers add to, and
        the borrowers' part, are taken when they are together."""
        if self._clipped and unit in self._lenders:
            return
        start = self.part_number(unit) * len(gradients)
        self.see_here(unit, gradients[: max(0, self._layouts[unit].flat.numel - start)])

    def norm(self, step: int) -> None:
        """The global norm of all that has arrived, for all ranks."""
        total = float(self._board.norms.sum())
        for unit in self._lenders:
            end = self._layouts[unit].flat.numel
            self._add_borrowed(unit, 0, end)
            total += sum(self._sum(piece) for piece in self._pieces(unit, 0, end))
        self._board.decide(step, math.sqrt(total) if total >= 0 else math.nan)

    def _pieces(self, unit: int, first: int, end: int) -> Iterator[Tensor]:
        """Elements of a layer's gradients where they lie: with the ranks that have shares of it."""
        share = self.share(unit)
        while first < end:
            number, at = divmod(first, share)
            length = min(end - first, share - at)
            yield self.gradients(unit, self._sharers[unit][number])[at : at + length]
            first += length

    def _add_borrowed(self, unit: int, first: int, end: int) -> None:
        """Add what borrowers have for elements of a layer to its own gradients, in their place."""
        for borrower, layout in enumerate(self._layouts):
            for loan in layout.loans:
                low, high = max(first, loan.lent.start), min(end, loan.lent.stop)
                if loan.owner != unit or low >= high:
                    continue
                shift = loan.place.start - loan.lent.start
                for own in self._pieces(unit, low, high):
                    at = 0
                    for added in self._pieces(borrower, low + shift, low + shift + len(own)):
                        self._sum(own[at : at + len(added)], added)
                        at += len(added)
                    low += len(own)

    def _sum(self, own: Tensor, added: Tensor | None = None) -> float:
        return host_sums.add(own, added, threads=self._threads)

    def update(self, unit: int, step: int) -> None:
        """Update this rank's part of a layer, unless the step is skipped."""
        if not self._clipped:  # else the norm needed the sums already
            self._add_borrowed(unit, *self._part(unit))
        self._apply(unit, self._hyper(step), None)

    def guess(self, unit: int, step: int) -> None:
        """Update it before the norm is known, as if nothing were clipped: where the step before was
        not, and the gradients that this rank has seen so far are within the limit."""
        before = self._board.decided(step - 1)
        if before is None or not math.isfinite(before[0]):
            return
        if clip_coefficient(self._spec.clip, before[0]) < 1.0:
            return
        seen = self._guesses[: self._guesses.index(unit) + 1]
        square = sum(float(self._board.norms[self._board.rank, other]) for other in seen)
        if not square <= self._spec.clip**2:  # so for what is not finite
            return
        hyper = AdamStep.of(self._spec, step, number=before[1] + 1)
        self._apply(unit, hyper, None)
        self._guessed[unit] = hyper

    def settle(self, unit: int, step: int) -> None:
        """Make such an update what it must be, now that the norm is known."""
        guess = self._guessed.pop(unit, None)
        self._apply(unit, *self.settled.verdict(guess, self._hyper(step)))

    def forget(self) -> None:
        """Nothing of a step that failed counts: no layer has been updated before the norm was
        known, and no gradient was seen."""
        self._guessed.clear()
        self._squares.zero_()

    def _part(self, unit: int) -> tuple[int, int]:
        """The elements of a layer that this rank updates."""
        end = self._layouts[unit].flat.numel
        if len(self._sharers[unit]) == 1:
            return 0, end
        share, number = self.share(unit), self.part_number(unit)
        return min(end, number * share), min(end, (number + 1) * share)

    def _apply(self, unit: int, hyper: AdamStep | None, undo: AdamStep | None) -> None:
        """Take an update of this rank's part back, and make another one, as far as there are."""
        first, end = self._part(unit)
        if first == end:
            return
        states, part = self.states(unit), slice(first, end)
        slabs = (
            states.weights[part],
            states.exp_avg[part],
            states.exp_avg_sq[part],
            self.gradients(unit, self._board.position)[: end - first],
        )
        apply(
            host_adam,
            slabs,
            hyper,
            undo,
            decay_split=max(0, min(end, self._layouts[unit].flat.decay_split) - first),
            rest=None if states.rest is None else states.rest[part],
            threads=self._threads,
            niceness=self._niceness,
        )

    def see_here(self, unit: int, gradients: Tensor) -> None:
        """Take the norm of gradients on the device. It writes to the board itself: who reads it
        waits until they are complete, and the thread that issues this must not."""
        square = torch.linalg.vector_norm(gradients, dtype=_wide(gradients)).double() ** 2
        self._squares[unit : unit + 1].copy_(square.reshape(1), non_blocking=True)

    def check(self, step: int) -> None:
        """Raises Diverged where a step should have been skipped and could not be, by what this rank
        has seen so far."""
        if not self._clipped and not (finite := self._squares.isfinite()).all():
            raise Diverged(step, int(finite.logical_not().nonzero()[-1]))

    def update_here(self, unit: int, step: int, states: States, gradients: Tensor) -> None:
        """Update a layer that stays on the device, unless the step is skipped."""
        hyper = self._hyper(step)
        if hyper is None:
            return
        device_adam.update(
            states.weights,
            states.exp_avg,
            states.exp_avg_sq,
            gradients,
            hyper,
            decay_split=self._layouts[unit].flat.decay_split,
            rest=states.rest,
            threads=self._threads,
        )

    def _hyper(self, step: int) -> AdamStep | None:
        if not self._clipped:
            return AdamStep.of(self._spec, step, number=step + 1)
        norm, done = map(float, self._board.total)
        if not math.isfinite(norm):
            return None
        return AdamStep.of(self._spec, step, number=int(done), norm=norm)

    def on_disk(self, unit: int) -> bool:
        """Nothing is: checkpoints ask."""
        return False

    def seed(self, unit: int, master: Tensor) -> None:
        """Write a layer's first weights, fp32; moments are zeros, as new memory is."""
        self.states(unit).set_master(master)

    def states(self, unit: int) -> States:
        """Weights, moments and masters' rest of a layer, where they live."""
        return States.within(
            self._host.view(name.host_weights(unit), self._dtype),
            self._host.view(name.host_states(unit)),
        )


def _wide(tensor: Tensor) -> torch.dtype:
    """In which norms are taken: fp32 at the least."""
    return torch.promote_types(tensor.dtype, torch.float32)
