"""The draft of a Harmony step: actions and buffers of all ranks, and where each thing lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.core.division import DP, Samples, share_bytes
from workbench.methods.harmony.packs import Packs, Task
from workbench.profile.profile import UnitCost
from workbench.profile.unit_costs import Sizes, host_weights
from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.builder import ScheduleBuilder
from workbench.schedule.build.ring import aligned, ring
from workbench.schedule.schedule import DEVICE, HOST_TIER, Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Rings:
    """Device memory of one rank for what comes and goes, in bytes."""

    weights: int
    gradients: int


@dataclass(kw_only=True, eq=False)
class Visit:
    """A layer's weights, or its gradients, on a device, up to their last use."""

    rank: int
    unit: int
    turn: int
    first: Task | None
    """The task that brings them; None where they are resident."""
    last: Task | None
    """The last task that uses the weights: a later one where they are pinned."""
    offset: int = 0
    behind: list[tuple[int, Visit]] = field(default_factory=list)
    """(step, what must be gone before)."""


class Draft(ScheduleBuilder):
    """Collects the actions and buffers of one step of all ranks."""

    def __init__(self, packs: Packs, sizes: Sizes, *, guesses: bool = False) -> None:
        super().__init__()
        self.packs, self.sizes, self._guesses = packs, sizes, guesses
        owners = {unit: sizes.owner(unit) for unit in range(packs.num_units)}
        self._lenders = {owner for unit, owner in owners.items() if owner != unit}
        self._check_together(owners)
        self._borrowers: dict[int, list[int]] = defaultdict(list)
        for unit in sorted(packs.resident):
            if owners[unit] != unit:
                self._borrowers[owners[unit]].append(unit)
        self.head = packs.num_units - 1
        self.stashed = {*packs.stashed} - {0}
        """Units whose inputs wait on the host for their backward visit."""
        self._weights: dict[tuple[Task, int], Visit] = {}
        self._gradients: dict[tuple[Task, int], Visit] = {}
        self.stashes: dict[int, list[Action]] = defaultdict(list)
        """Unit -> what brings its inputs to the host."""

    def _check_together(self, owners: dict[int, int]) -> None:
        """Raise ValueError where a layer stays without one that it shares weights with."""
        ranks = {u: r for r in range(self.packs.ranks) for u in self.packs.backward_units(r)}
        stay = self.packs.resident
        for unit, owner in owners.items():
            apart = ranks[unit] != ranks[owner]
            if (unit in stay) != (owner in stay) or (unit in stay and apart):
                raise ValueError(
                    f"units {owner} and {unit} share weights; either stay together on one rank"
                )

    # -- memory that lasts --------------------------------------------------------------------

    def lay_out(self, rings: Sequence[Rings]) -> None:
        """Everything that is there all the time, and the places of what comes and goes in the rings
        of each rank."""
        packs, sizes = self.packs, self.sizes
        for rank in range(packs.ranks):
            samples = self.samples_of(rank)
            self.lay(rank, "tokens", DEVICE, sizes.token_bytes(samples), permanent=True)
            if sizes.library_bytes:
                self.lay(rank, "libraries", DEVICE, sizes.library_bytes, permanent=True)
            self._place_weights(rank, rings[rank].weights)
            self._place_gradients(rank, rings[rank].gradients)
        for unit in range(packs.num_units):
            weight, state = sizes.weight_bytes(unit), sizes.state_bytes(unit)
            visit = sizes.visit_bytes(unit)
            self.lay(0, name.host_weights(unit), HOST_TIER, weight, permanent=True)
            self.lay(0, name.host_states(unit), HOST_TIER, state, permanent=True)
            if unit in packs.resident:
                continue
            for rank in range(packs.ranks if packs.mode == DP else 1):
                share = self.share_bytes(visit) if packs.mode == DP else visit
                label = self.label(rank, name.host_gradients(unit))
                self.buffer(label, HOST_TIER, share, permanent=True)

    def share_bytes(self, nbytes: int) -> int:
        """A rank's share of some gradients; all of them where nobody shares."""
        return share_bytes(nbytes, self.packs.ranks) if self.packs.ranks > 1 else nbytes

    def samples_of(self, rank: int) -> int:
        """How many samples of a step pass a rank."""
        first, end = self.packs.share(rank if self.packs.mode == DP else None)
        return end - first

    def _place_weights(self, rank: int, capacity: int) -> None:
        tasks = self.packs.tasks_of(rank)
        groups: list[list[Visit]] = []
        for before, task in zip([None, *tasks], tasks, strict=False):
            pins = self._pins(before, task, capacity)
            if not pins:
                groups.append([])
            for unit in task.units:
                if unit in self.packs.resident:
                    visit = self._stays(rank, unit)
                elif unit in pins:
                    visit = self._weights[before, unit]
                    visit.last = task
                else:
                    turn = int(not task.forward)
                    visit = Visit(rank=rank, unit=unit, turn=turn, first=task, last=task)
                    groups[-1].append(visit)
                self._weights[task, unit] = visit
        self._put(groups, capacity)

    def _stays(self, rank: int, unit: int) -> Visit:
        """A layer that is never brought, with its states."""
        label, states = name.weights(unit), name.states(unit)
        self.lay(rank, label, DEVICE, self.sizes.visit_bytes(unit), permanent=True)
        self.lay(rank, states, DEVICE, self.sizes.state_bytes(unit), permanent=True)
        return Visit(rank=rank, unit=unit, turn=0, first=None, last=None)

    def _pins(self, before: Task | None, task: Task, capacity: int) -> set[int]:
        """Layers that stay from a rank's last forward task to its first backward one, where both
        packs fit together."""
        if before is None or not before.forward or task.forward:
            return set()
        both = ({*before.units} | {*task.units}) - self.packs.resident
        needed = sum(aligned(self.sizes.visit_bytes(unit)) for unit in both)
        return {*before.units} & {*task.units} & both if needed <= capacity else set()

    def _place_gradients(self, rank: int, capacity: int) -> None:
        groups: list[list[Visit]] = []
        behind = capacity
        for task in self.packs.tasks_of(rank):
            if task.forward:
                continue
            groups.append([])
            for unit in reversed(task.units):
                visit = Visit(rank=rank, unit=unit, turn=0, first=task, last=task)
                self._gradients[task, unit] = visit
                if unit in self.packs.resident:  # behind the ring, until the update
                    visit.offset = behind
                    behind += aligned(self.sizes.visit_bytes(unit))
                else:
                    groups[-1].append(visit)
        self._put(groups, capacity)

    def _put(self, groups: list[list[Visit]], capacity: int) -> None:
        visits = [visit for group in groups for visit in group]
        sizes = [[self.sizes.visit_bytes(visit.unit) for visit in group] for group in groups]
        for visit, place in zip(visits, ring(sizes, capacity), strict=True):
            visit.offset = place.offset
            visit.behind = [(step, visits[other]) for step, other in place.behind]

    # -- writing ------------------------------------------------------------------------------

    def cost(self, unit: int, span: Samples) -> UnitCost:
        """Costs of a pass over these samples."""
        return self.sizes.cost(unit, span[1] - span[0])

    def input_bytes(self, unit: int, span: Samples) -> int:
        """Bytes of a unit's input for these samples."""
        return self.sizes.input_bytes(unit, span[1] - span[0])

    def label(self, rank: int, text: str) -> str:
        """The name of a buffer of a rank."""
        return name.on_rank(rank, text)

    def lay(self, rank: int, text: str, tier: str, nbytes: int, **kw: Any) -> str:
        """Enter a buffer of a rank; returns its name."""
        return self.buffer(self.label(rank, text), tier, nbytes, rank=rank, **kw)

    def add(self, kind: Kind, unit: int, *what: Any, **kw: Any) -> str:
        """Add an action as `ScheduleBuilder.add` does; a stash to the host is noted for the action
        that fetches it."""
        written = super().add(kind, unit, *what, **kw)
        if kind is Kind.STASH:
            self.stashes[unit].append(self.actions[-1])
        return written

    def schedule(self, budgets: dict[str, int] | None) -> Schedule:
        """The schedule that was written."""
        packs = self.packs
        return Schedule(
            name=f"harmony-{packs.mode}",
            num_units=packs.num_units,
            num_microbatches=1 + max(action.microbatch or 0 for action in self.actions),
            num_ranks=packs.ranks,
            actions=tuple(self.actions),
            buffers=self.buffers,
            budgets=budgets or {},
            settings={
                "mode": packs.mode,
                "forward_size": packs.forward_size,
                "backward_size": packs.backward_size,
                "forward_packs": " ".join(str(len(pack)) for pack in packs.forward),
                "backward_packs": " ".join(str(len(pack)) for pack in packs.backward),
                "mirrored": packs.mirrored,
                "resident": len(packs.resident),
            },
        )

    # -- weights and gradients ----------------------------------------------------------------

    def weights(self, task: Task, unit: int) -> Visit:
        """A layer's weights where a task uses them."""
        return self._weights[task, unit]

    def weights_label(self, task: Task, unit: int) -> str:
        """Their buffer."""
        visit = self.weights(task, unit)
        return self.label(visit.rank, name.weights(unit, visit.turn))

    def there(self, task: Task, unit: int) -> str:
        """The action that brings them, or that updates them in their place."""
        visit = self.weights(task, unit)
        if visit.first is None:
            return act(Kind.UPDATE, unit, rank=visit.rank, step=-1)
        return act(Kind.LOAD, unit, turn=visit.turn, rank=visit.rank)

    def updated(self, unit: int) -> list[str]:
        """Actions that make a layer's weights those of this step, borrowed ones too."""
        units = {unit, self.sizes.owner(unit)}
        if self.packs.mode == DP:
            made = [(owner, rank) for owner in units for rank in range(self.packs.ranks)]
        else:
            made = [
                (owner, task.rank)
                for task in self.packs.tasks
                if not task.forward
                for owner in units & {*task.units}
            ]
        return [
            act(Kind.SETTLE if self.guesses(owner) else Kind.UPDATE, owner, rank=rank, step=-1)
            for owner, rank in sorted(made)
        ]

    def guesses(self, unit: int) -> bool:
        """Whether a layer is updated before the norm is known: not on a device, where that takes no
        time, nor while others have gradients to add."""
        return self._guesses and unit not in self.packs.resident and unit not in self._lenders

    def borrowers(self, unit: int) -> list[int]:
        """Units that have a layer's weights, too, and stay with it."""
        return self._borrowers.get(unit, [])

    def gradients(self, task: Task, unit: int) -> Visit:
        """A layer's gradients in its backward task."""
        return self._gradients[task, unit]

    def gradients_label(self, task: Task, unit: int) -> str:
        """Their buffer."""
        return self.label(task.rank, name.gradients(unit))

    def host_weights(self, unit: int) -> list[str]:
        """Where a layer's weights come from, borrowed ones too."""
        return host_weights(self.sizes, unit)

    def host_gradients(self, rank: int, unit: int) -> str:
        """Where a rank's gradients of a layer go on the host."""
        return self.label(rank if self.packs.mode == DP else 0, name.host_gradients(unit))

    def last_use(self, step: int, visit: Visit) -> str:
        """The action that frees a layer's weights."""
        kind = Kind.FORWARD if visit.last.forward else Kind.BACKWARD
        micro = len(visit.last.micros) - 1
        return act(kind, visit.unit, micro, rank=visit.rank, step=step)
