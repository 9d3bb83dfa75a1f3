"""Updates on the host memory of all ranks: of whole layers, or of each rank's share of them.

Norms come from where gradients arrive; the first rank adds them up, decides the clip coefficient
and whether the step is skipped, and all others read that from the board. So every update of a step
sees the same numbers, and a step with a gradient that is not finite changes nothing anywhere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from workbench.runs.spec import RunSpec
from workbench.runtime import host_adam
from workbench.runtime.adam_step import AdamStep
from workbench.runtime.board import Board
from workbench.runtime.shared import SharedHost
from workbench.runtime.storage import States
from workbench.runtime.threads import POLITENESS
from workbench.runtime.visits import VisitLayout
from workbench.schedule import buffers as name


class HostUpdates:
    """The optimizer of one rank. `shares` are the ranks that update each layer together, 1 where a
    layer is updated by one."""

    def __init__(
        self,
        spec: RunSpec,
        host: SharedHost,
        board: Board,
        layouts: list[VisitLayout],
        *,
        dtype: torch.dtype,
        shares: int,
        clipped: bool,
        threads: int,
        polite: bool,
    ) -> None:
        self._spec, self._host, self._board, self._layouts = spec, host, board, layouts
        self._dtype, self._shares, self._clipped = dtype, shares, clipped
        self._threads, self._niceness = threads, POLITENESS if polite else 0
        self._lenders = {loan.owner for layout in layouts for loan in layout.loans}

    def share(self, unit: int) -> int:
        """Elements of a rank's share of a layer's gradients, padding included."""
        nbytes = len(self._host.view(self._gradients(unit, 0)))
        return nbytes // self._dtype.itemsize

    def _gradients(self, unit: int, rank: int) -> str:
        return name.on_rank(rank if self._shares > 1 else 0, name.host_gradients(unit))

    def gradients(self, unit: int, rank: int) -> Tensor:
        """Where a rank's gradients of a layer arrive: its share, or all of them."""
        return self._host.view(self._gradients(unit, rank), self._dtype)

    def see(self, unit: int, gradients: Tensor) -> None:
        """Take the norm of gradients on their way to the host. Those that borrowers add to, and
        the borrowers' part, are taken when they are together."""
        if not self._clipped:
            return
        layout = self._layouts[unit]
        start = self._board.rank * len(gradients) if self._shares > 1 else 0
        own = gradients[: max(0, layout.flat.numel - start)]
        lends = unit in self._lenders
        square = 0.0
        if len(own) and not lends:
            square = float(torch.linalg.vector_norm(own, dtype=torch.float32)) ** 2
        self._board.norms[self._board.rank, unit] = square

    def norm(self, step: int) -> None:
        """The global norm of all that has arrived, for all ranks."""
        total = float(self._board.norms.sum())
        for unit in self._lenders:
            whole = self._summed(unit, 0, self._layouts[unit].flat.numel)
            total += float(torch.linalg.vector_norm(whole, dtype=torch.float32)) ** 2
        self._board.decide(step, math.sqrt(total) if total >= 0 else math.nan)

    def _summed(self, unit: int, first: int, end: int) -> Tensor:
        """Elements of a layer's gradients, with what borrowers add to them."""
        parts = [self.gradients(unit, rank) for rank in range(self._shares)]
        if unit not in self._lenders:
            share = len(parts[0])
            rank = first // share if share else 0
            return parts[rank][first - rank * share : end - rank * share]
        own = torch.cat(parts)[first:end].clone()
        for borrower, layout in enumerate(self._layouts):
            for loan in layout.loans:
                if loan.owner == unit:
                    visit = [self.gradients(borrower, rank) for rank in range(self._shares)]
                    added = torch.cat(visit)[loan.place]
                    low, high = max(first, loan.lent.start), min(end, loan.lent.stop)
                    if low < high:
                        shift = loan.lent.start
                        own[low - first : high - first] += added[low - shift : high - shift]
        return own

    def update(self, unit: int, step: int) -> None:
        """Update this rank's part of a layer, unless the step is skipped."""
        hyper = self._hyper(step)
        if hyper is None:
            return
        layout = self._layouts[unit]
        first, end = 0, layout.flat.numel
        if self._shares > 1:
            share = self.share(unit)
            first, end = (min(end, at * share) for at in (self._board.rank, self._board.rank + 1))
        if first == end:
            return
        states = self.states(unit)
        part = slice(first, end)
        host_adam.update(
            states.weights[part],
            states.exp_avg[part],
            states.exp_avg_sq[part],
            self._summed(unit, first, end),
            hyper,
            decay_split=max(0, min(end, layout.flat.decay_split) - first),
            rest=None if states.rest is None else states.rest[part],
            threads=self._threads,
            niceness=self._niceness,
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

    def states(self, unit: int) -> States:
        """Weights, moments and masters' rest of a layer, where they live."""
        return States.within(
            self._host.view(name.host_weights(unit), self._dtype),
            self._host.view(name.host_states(unit)),
        )
