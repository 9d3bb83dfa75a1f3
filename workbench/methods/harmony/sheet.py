"""The sheet a Harmony step is written on: how things get from task to task.

`program.py` says what a task does; this says where its inputs come from and its outputs go, which
depends on the rank of the task before and after, and on how these divide the minibatch.
"""

from __future__ import annotations

from collections import defaultdict

from workbench.core.division import DP, Samples
from workbench.methods.harmony.draft import Draft
from workbench.methods.harmony.packs import Packs, Task
from workbench.profile.cuda_graphs import replay_bytes
from workbench.profile.unit_costs import Sizes
from workbench.schedule import buffers as name
from workbench.schedule.action import D2H, NET_IN, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.inbox import AHEAD, FETCHES, INBOX, held, lay_inbox
from workbench.schedule.schedule import DEVICE, HOST_TIER

INSIDE = D2H + " inside"
"""Inputs of backward packs that begin inside a forward pack: counted by themselves, since those of
a whole task are gone only at its end."""


class Sheet(Draft):
    """A draft that knows which task follows which."""

    def __init__(
        self, packs: Packs, sizes: Sizes, *, guesses: bool = False, replay: bool = False
    ) -> None:
        super().__init__(packs, sizes, guesses=guesses)
        self._replay = replay
        self._next: dict[Task, Task] = {}
        self._previous: dict[Task, Task] = {}
        self._freed_by: dict[tuple[int, str], list[str]] = defaultdict(list)
        """(rank, lane) -> what frees each thing that came on that lane, in order."""
        self._received: dict[int, list[int]] = defaultdict(list)
        """Rank -> its receiving actions, by their places among all actions."""
        for task, following in self._neighbours():
            self._next[task] = following
            self._previous[following] = task

    def _neighbours(self) -> list[tuple[Task, Task]]:
        """(task, the one that takes its output), in PP mode of any rank, in DP mode of its own."""
        chains: dict[int, list[Task]] = defaultdict(list)
        for task in self.packs.tasks:
            chains[task.rank if self.packs.mode == DP else 0].append(task)
        return [pair for chain in chains.values() for pair in zip(chain, chain[1:], strict=False)]

    def replayed(self, unit: int) -> bool:
        """Whether a unit's passes are recordings, which work in memory of their own."""
        return self._replay and 0 < unit < self.head

    def lay_replays(self) -> None:
        """Lay the memory of recordings on every rank: for its forward passes, and for its chains of
        a backward pack's blocks."""
        for rank in range(self.packs.ranks):
            forwards, chains = [], []
            for task in self.packs.tasks_of(rank):
                blocks = [unit for unit in task.units if self.replayed(unit)]
                costs = [self.cost(unit, task.micros[0]) for unit in blocks]
                if task.forward:
                    forwards += costs
                elif blocks:
                    gradients = map(self.sizes.visit_bytes, blocks)
                    chains.append([*zip(costs, gradients, strict=True)])
            if nbytes := replay_bytes(forwards, chains):
                self.lay(rank, name.REPLAYS, DEVICE, nbytes, permanent=True)

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
        nbytes = self.input_bytes(unit, span)
        return self.lay(task.rank, self._inside(task, unit, micro), DEVICE, nbytes)

    def _inside(self, task: Task, unit: int, micro: int) -> str:
        return name.activation(unit, micro, int(not task.forward))

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
        nbytes = self.input_bytes(unit, span)
        ends = Kind.BACKWARD if not task.forward else Kind.FORWARD
        if task.forward and unit in self.stashed:
            ends = Kind.STASH
        if (task.forward or task.fused) and not self.by_host(task):
            return [self._receive(Kind.RECV, task, unit, micro, span, label, ends)]
        after = self._after_freed(rank, FETCHES, act(ends, unit, micro, rank=rank))
        after += [
            action.name
            for action in self.stashes[unit]
            if action.samples[0] < span[1] and span[0] < action.samples[1]
        ]
        made = self.add(
            Kind.FETCH, unit, FETCHES, micro, rank=rank, after=after, nbytes=nbytes,
            takes=[self.lay(rank, label, DEVICE, nbytes)],
            uses=[self.host_inputs(rank, unit)], samples=span,
        )  # fmt: skip
        return [made]

    def _receive(
        self, kind: Kind, task: Task, unit: int, micro: int, span: Samples, label: str, ends: Kind
    ) -> str:
        """Have a message of another rank come into the inbox, where `ends` will free its place."""
        rank, nbytes = task.rank, self.input_bytes(unit, span)
        of = unit - 1 if kind is Kind.RECV_GRAD else unit
        self._received[rank].append(len(self.actions))
        return self.add(
            kind, unit, NET_IN, micro, rank=rank, nbytes=nbytes, samples=span,
            after=self._after_freed(rank, NET_IN, act(ends, of, micro, rank=rank)),
            takes=[self.lay(rank, label, DEVICE, nbytes, slot=INBOX)],
        )  # fmt: skip

    def lay_inboxes(self) -> None:
        """Places for the messages of every rank."""
        for rank, received in self._received.items():
            lay_inbox(self, received, self._freed_by[rank, NET_IN])

    def after_stashes(self, task: Task) -> list[str]:
        """Actions that the inputs of a task wait for before they are made on its own rank, so that
        compute does not run ahead of transfers to the host. Inputs of the last task do not go
        there, and wait as if they did."""
        unit, rank = task.units.start, task.rank
        if not task.forward:
            return self._freed_by[rank, D2H][-AHEAD : 1 - AHEAD]
        if unit not in self.stashed:
            return []
        last = act(Kind.STASH, unit, len(task.micros) - 1, rank=rank)
        return self._after_freed(rank, D2H, last)

    def before_gradients(self, task: Task) -> list[str]:
        """Actions that the gradients of all of a task's inputs wait for, where they come on its own
        rank: the last of those inputs that go to the host."""
        return self._freed_by[task.rank, D2H][-1:]

    def after_stash(self, task: Task, unit: int, micro: int) -> list[str]:
        """Actions that one input of a unit inside a task waits for; it goes to the host by
        itself."""
        mine = act(Kind.STASH, unit, micro, rank=task.rank)
        return self._after_freed(task.rank, INSIDE, mine)

    def _after_freed(self, rank: int, lane: str, ends: str) -> list[str]:
        """Actions that must end before one more transfer arrives on a lane; notes the action that
        will free it."""
        freed_by = self._freed_by[rank, lane]
        freed_by.append(ends)
        return [freed_by[-1 - held(lane)]] if len(freed_by) > held(lane) else []

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
            nbytes = self.sizes.input_bytes(unit, self.samples_of(rank))
            self.buffer(label, HOST_TIER, nbytes, permanent=True)
        return label

    def bring_gradient(self, task: Task, micro: int, span: Samples) -> list[str]:
        """Have the gradient of a task's output come; returns what its first backward pass waits
        for."""
        unit = task.units.stop
        if unit > self.head:
            return []
        if self.alone(task):
            return self._made(Kind.BACKWARD, unit, self._previous[task], span)
        label = name.output_gradient(unit - 1, micro)
        return [self._receive(Kind.RECV_GRAD, task, unit, micro, span, label, Kind.BACKWARD)]
