"""The sheet on which a step with swapping is written: memory of the host, transfers, updates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from baselines.swapping.division import Division, Visits
from baselines.swapping.places import Visit
from workbench.profile.cuda_graphs import replay_bytes
from workbench.profile.profile import UnitCost
from workbench.profile.unit_costs import Sizes, borrowed_bytes, host_weights
from workbench.schedule import buffers as name
from workbench.schedule.action import D2H, H2D, HOST, NET_IN, NET_OUT, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.builder import ScheduleBuilder
from workbench.schedule.build.division import DP, Samples, share_bytes
from workbench.schedule.build.inbox import INBOX, held
from workbench.schedule.schedule import DEVICE, HOST_TIER

F, B = Kind.FORWARD, Kind.BACKWARD


class Sheet(ScheduleBuilder):
    """What all ranks write on."""

    def __init__(self, division: Division, sizes: Sizes, *, replay: bool = False) -> None:
        super().__init__()
        self.division, self.sizes, self.replay = division, sizes, replay
        self.gone: dict[int, list[tuple[int, str]]] = defaultdict(list)
        """Unit -> (rank, what brings its complete gradients to the host)."""

    def lay_host(self) -> None:
        """One copy of weights and states, and a place for the complete gradients."""
        division, sizes = self.division, self.sizes
        for unit in range(division.num_units):
            visit = sizes.visit_bytes(unit)
            for text, nbytes in (
                (name.host_weights(unit), sizes.weight_bytes(unit)),
                (name.host_states(unit), sizes.state_bytes(unit)),
            ):
                self.buffer(text, HOST_TIER, nbytes, permanent=True)
            for rank in range(division.ranks if division.mode == DP else 1):
                self.buffer(
                    self.host_gradients(rank, unit), HOST_TIER, self.share_bytes(visit),
                    permanent=True,
                )  # fmt: skip

    def share_bytes(self, nbytes: int) -> int:
        """A rank's share of some gradients: all of them in PP mode."""
        return share_bytes(nbytes, self.division.ranks) if self.division.mode == DP else nbytes

    def host_gradients(self, rank: int, unit: int) -> str:
        """Where a rank's complete gradients of a layer go."""
        return name.on_rank(rank if self.division.mode == DP else 0, name.host_gradients(unit))

    def updaters(self, unit: int) -> list[int]:
        """The ranks that update a layer."""
        stages = self.division.stages
        return [rank for rank, stage in enumerate(stages) if unit in stage]

    def updated(self, unit: int) -> list[str]:
        """What makes a layer's weights those of this step, borrowed ones too."""
        return [
            act(Kind.UPDATE, owner, rank=rank, step=-1)
            for owner in sorted({unit, self.sizes.owner(unit)})
            for rank in self.updaters(owner)
        ]

    def update(self, clipped: bool) -> None:
        """Of each layer on the host: as its gradients arrive, or after the norm of all of them in
        the order of the next step's loads."""
        units = range(self.division.num_units)
        norm = None
        if clipped:
            gone = [text for unit in units for _, text in self.gone[unit]]
            added = borrowed_bytes(self.sizes, units)
            norm = self.add(Kind.NORM, 0, HOST, after=gone, nbytes=added)
        for unit in units if clipped else reversed(units):
            lent = {u for u in units if self.sizes.owner(u) == unit and u != unit}
            for rank in self.updaters(unit):
                after = [text for other, text in self.gone[unit] if other == rank]
                after += [text for borrower in lent for _, text in self.gone[borrower]]
                self.add(
                    Kind.UPDATE, unit, HOST, rank=rank, after=[norm] if clipped else after,
                    uses=[
                        name.host_weights(unit), name.host_states(unit),
                        self.host_gradients(rank, unit),
                    ],
                )  # fmt: skip


