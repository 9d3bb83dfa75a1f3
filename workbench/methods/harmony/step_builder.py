"""Builder of a Harmony step: names, sizes and the memory that lasts, of all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.core.division import DP, Samples, share_bytes
from workbench.methods.harmony.packs import Packs, Task
from workbench.methods.harmony.visits import Rings, Visits
from workbench.profile.cuda_graphs import replay_bytes
from workbench.profile.profile import UnitCost
from workbench.profile.unit_costs import Sizes
from workbench.schedule import buffers as name
from workbench.schedule.action import Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.builder import ScheduleBuilder
from workbench.schedule.schedule import DEVICE, HOST_TIER


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a task."""

    task: Task
    number: int
    span: Samples

    @property
    def rank(self) -> int:
        """The rank that does the task."""
        return self.task.rank

    @property
    def first(self) -> bool:
        """Whether the task begins with it."""
        return self.number == 0

    @property
    def last(self) -> bool:
        """Whether the task ends with it."""
        return self.number == len(self.task.micros) - 1

    def act(self, kind: Kind, unit: int, *, step: int = 0) -> str:
        """The name of an action on this micro-batch, on the rank of the task."""
        return act(kind, unit, self.number, rank=self.task.rank, step=step)


class PackStepBuilder(ScheduleBuilder):
    """Collects the actions and buffers of one step of all ranks."""

    def __init__(
        self,
        packs: Packs,
        sizes: Sizes,
        rings: Sequence[Rings],
        *,
        guesses: bool = False,
        replay: bool = False,
    ) -> None:
        """Raises ValueError where a pack is larger than its ring, and where a layer stays without
        one that it shares weights with."""
        super().__init__()
        self.packs, self.sizes, self._guesses, self._replay = packs, sizes, guesses, replay
        self.head = packs.num_units - 1
        self.stashed = {*packs.stashed} - {0}
        """Units whose inputs wait on the host for their backward visit."""
        self.visits = Visits(packs, sizes, rings)
        owners = {unit: sizes.owner(unit) for unit in range(packs.num_units)}
        self._lenders = {owner for unit, owner in owners.items() if owner != unit}
        self.borrowers: dict[int, list[int]] = defaultdict(list)
        """Unit -> units that have its weights, too, and stay with it."""
        for unit in sorted(packs.resident):
            if owners[unit] != unit:
                self.borrowers[owners[unit]].append(unit)
        self._check_together(owners)
        self._permanent()

    def _check_together(self, owners: dict[int, int]) -> None:
        ranks = {u: r for r in range(self.packs.ranks) for u in self.packs.backward_units(r)}
        stay = self.packs.resident
        for unit, owner in owners.items():
            apart = ranks[unit] != ranks[owner]
            if (unit in stay) != (owner in stay) or (unit in stay and apart):
                raise ValueError(
                    f"units {owner} and {unit} share weights; either stay together on one rank"
                )

    # -- memory that lasts --------------------------------------------------------------------

    def _permanent(self) -> None:
        """Tokens, recordings and resident layers on devices; weights, optimizer states and
        gradients on the host."""
        packs, sizes = self.packs, self.sizes
        for rank in range(packs.ranks):
            self.lay(rank, "tokens", sizes.token_bytes(self.samples_of(rank)), permanent=True)
            if sizes.library_bytes:
                self.lay(rank, "libraries", sizes.library_bytes, permanent=True)
            if nbytes := self._replay_bytes(rank):
                self.lay(rank, name.REPLAYS, nbytes, permanent=True)
            for unit in packs.resident.intersection(packs.backward_units(rank)):
                self.lay(rank, name.weights(unit), sizes.visit_bytes(unit), permanent=True)
                self.lay(rank, name.states(unit), sizes.state_bytes(unit), permanent=True)
        for unit in range(packs.num_units):
            self.lay_host(0, name.host_weights(unit), sizes.weight_bytes(unit))
            self.lay_host(0, name.host_states(unit), sizes.state_bytes(unit))
            if unit not in packs.resident:
                nbytes = self.share_bytes(unit)
                for rank in range(packs.ranks if packs.mode == DP else 1):
                    self.lay_host(rank, name.host_gradients(unit), nbytes)

    def _replay_bytes(self, rank: int) -> int:
        """Bytes in which the recordings of a rank work: of its forward passes, and of its chains of
        a backward pack's blocks."""
        forwards, chains = [], []
        for task in self.packs.tasks_of(rank):
            blocks = [unit for unit in task.units if self.replayed(unit)]
            costs = [self.cost(unit, task.micros[0]) for unit in blocks]
            if task.forward:
                forwards += costs
            elif blocks:
                gradients = map(self.sizes.visit_bytes, blocks)
                chains.append([*zip(costs, gradients, strict=True)])
        return replay_bytes(forwards, chains)

    # -- sizes --------------------------------------------------------------------------------

    def share_bytes(self, unit: int) -> int:
        """Bytes of a unit's gradients that a rank takes to the host: in DP mode a share."""
        nbytes, ranks = self.sizes.visit_bytes(unit), self.packs.ranks
        return share_bytes(nbytes, ranks) if self.packs.mode == DP and ranks > 1 else nbytes

    def samples_of(self, rank: int) -> int:
        """How many samples of a step pass a rank."""
        first, end = self.packs.share(rank if self.packs.mode == DP else None)
        return end - first

    def cost(self, unit: int, span: Samples) -> UnitCost:
        """Costs of a pass over these samples."""
        return self.sizes.cost(unit, span[1] - span[0])

    def input_bytes(self, unit: int, span: Samples) -> int:
        """Bytes of a unit's input for these samples."""
        return self.sizes.input_bytes(unit, span[1] - span[0])

    # -- names --------------------------------------------------------------------------------

    def label(self, rank: int, text: str) -> str:
        """The name of a buffer of a rank."""
        return name.on_rank(rank, text)

    def lay(self, rank: int, text: str, nbytes: int, **kw: Any) -> str:
        """Enter a buffer of a rank's device; returns its name."""
        return self.buffer(self.label(rank, text), DEVICE, nbytes, rank=rank, **kw)

    def lay_host(self, rank: int, text: str, nbytes: int) -> str:
        """Enter a buffer of the host; returns its name."""
        return self.buffer(self.label(rank, text), HOST_TIER, nbytes, permanent=True)

    def run(self, kind: Kind, unit: int, lane: str, micro: MicroBatch, **lists: Any) -> str:
        """Enter an action on a micro-batch; returns its name."""
        rank, span = micro.rank, micro.span
        return self.add(kind, unit, lane, micro.number, rank=rank, samples=span, **lists)

    def weights(self, task: Task, unit: int) -> str:
        """The buffer of a layer's weights where a task uses them."""
        visit = self.visits.weights[task, unit]
        return self.label(visit.rank, name.weights(unit, visit.turn))

    def frees_weights(self, micro: MicroBatch, unit: int) -> bool:
        """Whether a layer's weights have their last use in a pass."""
        return micro.last and self.visits.weights[micro.task, unit].last is micro.task

    def host_gradients(self, rank: int, unit: int) -> str:
        """The buffer of a rank's gradients of a layer on the host."""
        return self.label(rank if self.packs.mode == DP else 0, name.host_gradients(unit))

    def replayed(self, unit: int) -> bool:
        """Whether a unit's passes are recordings, which work in memory of their own."""
        return self._replay and 0 < unit < self.head

    def guesses(self, unit: int) -> bool:
        """Whether a layer is updated before the norm is known: not on a device, where that takes no
        time, nor while others have gradients to add."""
        return self._guesses and unit not in self.packs.resident and unit not in self._lenders
