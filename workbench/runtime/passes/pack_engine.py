"""Performs each action on one of several ranks, whose layers visit it from shared host memory.

The single-device engine's counterpart (engine.py) for schedules of several ranks. It too knows only
how: where a layer's weights lie on the device, where an input comes from and an output goes, all of
that is written in the schedule as the buffers an action takes, uses and frees.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed import ProcessGroup

from workbench.runtime.executor.match import ON_RANKS
from workbench.runtime.memory.deferred_frees import DeferredFrees
from workbench.runtime.memory.pack_memory import PackMemory
from workbench.runtime.memory.traffic import Traffic
from workbench.runtime.passes.activation_store import ActivationStore
from workbench.runtime.passes.bundle import Boundary, Bundle, bytes_of, copy_into
from workbench.runtime.passes.links import Links, links_of
from workbench.runtime.passes.rank_context import RankContext
from workbench.runtime.passes.rank_passes import RankPasses
from workbench.runtime.protocols import Transport, Updates
from workbench.runtime.transport.groups import Groups
from workbench.runtime.transport.inbox import Inbox
from workbench.runtime.transport.peer_transport import PeerTransport
from workbench.runtime.updates.residents import Residents
from workbench.schedule import buffers as name
from workbench.schedule.action import GUESS, RECEIVES, SENDS, Action, Kind


class PackEngine:
    """Performs the actions of one rank (the executor's `Work`)."""

    def __init__(
        self, context: RankContext, updates: Updates, inbox: Inbox, folder: Path,
        group: ProcessGroup | None = None,
    ) -> None:  # fmt: skip
        """In `folder` the ranks tell each other what their messages need. `group` is as for
        `Rank`."""
        self._context, schedule = context, context.schedule
        model, device, dtype = context.model, context.device, context.dtype
        self.board, self.meter = context.board, context.meter
        self.traffic = Traffic(device)
        self._host, self._layouts, self._updates = context.host, context.layouts, updates
        self._groups, self._handed = Groups(schedule, group), group is not None
        mine = context.actions
        self._numbers = {a.name: n for n, a in enumerate(schedule.actions) if a.kind is Kind.NORM}
        self._links = {action.name: links_of(action, schedule) for action in mine}
        spans = [action.span for action in mine if action.samples] or [(0, 0)]
        span = min(spans)[0], max(end for _, end in spans)
        boundaries = {
            unit: Boundary(model.boundary(unit, context.spec.model.seq), dtype)
            for unit in range(1, model.num_units)
        }
        deferred = DeferredFrees(schedule, self.board.position, device)
        self._activations = ActivationStore(boundaries, *span, device, deferred)
        self.transport: Transport = PeerTransport(
            schedule, self.board, inbox, self._activations, self.traffic,
            folder=folder, device=device, dtype=dtype,
        )  # fmt: skip
        self._memory = PackMemory(context)
        self._residents = Residents(self._memory, self._layouts, mine, updates, self.board)
        self._passes = RankPasses(
            context, links=self._links, span=span, memory=self._memory,
            activations=self._activations, boundaries=boundaries,
            complete=self._residents.passed,
        )  # fmt: skip
        self.statistics = self._passes.statistics
        self._work: dict[Kind, Callable[[Action, Links, int], None]] = {
            Kind.FORWARD: self._passes.forward,
            Kind.RECOMPUTE: self._passes.forward,
            Kind.BACKWARD: self._passes.backward,
            Kind.INPUT_GRAD: self._passes.input_half,
            Kind.WEIGHT_GRAD: self._passes.weight_half,
            Kind.LOAD: self._load,
            Kind.STASH: self._stash,
            Kind.FETCH: self._fetch,
            **dict.fromkeys(SENDS, self._send),
            **dict.fromkeys(RECEIVES, self._receive),
            Kind.REDUCE: self._reduce,
            Kind.GRAD_OUT: self._gradients_out,
            Kind.SUM_OUT: self._sum,
            Kind.SUM_IN: self._sum,
            Kind.NORM: self._norm,
            Kind.UPDATE: self._update,
            Kind.SETTLE: lambda action, links, step: updates.settle(action.unit, step),
        }
        assert self._work.keys() == ON_RANKS

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """On which passes were recorded, if some were: the compute lane is to run there."""
        return self._passes.stream

    def perform(self, action: Action, step: int) -> None:
        """Do one action of one step."""
        self._activations.begin(action, step)
        self._work[action.kind](action, self._links[action.name], step)

    @property
    def settled(self) -> dict[str, int]:
        """Counts of this rank's updates before the norm was known: how many stood, and so on."""
        return self._updates.settled

    def bring(self) -> None:
        """Layers that stay come from the host, before the first step."""
        self._residents.bring()

    def give_back(self, step: int) -> None:
        """Write them to the host, where checkpoints are made, after a step and with all lanes done;
        raises Diverged."""
        self._updates.check(step)
        self._residents.give_back()

    def end_step(self, step: int) -> None:
        """Put this rank's part of the loss on the board, and get the next step's samples, unless a
        user's loop has yet to hand them over."""
        loss = self._passes.end_step(step)
        self.board.end_step(step, loss or 0.0, worked=loss is not None)
        self._updates.check(step)
        if loss is not None and not self._handed:
            self._passes.prepare(step + 1)

    def forget(self) -> None:
        """Let go of what a step that failed has left; every lane must have ended."""
        self._passes.forget()
        self._activations.clear()
        self._updates.forget()

    def close(self) -> None:
        """Let go of all memory; every lane must have ended."""
        self._passes.close()
        self._activations.clear()
        self._memory.clear()
        self.transport.close()

    def _norm(self, action: Action, links: Links, step: int) -> None:
        """The global norm, taken by the first replica for all."""
        if self.board.replica == 0:
            self._updates.norm(step)
        else:
            self.board.wait(self._numbers[action.name], step, replica=0)

    def _update(self, action: Action, links: Links, step: int) -> None:
        if action.turn == GUESS:
            self._updates.guess(action.unit, step)
            return
        if action.unit in self._residents:
            self._residents.update(action.unit, step)
        else:
            self._updates.update(action.unit, step)

    # -- transfers ------------------------------------------------------------------------------

    def _load(self, action: Action, links: Links, step: int) -> None:
        layout = self._layouts[action.unit]
        place = self._memory.place(links.weights, layout.numel)
        own = self._host.view(name.host_weights(action.unit), self._context.dtype)
        place[: layout.flat.numel].copy_(own, non_blocking=True)
        for loan in layout.loans:
            lent = self._host.view(name.host_weights(loan.owner), self._context.dtype)
            place[loan.place].copy_(lent[loan.lent], non_blocking=True)
        self.traffic.count("load", layout.numel * self._context.dtype.itemsize, action.kind)

    def _send(self, action: Action, links: Links, step: int) -> None:
        if action.microbatch is None:
            gradients, borrower = action.kind is Kind.SEND_GRAD, self.transport.borrower(action)
            source = self._residents.lent(action.unit, borrower, gradients=gradients)
        else:
            source = self._activations.read(links.source, action.span)
        self.transport.send(action, tuple(source), step)

    def _receive(self, action: Action, links: Links, step: int) -> None:
        came = self.transport.receive(action, step)
        if action.microbatch is None:
            gradients, borrower = action.kind is Kind.RECV_GRAD, self.transport.borrower(action)
            self._residents.receive(action.unit, borrower, came[0], gradients=gradients)
        else:
            self._activations[links.target] = came

    def _gradients_out(self, action: Action, links: Links, step: int) -> None:
        layout = self._layouts[action.unit]
        target = self._updates.gradients(action.unit, self.board.position)
        number = self._updates.part_number(action.unit)
        source = self._memory.share(links.gradients, layout, number, len(target))
        self._updates.see(action.unit, source)
        target[: len(source)].copy_(source, non_blocking=True)
        self.traffic.count("store", target.nbytes, action.kind)

    def _sum(self, action: Action, links: Links, step: int) -> None:
        """A sum of gradients that lacks micro-batches, away from the device or back to it."""
        here = self._memory.place(links.gradients, self._layouts[action.unit].numel)
        there, out = self._host.view(links.host, self._context.dtype), action.kind is Kind.SUM_OUT
        ends = (there, here) if out else (here, there)
        self.traffic.copy("store" if out else "load", *ends, action.kind)

    def _stash(self, action: Action, links: Links, step: int) -> None:
        source = self._activations.read(links.source, action.span)
        copy_into(self._stashed(action, links), source)
        self.traffic.count("store", bytes_of(source), action.kind)
        self._activations.drop(action, step)

    def _fetch(self, action: Action, links: Links, step: int) -> None:
        source = self._stashed(action, links)
        with self.meter:
            here = tuple(t.to(self._context.device, non_blocking=True, copy=True) for t in source)
        self._activations.lay(links.target, here, action)
        self.traffic.count("load", bytes_of(source), action.kind)

    def _stashed(self, action: Action, links: Links) -> Bundle:
        batch = self._context.spec.batch
        return self._activations.stashed(action, links.host, self._host, batch)

    def _reduce(self, action: Action, links: Links, step: int) -> None:
        gradients = self._memory.place(links.gradients, self._layouts[action.unit].numel)
        first = self._groups.add_up(gradients, action)
        self.traffic.between(gradients.nbytes, action.kind)
        self._residents.passed(action, counts=first == self.board.rank)