class RankSheet:
    """Names, sizes and transfers of one rank in a step."""

    def __init__(self, sheet: Sheet, rank: int) -> None:
        self.sheet, self.division, self.sizes, self.rank = sheet, sheet.division, sheet.sizes, rank
        self.passes = self.division.passes(rank)
        self.micros = self.division.micros(rank)
        self.stage = self.division.stages[rank]
        self.visits = Visits(self.division, rank)
        places = self.division.places(rank)
        nbytes = [self.sizes.visit_bytes(u) for u in range(self.division.num_units)]
        self.offsets = places.offsets(nbytes)
        self.queues: dict[str, list[str]] = defaultdict(list)
        """What frees each thing of a kind of which a device holds a few (`held`)."""
        self.received: list[int] = []
        """Receiving actions, by their places among all actions."""

    # -- what comes and goes --------------------------------------------------------------------

    def _load(self, number: int, unit: int) -> str:
        """Have weights come, where they are not there yet; returns what brings them."""
        visit = self.visits.weights((number, unit))
        if visit.first == (number, unit):
            self.add(
                Kind.LOAD, unit, H2D, turn=visit.turn, nbytes=self.sizes.visit_bytes(unit),
                after=[*self.sheet.updated(unit), *self._ended(visit.behind, self._last_use)],
                takes=[self._place(name.weights(unit, visit.turn), unit, "weights")],
                uses=host_weights(self.sizes, unit),
            )  # fmt: skip
        return self.act(Kind.LOAD, unit, turn=visit.turn)

    def _bring_sums(self, number: int, unit: int) -> list[str]:
        """Have the sum so far of a unit's gradients come back, where it went."""
        visit = self.visits.gradients((number, unit))
        if visit.first != (number, unit) or not visit.turn:
            return []
        went = self.act(Kind.SUM_OUT, unit, turn=visit.turn - 1)
        return [self.add(
            Kind.SUM_IN, unit, H2D, turn=visit.turn, nbytes=self.sizes.visit_bytes(unit),
            after=[went, *self._ended(visit.behind, self._gradients_gone)],
            takes=[self._place(name.gradients(unit, visit.turn), unit, "gradients")],
            uses=[self._sums(unit)],
        )]  # fmt: skip

    def _gradients_out(self, unit: int, visit: Visit, after: str) -> None:
        """Gradients to the host: the sum so far, or when it is complete, in DP mode a share."""
        nbytes = self.sizes.visit_bytes(unit)
        label = self.label(name.gradients(unit, visit.turn))
        if not self.visits.complete(visit):
            self.add(
                Kind.SUM_OUT, unit, D2H, turn=visit.turn, after=[after], nbytes=nbytes,
                uses=[self._sums(unit)], frees=[label],
            )  # fmt: skip
            return
        if self.division.mode == DP and self.division.ranks > 1:
            after = self.add(Kind.REDUCE, unit, NET_OUT, after=[after], nbytes=nbytes, uses=[label])
            nbytes = self.sheet.share_bytes(nbytes)
        gone = self.add(
            Kind.GRAD_OUT, unit, D2H, after=[after], nbytes=nbytes,
            uses=[self.sheet.host_gradients(self.rank, unit)], frees=[label],
        )  # fmt: skip
        self.sheet.gone[unit].append((self.rank, gone))

    def _ended(self, behind: tuple[int, Visit] | None, ends: Callable[[Visit], str]) -> list[str]:
        """What ends the visit that had a place before."""
        if behind is None:
            return []
        step, visit = behind
        return [ends(visit) + (f"@{step}" if step else "")]

    def _last_use(self, visit: Visit) -> str:
        number, unit = visit.last
        each = self.passes[number]
        return self.act(F if each.forward else B, unit, each.micro)

    def _gradients_gone(self, visit: Visit) -> str:
        if self.visits.complete(visit):
            return self.act(Kind.GRAD_OUT, visit.unit)
        return self.act(Kind.SUM_OUT, visit.unit, turn=visit.turn)

    def _receive(
        self, kind: Kind, unit: int, micro: int, span: Samples, text: str, ends: str
    ) -> str:
        """Have a message come into the inbox, where `ends` will free its place."""
        nbytes = self._input_bytes(unit, span)
        self.received.append(len(self.sheet.actions))
        return self.add(
            kind, unit, NET_IN, micro, nbytes=nbytes, samples=span,
            after=self._behind(NET_IN, ends), takes=[self.lay(text, nbytes, slot=INBOX)],
        )  # fmt: skip

    def _behind(self, queue: str, ends: str) -> list[str]:
        """What must be gone before one thing more comes; notes what will end it."""
        self.queues[queue].append(ends)
        return self.queues[queue][-1 - held(queue) : -held(queue)]

    def _sent(self, queue: str, sends: str) -> list[str]:
        """The same of a message, which in the next step lies where it lay in this one."""
        return [*self._behind(queue, sends), f"{sends}@-1"]

    # -- names and sizes ------------------------------------------------------------------------

    def act(self, kind: Kind, unit: int, micro: int | None = None, **kw: int) -> str:
        """The name of an action of this rank."""
        return act(kind, unit, micro, rank=self.rank, **kw)

    def add(self, kind: Kind, unit: int, *what: Any, **kw: Any) -> str:
        """Write an action of this rank."""
        return self.sheet.add(kind, unit, *what, rank=self.rank, **kw)

    def label(self, text: str) -> str:
        """The name of a buffer of this rank."""
        return name.on_rank(self.rank, text)

    def lay(self, text: str, nbytes: int, **kw: Any) -> str:
        """Enter a buffer of its device."""
        return self.sheet.buffer(self.label(text), DEVICE, nbytes, rank=self.rank, **kw)

    def _weights(self, number: int, unit: int) -> str:
        return self.label(name.weights(unit, self.visits.weights((number, unit)).turn))

    def _place(self, text: str, unit: int, slot: str) -> str:
        """A buffer for a visit, where all visits of the unit lie."""
        nbytes = self.sizes.visit_bytes(unit)
        return self.lay(text, nbytes, slot=slot, offset=self.offsets[unit])

    def _on_host(self, text: str, nbytes: int) -> str:
        label = self.label(text)
        if label not in self.sheet.buffers:
            self.sheet.buffer(label, HOST_TIER, nbytes, permanent=True)
        return label

    def _stash(self, unit: int) -> str:
        return self._on_host(
            name.host_inputs(unit), self._input_bytes(unit, self.division.share(self.rank))
        )

    def _sums(self, unit: int) -> str:
        return self._on_host(name.host_sums(unit), self.sizes.visit_bytes(unit))

    def replayed(self, unit: int) -> bool:
        """Whether a unit's passes are recordings, which work in memory of their own."""
        return self.sheet.replay and 0 < unit < self.division.head

    def _scratch(self, owner: str, unit: int, nbytes: int) -> list[str]:
        """What a pass needs for itself."""
        if self.replayed(unit):
            return []
        return [self.sheet.scratch(owner, nbytes, rank=self.rank)]

    def _lay_replays(self) -> None:
        """The memory of recordings: each block is a chain of its own."""
        blocks = [unit for unit in self.stage if self.replayed(unit)]
        costs = [self._cost(unit, self.micros[0]) for unit in blocks]
        gradients = map(self.sizes.visit_bytes, blocks)
        chains = [[pair] for pair in zip(costs, gradients, strict=True)]
        if nbytes := replay_bytes(costs, chains):
            self.lay(name.REPLAYS, nbytes, permanent=True)

    def _cost(self, unit: int, span: Samples) -> UnitCost:
        return self.sizes.cost(unit, span[1] - span[0])

    def _input_bytes(self, unit: int, span: Samples) -> int:
        return self.sizes.input_bytes(unit, span[1] - span[0])
