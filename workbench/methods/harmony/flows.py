"""Activations and their gradients between the tasks of a Harmony step, and where a pass finds them.

Between ranks they go by message, which has places for a few micro-batches: the others wait where
they were made. (Were the sender held up instead, a ring of ranks that are all in the middle of a
pack would deadlock.) On one rank they wait in one piece of device memory. Inputs of backward packs
are stashed on the host and fetched by the ranks that run them, a micro-batch ahead; a stash knows
samples, not micro-batches, so forward and backward passes may divide the minibatch differently.
"""

from __future__ import annotations

from collections import defaultdict

from workbench.core.division import DP, Samples
from workbench.methods.harmony.packs import Task
from workbench.methods.harmony.step_builder import MicroBatch, PackStepBuilder
from workbench.schedule import buffers as name
from workbench.schedule.action import D2H, NET_IN, NET_OUT, Action, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.inbox import AHEAD, FETCHES, INBOX, RETURNS, held, lay_inbox

F, B = Kind.FORWARD, Kind.BACKWARD
INSIDE = D2H + " inside"
"""Inputs of backward packs that begin inside a forward pack: counted by themselves, since those of
a whole task are gone only at its end."""


class Flows:
    """Writes the messages, stashes and fetches of a step."""

    def __init__(self, builder: PackStepBuilder) -> None:
        self.builder, self.packs = builder, builder.packs
        self.following: dict[Task, Task] = {}
        """Task -> the task that takes its output."""
        self._previous: dict[Task, Task] = {}
        self._freed_by: dict[tuple[int, str], list[str]] = defaultdict(list)
        """(rank, lane) -> what frees each thing that came on that lane, in order."""
        self._received: dict[int, list[int]] = defaultdict(list)
        """Rank -> its receiving actions, by their places among all actions."""
        self._stashes: dict[int, list[Action]] = defaultdict(list)
        """Unit -> what brings its inputs to the host."""
        chains: dict[int, list[Task]] = defaultdict(list)
        for task in self.packs.tasks:
            chains[task.rank if self.packs.mode == DP else 0].append(task)
        for chain in chains.values():
            for task, following in zip(chain, chain[1:], strict=False):
                self.following[task], self._previous[following] = following, task

    # -- where a pass reads and writes --------------------------------------------------------

    def alone(self, task: Task) -> bool:
        """Whether a task's inputs come from a task of its own rank."""
        previous = self._previous.get(task)
        return previous is not None and previous.rank == task.rank

    def stays(self, task: Task) -> bool:
        """Whether a task's output is taken by a task of its own rank."""
        return self.following[task].rank == task.rank

    def inside(self, task: Task, unit: int, number: int) -> str:
        """The buffer of one micro-batch of a unit's input."""
        return name.activation(unit, number, int(not task.forward))

    def source(self, micro: MicroBatch, unit: int) -> str | None:
        """The buffer in which a pass reads its input; None for tokens."""
        task = micro.task
        if unit == 0:
            return None
        if unit == task.units.start and (task.forward or task.fused) and self.alone(task):
            return self.builder.label(task.rank, name.inputs(unit))
        return self.builder.label(task.rank, self.inside(task, unit, micro.number))

    def gradient_source(self, micro: MicroBatch, unit: int) -> str | None:
        """The buffer in which a backward pass reads the gradient of its output; None for the
        loss."""
        if unit == self.builder.head:
            return None
        if unit + 1 == micro.task.units.stop and self.alone(micro.task):
            return self.builder.label(micro.rank, name.output_gradients(unit))
        return self.builder.label(micro.rank, name.output_gradient(unit, micro.number))

    def done_with(self, micro: MicroBatch, label: str) -> bool:
        """Whether a pass is the last that reads a buffer: one of all samples of the task, or of
        this micro-batch alone."""
        units = micro.task.units
        whole = name.inputs(units.start), name.output_gradients(units.stop - 1)
        return micro.last or label not in [self.builder.label(micro.rank, text) for text in whole]

    def output(self, micro: MicroBatch, unit: int) -> tuple[list[str], list[str], list[str]]:
        """Buffers that a forward pass takes for its output, or uses, and actions before it."""
        builder, task, rank = self.builder, micro.task, micro.rank
        nbytes = builder.input_bytes(unit + 1, micro.span) if unit < builder.head else 0
        if unit + 1 in task.units:
            after: list[str] = []
            if task.forward and unit + 1 in builder.stashed:  # goes to the host by itself
                after = self._after_freed(rank, INSIDE, micro.act(Kind.STASH, unit + 1))
            text = self.inside(task, unit + 1, micro.number)
            return [builder.lay(rank, text, nbytes)], [], after
        if not task.forward:
            return [], [], []
        if not self.stays(task):
            gone = Kind.STASH if self._by_host(self.following[task]) else Kind.SEND
            label = builder.lay(rank, name.output(unit, micro.number), nbytes)
            return [label], [], [micro.act(gone, unit + 1, step=-1)]
        text = name.inputs(unit + 1)
        if not micro.first:
            return [], [builder.label(rank, text)], []
        nbytes = builder.input_bytes(unit + 1, self.packs.share_of(task))
        return [builder.lay(rank, text, nbytes)], [], self._after_stashes(self.following[task])

    def input_gradient(
        self, micro: MicroBatch, unit: int
    ) -> tuple[list[str], list[str], list[str]]:
        """Buffers that a backward pass takes for the gradient of its input, or uses, and actions
        before it."""
        builder, task, rank = self.builder, micro.task, micro.rank
        if unit == 0:
            return [], [], []
        nbytes = builder.input_bytes(unit, micro.span)
        if unit - 1 in task.units:
            text = name.output_gradient(unit - 1, micro.number)
            return [builder.lay(rank, text, nbytes)], [], []
        if not self.stays(task):
            label = builder.lay(rank, name.input_gradient(unit, micro.number), nbytes)
            return [label], [], [micro.act(Kind.SEND_GRAD, unit, step=-1)]
        text = name.output_gradients(unit - 1)
        if not micro.first:
            return [], [builder.label(rank, text)], []
        nbytes = sum(builder.input_bytes(unit, span) for span in task.micros)
        # They wait for the last of the task's inputs that go to the host.
        return [builder.lay(rank, text, nbytes)], [], self._freed_by[rank, D2H][-1:]

    # -- what comes ---------------------------------------------------------------------------

    def bring(self, micro: MicroBatch) -> list[str]:
        """Have the input of a task's first unit come; returns what the pass over it waits for."""
        builder, task = self.builder, micro.task
        unit, passed_on = task.units.start, task.forward or task.fused
        if unit == 0:
            return []
        if passed_on and self.alone(task):
            return self._made(F, unit - 1, micro)
        label = self.inside(task, unit, micro.number)
        frees = F if task.forward else B
        if task.forward and unit in builder.stashed:
            frees = Kind.STASH
        if passed_on and not self._by_host(task):
            return [self._receive(Kind.RECV, micro, unit, label, micro.act(frees, unit))]
        after = self._after_freed(micro.rank, FETCHES, micro.act(frees, unit))
        after += [made.name for made in self._stashes[unit] if _meet(made.samples, micro.span)]
        nbytes = builder.input_bytes(unit, micro.span)
        takes = [builder.lay(micro.rank, label, nbytes)]
        uses = [self._host_inputs(micro.rank, unit)]
        return [
            builder.run(
                Kind.FETCH, unit, FETCHES, micro, after=after, nbytes=nbytes, takes=takes, uses=uses
            )
        ]

    def bring_gradient(self, micro: MicroBatch) -> list[str]:
        """Have the gradient of a task's output come; returns what its first backward pass waits
        for."""
        unit = micro.task.units.stop
        if unit > self.builder.head:
            return []
        if self.alone(micro.task):
            return self._made(B, unit, micro)
        label, frees = name.output_gradient(unit - 1, micro.number), micro.act(B, unit - 1)
        return [self._receive(Kind.RECV_GRAD, micro, unit, label, frees)]

    def _receive(self, kind: Kind, micro: MicroBatch, unit: int, label: str, frees: str) -> str:
        """Have a message of another rank come into the inbox, where an action frees its place."""
        builder, rank = self.builder, micro.rank
        nbytes = builder.input_bytes(unit, micro.span)
        self._received[rank].append(len(builder.actions))
        after = self._after_freed(rank, NET_IN, frees)
        takes = [builder.lay(rank, label, nbytes, slot=INBOX)]
        return builder.run(kind, unit, NET_IN, micro, nbytes=nbytes, after=after, takes=takes)

    def lay_inboxes(self) -> None:
        """Places for the messages of every rank."""
        for rank, received in self._received.items():
            lay_inbox(self.builder, received, self._freed_by[rank, NET_IN])

    def _made(self, kind: Kind, unit: int, micro: MicroBatch) -> list[str]:
        """Passes of the task before over a unit that share samples with a micro-batch."""
        previous = self._previous[micro.task]
        return [
            act(kind, unit, number, rank=previous.rank)
            for number, span in enumerate(previous.micros)
            if _meet(span, micro.span)
        ]

    # -- what goes ----------------------------------------------------------------------------

    def stash(self, micro: MicroBatch, unit: int) -> None:
        """Take the input of a unit with which a backward pack begins to the host."""
        source = self.source(micro, unit)
        self._stash(micro, unit, micro.act(F, unit), source, self.done_with(micro, source))

    def pass_on(self, micro: MicroBatch) -> None:
        """Take the output of a pack to another rank: by message, or by the host where that divides
        the minibatch differently."""
        unit, task = micro.task.units.stop, micro.task
        if self.stays(task):
            return
        label = self.builder.label(micro.rank, name.output(unit - 1, micro.number))
        made = micro.act(F, unit - 1)
        if self._by_host(self.following[task]):
            self._stash(micro, unit, made, label, True)
        else:
            self._send(Kind.SEND, NET_OUT, micro, unit, made, label)

    def pass_back(self, micro: MicroBatch) -> None:
        """Take the gradient of a pack's input to the rank of the pack before."""
        unit = micro.task.units.start
        if unit and not self.stays(micro.task):
            label = self.builder.label(micro.rank, name.input_gradient(unit, micro.number))
            self._send(Kind.SEND_GRAD, RETURNS, micro, unit, micro.act(B, unit), label)

    def _stash(self, micro: MicroBatch, unit: int, made: str, label: str, done: bool) -> None:
        """Take a unit's input to the host once it is made; `done` if nobody else reads the buffer
        that it lies in."""
        nbytes, uses = self.builder.input_bytes(unit, micro.span), [] if done else [label]
        self.builder.run(
            Kind.STASH, unit, D2H, micro, after=[made], nbytes=nbytes,
            uses=[self._host_inputs(micro.rank, unit), *uses], frees=[label] if done else [],
        )  # fmt: skip
        self._stashes[unit].append(self.builder.actions[-1])

    def _send(
        self, kind: Kind, lane: str, micro: MicroBatch, unit: int, made: str, label: str
    ) -> None:
        nbytes = self.builder.input_bytes(unit, micro.span)
        self.builder.run(kind, unit, lane, micro, after=[made], nbytes=nbytes, frees=[label])

    def _by_host(self, task: Task) -> bool:
        """Whether the inputs of the fused task pass through the host: another rank made them in
        micro-batches of another size."""
        apart = bool(self.packs.forward) and not self.alone(task)
        return task.fused and apart and self.packs.forward_size != self.packs.backward_size

    def _host_inputs(self, rank: int, unit: int) -> str:
        """The stash of a unit's inputs: of all samples, or in DP mode of a rank's."""
        rank = rank if self.packs.mode == DP else 0
        nbytes = self.builder.sizes.input_bytes(unit, self.builder.samples_of(rank))
        return self.builder.lay_host(rank, name.host_inputs(unit), nbytes)

    # -- how far compute runs ahead -----------------------------------------------------------

    def _after_stashes(self, task: Task) -> list[str]:
        """Actions that the inputs of a task wait for before they are made on its own rank, so that
        compute does not run ahead of transfers to the host. Inputs of the last task do not go
        there, and wait as if they did."""
        unit, rank = task.units.start, task.rank
        if not task.forward:
            return self._freed_by[rank, D2H][-AHEAD : 1 - AHEAD]
        if unit not in self.builder.stashed:
            return []
        last = act(Kind.STASH, unit, len(task.micros) - 1, rank=rank)
        return self._after_freed(rank, D2H, last)

    def _after_freed(self, rank: int, lane: str, frees: str) -> list[str]:
        """Actions that must end before one more transfer arrives on a lane; notes the action that
        will free it."""
        freed_by = self._freed_by[rank, lane]
        freed_by.append(frees)
        return [freed_by[-1 - held(lane)]] if len(freed_by) > held(lane) else []


def _meet(one: Samples, other: Samples) -> bool:
    """Whether two spans share samples."""
    return one[0] < other[1] and other[0] < one[1]
