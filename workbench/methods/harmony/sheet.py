"""The sheet a Harmony step is written on: what lies where, and how it gets from task to task.

`program.py` says what a task does; this says where its inputs come from and its outputs go, which
depends on the rank of the task before and after, and on how these divide the minibatch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from workbench.methods.harmony.packs import DP, Packs, Samples, Task
from workbench.methods.harmony.ring import aligned, ring
from workbench.profile.profile import UnitCost
from workbench.schedule import buffers as name
from workbench.schedule.action import H2D, NET_IN, Action, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import DEVICE, HOST_TIER, Buffer, Schedule

AHEAD = 2
"""Inputs of so many micro-batches are on a device: the one in work and the next."""
FETCHES = H2D + ".1"
"""Stashed inputs come beside the weights of the next pack, not behind them."""
SHARE_ALIGNMENT = 64
"""Bytes that a share of gradients is a multiple of: whole elements of any type."""
GRADIENT = 1
"""Turn of messages that carry gradients."""


class Sizes(Protocol):
    """What the layers need, for any number of samples."""

    library_bytes: int

    def cost(self, unit: int, samples: int) -> UnitCost: ...

    def weight_bytes(self, unit: int) -> int:
        """Of the weights the unit owns."""

    def visit_bytes(self, unit: int) -> int:
        """The same with those it borrows of another unit (a tied embedding), as they come to a
        device; of its gradients, too."""

    def owner(self, unit: int) -> int:
        """The unit whose weights it borrows; itself where it borrows none."""

    def state_bytes(self, unit: int) -> int: ...

    def token_bytes(self, samples: int) -> int: ...


@dataclass(kw_only=True, eq=False)
class Visit:
    """A layer's weights, or its gradients, on a device, up to their last use."""

    rank: int
    unit: int
    turn: int
    first: Task
    """The task that brings them."""
    last: Task
    """The one that uses them last: a later one where they are pinned."""
    offset: int = 0
    behind: list[tuple[int, Visit]] = field(default_factory=list)
    """(step, what must be gone before)."""


class Sheet:
    """Collects the actions and buffers of one step of all ranks."""

    def __init__(self, packs: Packs, sizes: Sizes) -> None:
        self.packs, self.sizes = packs, sizes
        self.head = packs.num_units - 1
        self.stashed = {pack.start for pack in packs.backward[:-1]} - {0}
        """Units whose inputs wait on the host for their backward visit."""
        self.actions: list[Action] = []
        self.buffers: dict[str, Buffer] = {}
        self._next: dict[Task, Task] = {}
        self._previous: dict[Task, Task] = {}
        self._weights: dict[tuple[Task, int], Visit] = {}
        self._gradients: dict[tuple[Task, int], Visit] = {}
        self._spent: dict[tuple[int, str], list[str]] = defaultdict(list)
        """(rank, lane) -> what frees each thing that came on that lane, in order."""
        self._stashes: dict[int, list[Action]] = defaultdict(list)
        for task, following in self._neighbours():
            self._next[task] = following
            self._previous[following] = task

    def _neighbours(self) -> list[tuple[Task, Task]]:
        """(task, the one that takes its output), in PP mode of any rank, in DP mode of its own."""
        chains: dict[int, list[Task]] = defaultdict(list)
        for task in self.packs.tasks:
            chains[task.rank if self.packs.mode == DP else 0].append(task)
        return [pair for chain in chains.values() for pair in zip(chain, chain[1:], strict=False)]

    # -- memory that lasts --------------------------------------------------------------------

    def lay_out(self, weight_ring: int, gradient_ring: int) -> None:
        """Everything that is there all the time, and the places of what comes and goes."""
        packs, sizes = self.packs, self.sizes
        for rank in range(packs.ranks):
            samples = self._samples(rank)
            self.buffer(rank, "tokens", DEVICE, sizes.token_bytes(samples), permanent=True)
            if sizes.library_bytes:
                self.buffer(rank, "libraries", DEVICE, sizes.library_bytes, permanent=True)
            self._place_weights(rank, weight_ring)
            self._place_gradients(rank, gradient_ring)
        for unit in range(packs.num_units):
            weight, state = sizes.weight_bytes(unit), sizes.state_bytes(unit)
            visit = sizes.visit_bytes(unit)
            self.buffer(0, name.host_weights(unit), HOST_TIER, weight, permanent=True)
            self.buffer(0, name.host_states(unit), HOST_TIER, state, permanent=True)
            for rank in range(packs.ranks if packs.mode == DP else 1):
                share = self.share_bytes(visit) if packs.mode == DP else visit
                label = self.label(rank, name.host_gradients(unit))
                self.buffers[label] = Buffer(tier=HOST_TIER, nbytes=share, permanent=True)

    def share_bytes(self, nbytes: int) -> int:
        """A rank's share of some gradients; the last one may end in padding."""
        return -(-nbytes // (SHARE_ALIGNMENT * self.packs.ranks)) * SHARE_ALIGNMENT

    def _samples(self, rank: int) -> int:
        first, end = self.packs.share(rank if self.packs.mode == DP else None)
        return end - first

    def _tasks_of(self, rank: int) -> list[Task]:
        return [task for task in self.packs.tasks if task.rank == rank]

    def _place_weights(self, rank: int, capacity: int) -> None:
        tasks = self._tasks_of(rank)
        groups: list[list[Visit]] = []
        for before, task in zip([None, *tasks], tasks, strict=False):
            pins = self._pins(before, task, capacity)
            if not pins:
                groups.append([])
            for unit in task.units:
                if unit in pins:
                    visit = self._weights[before, unit]
                    visit.last = task
                else:
                    turn = int(not task.forward)
                    visit = Visit(rank=rank, unit=unit, turn=turn, first=task, last=task)
                    groups[-1].append(visit)
                self._weights[task, unit] = visit
        self._put(groups, capacity)

    def _pins(self, before: Task | None, task: Task, capacity: int) -> set[int]:
        """Layers that stay from a rank's last forward task to its first backward one, where both
        packs fit together."""
        if before is None or not before.forward or task.forward:
            return set()
        both = {*before.units} | {*task.units}
        needed = sum(aligned(self.sizes.visit_bytes(unit)) for unit in both)
        return {*before.units} & {*task.units} if needed <= capacity else set()

    def _place_gradients(self, rank: int, capacity: int) -> None:
        groups = [
            [
                Visit(rank=rank, unit=unit, turn=0, first=task, last=task)
                for unit in reversed(task.units)
            ]
            for task in self._tasks_of(rank)
            if not task.forward
        ]
        self._gradients |= {(visit.first, visit.unit): visit for group in groups for visit in group}
        self._put(groups, capacity)

    def _put(self, groups: list[list[Visit]], capacity: int) -> None:
        visits = [visit for group in groups for visit in group]
        sizes = [[self.sizes.visit_bytes(visit.unit) for visit in group] for group in groups]
        for visit, place in zip(visits, ring(sizes, capacity), strict=True):
            visit.offset = place.offset
            visit.behind = [(step, visits[other]) for step, other in place.behind]

    # -- writing ------------------------------------------------------------------------------

    def label(self, rank: int, text: str) -> str:
        """The name of a buffer of a rank."""
        return name.on_rank(rank, text)

    def buffer(self, rank: int, text: str, tier: str, nbytes: int, **kw) -> str:
        """Enter a buffer of a rank; returns its name."""
        label = self.label(rank, text)
        self.buffers[label] = Buffer(tier=tier, nbytes=nbytes, rank=rank, **kw)
        return label

    def scratch(self, rank: int, owner: str, nbytes: int) -> str:
        """What one compute action needs for itself; `add` frees it with the action."""
        label = name.scratch(owner)
        self.buffers[label] = Buffer(tier=DEVICE, nbytes=nbytes, rank=rank)
        return label

    def add(
        self,
        kind: Kind,
        unit: int,
        lane: str,
        rank: int,
        micro: int | None = None,
        *,
        turn: int = 0,
        after: list[str] | None = None,
        nbytes: int = 0,
        takes: list[str] | None = None,
        uses: list[str] | None = None,
        frees: list[str] | None = None,
        samples: Samples | None = None,
    ) -> str:
        """Write one action at the end of its lane; returns its name."""
        takes, frees = list(takes or []), list(frees or [])
        frees += [t for t in takes if t.startswith("t:")]
        action = Action(
            kind=kind,
            unit=unit,
            lane=lane,
            microbatch=micro,
            turn=turn,
            rank=rank,
            after=tuple(dict.fromkeys(after or [])),
            nbytes=nbytes,
            takes=tuple(takes),
            uses=tuple(dict.fromkeys(uses or [])),
            frees=tuple(frees),
            samples=samples,
        )
        self.actions.append(action)
        if kind is Kind.STASH:
            self._stashes[unit].append(action)
        return action.name

    def schedule(self, budgets: dict[str, int] | None) -> Schedule:
        """What was written."""
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

    def loaded(self, task: Task, unit: int) -> str:
        """The action that brings them."""
        visit = self.weights(task, unit)
        return act(Kind.LOAD, unit, turn=visit.turn, rank=visit.rank)

    def updated(self, unit: int) -> list[str]:
        """What makes a layer's weights those of this step, borrowed ones too."""
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
        return [act(Kind.UPDATE, owner, rank=rank, step=-1) for owner, rank in sorted(made)]

    def gradients(self, task: Task, unit: int) -> Visit:
        """A layer's gradients in its backward task."""
        return self._gradients[task, unit]

    def gradients_label(self, task: Task, unit: int) -> str:
        """Their buffer."""
        return self.label(task.rank, name.gradients(unit))

    def host_gradients(self, rank: int, unit: int) -> str:
        """Where a rank's gradients of a layer go on the host."""
        return self.label(rank if self.packs.mode == DP else 0, name.host_gradients(unit))

    def last_use(self, step: int, visit: Visit) -> str:
        """The action that frees a layer's weights."""
        kind = Kind.FORWARD if visit.last.forward else Kind.BACKWARD
        micro = len(visit.last.micros) - 1
        return act(kind, visit.unit, micro, rank=visit.rank, step=step)

    # -- from task to task --------------------------------------------------------------------

    def following(self, task: Task) -> Task | None:
        """The task that takes a task's output; None for the last one."""
        return self._next.get(task)

    def alone(self, task: Task) -> bool:
        """Whether a task's inputs come from a task of its own rank."""
        previous = self._previous.get(task)
        return previous is not None and previous.rank == task.rank

    def by_host(self, task: Task) -> bool:
        """Whether the inputs of the fused task pass through the host: another rank made them in
        micro-batches of another size."""
        return (
            task.fused
            and bool(self.packs.forward)
            and not self.alone(task)
            and self.packs.forward_size != self.packs.backward_size
        )

    def activation(self, task: Task, unit: int, micro: int, span: Samples) -> str:
        """A new buffer for the input of a unit within a task."""
        nbytes = self.cost(unit, span).input_bytes
        return self.buffer(task.rank, self._inside(task, unit, micro), DEVICE, nbytes)

    def _inside(self, task: Task, unit: int, micro: int) -> str:
        return name.activation(unit, micro, int(not task.forward))

    def cost(self, unit: int, span: Samples) -> UnitCost:
        """Of a pass over these samples."""
        return self.sizes.cost(unit, span[1] - span[0])

    def source(self, task: Task, unit: int, micro: int) -> str | None:
        """Where a pass reads its input; None for tokens."""
        if unit == 0:
            return None
        if unit == task.units.start and (task.forward or task.fused) and self.alone(task):
            return self.label(task.rank, name.inputs(unit))
        return self.label(task.rank, self._inside(task, unit, micro))

    def whole(self, task: Task, label: str | None) -> bool:
        """Whether a buffer holds all samples of a task, so that its last micro-batch frees it."""
        rank = task.rank
        return label in (
            self.label(rank, name.inputs(task.units.start)),
            self.label(rank, name.output_gradients(task.units.stop - 1)),
        )

    def gradient_source(self, task: Task, unit: int, micro: int) -> str | None:
        """Where a backward pass reads the gradient of its output; None for the loss."""
        if unit == self.head:
            return None
        if unit + 1 == task.units.stop and self.alone(task):
            return self.label(task.rank, name.output_gradients(unit))
        return self.label(task.rank, name.output_gradient(unit, micro))

    def bring(self, task: Task, micro: int, span: Samples) -> list[str]:
        """Have the input of a task's first unit come; returns what the pass over it waits for."""
        unit, rank = task.units.start, task.rank
        if unit == 0:
            return []
        if (task.forward or task.fused) and self.alone(task):
            return self._made(Kind.FORWARD, unit - 1, self._previous[task], span)
        label = self._inside(task, unit, micro)
        nbytes = self.cost(unit, span).input_bytes
        ends = Kind.BACKWARD if not task.forward else Kind.FORWARD
        if task.forward and unit in self.stashed:
            ends = Kind.STASH
        if (task.forward or task.fused) and not self.by_host(task):
            after = self._after_spent(rank, NET_IN, act(ends, unit, micro, rank=rank))
            takes = [self.buffer(rank, label, DEVICE, nbytes)]
            made = self.add(
                Kind.RECV, unit, NET_IN, rank, micro, after=after, nbytes=nbytes, takes=takes,
                samples=span,
            )  # fmt: skip
            return [made]
        after = self._after_spent(rank, FETCHES, act(ends, unit, micro, rank=rank))
        after += [
            action.name
            for action in self._stashes[unit]
            if action.samples[0] < span[1] and span[0] < action.samples[1]
        ]
        made = self.add(
            Kind.FETCH, unit, FETCHES, rank, micro, after=after, nbytes=nbytes,
            takes=[self.buffer(rank, label, DEVICE, nbytes)],
            uses=[self.host_inputs(rank, unit)], samples=span,
        )  # fmt: skip
        return [made]

    def _after_spent(self, rank: int, lane: str, ends: str) -> list[str]:
        """What must be gone before one more thing comes on a lane; notes what will free it."""
        spent = self._spent[rank, lane]
        spent.append(ends)
        return [spent[-1 - AHEAD]] if len(spent) > AHEAD else []

    def _made(self, kind: Kind, unit: int, task: Task, span: Samples) -> list[str]:
        """A task's passes over a unit that share samples with a span."""
        return [
            act(kind, unit, micro, rank=task.rank)
            for micro, (first, end) in enumerate(task.micros)
            if first < span[1] and span[0] < end
        ]

    def host_inputs(self, rank: int, unit: int) -> str:
        """The stash of a unit's inputs: of all samples, or in DP mode of a rank's."""
        rank = rank if self.packs.mode == DP else 0
        label = self.label(rank, name.host_inputs(unit))
        if label not in self.buffers:
            nbytes = self.sizes.cost(unit, self._samples(rank)).input_bytes
            self.buffers[label] = Buffer(tier=HOST_TIER, nbytes=nbytes, permanent=True)
        return label

    def bring_gradient(self, task: Task, micro: int, span: Samples) -> list[str]:
        """Have the gradient of a task's output come; returns what its first backward pass waits
        for."""
        unit, rank = task.units.stop, task.rank
        if unit > self.head:
            return []
        if self.alone(task):
            return self._made(Kind.BACKWARD, unit, self._previous[task], span)
        nbytes = self.cost(unit, span).input_bytes
        ends = act(Kind.BACKWARD, unit - 1, micro, rank=rank)
        label = self.buffer(rank, name.output_gradient(unit - 1, micro), DEVICE, nbytes)
        made = self.add(
            Kind.RECV, unit, NET_IN, rank, micro, turn=GRADIENT,
            after=self._after_spent(rank, NET_IN, ends), nbytes=nbytes, takes=[label], samples=span,
        )  # fmt: skip
        return [made]
