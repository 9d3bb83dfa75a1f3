"""From a configuration to its task graph: placement, media, and weights kept between two tasks.

Harmony-PP deals the tasks to the GPUs in turn, forward packs first and then backward packs from the
loss on, so consecutive packs are on consecutive GPUs and the pipeline wraps around many times. What
crosses from pack to pack goes from GPU to GPU. Harmony-DP repeats all tasks on each GPU with its
share of the minibatch; there, and on one GPU, what crosses is swapped.

Whatever passes from the forward to the backward size of micro-batches goes through the host as a
message, since it is cut anew there: stashes always, the input of the loss pack where sizes differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workbench.methods.harmony.published.tasks import (
    Configuration,
    Flow,
    Medium,
    Mode,
    Task,
    TaskGraph,
    TaskKind,
    What,
)

FORWARD, BACKWARD, UPDATE = TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.UPDATE


def build(configuration: Configuration) -> TaskGraph:
    """The task graph; ValueError for packs that are no partition and the like."""
    if not configuration.backward:
        raise ValueError("a configuration has one backward pack at least")
    backward = configuration.backward
    layers = backward[-1].stop
    check_cover("backward", backward, layers)
    check_cover("forward", [*configuration.forward, backward[-1]], layers)
    tasks: list[Task] = []
    for replica, samples in enumerate(configuration.shares()):
        tasks += _Replica(configuration, replica, samples, len(tasks)).tasks()
    return TaskGraph(
        mode=configuration.mode,
        gpus=configuration.gpus,
        minibatch=configuration.minibatch,
        layers=layers,
        tasks=tuple(tasks),
    )


def check_cover(name: str, packs: Sequence[range], layers: int) -> None:
    """ValueError where the packs of a pass are not a partition of all layers, in order."""
    found = [layer for pack in packs for layer in pack]
    if found != list(range(layers)) or not all(packs):
        seen = ", ".join(f"{pack.start}:{pack.stop}" for pack in packs)
        raise ValueError(
            f"the {name} packs {seen} do not cover layers 0 to {layers - 1} once and in order"
            + (", with the last backward pack as their end" if name == "forward" else "")
        )


class _Replica:
    """All tasks of one pass over the model."""

    def __init__(self, chosen: Configuration, replica: int, samples: int, base: int) -> None:
        self.chosen, self.samples, self.base = chosen, samples, base
        self.forward = chosen.forward
        self.backward = chosen.backward[::-1]  # the pack of the loss is 0
        self.place: Callable[[int], int] = (
            (lambda position: position % chosen.gpus)
            if chosen.mode is Mode.PP
            else (lambda position: replica)
        )
        local = chosen.mode is Mode.DP or chosen.gpus == 1
        self.neighbour = Medium.SWAP if local else Medium.P2P
        # The published rule names only several GPUs here; on one, a local swap cannot cut the
        # micro-batches anew either, and the message to itself costs nothing.
        sizes_differ = chosen.u_forward != chosen.u_backward
        self.into_loss = Medium.MESSAGE if sizes_differ else self.neighbour
        self.kept = self._kept()

    def tasks(self) -> list[Task]:
        tasks = [self._forward_task(i) for i in range(len(self.forward))]
        for j in range(len(self.backward)):
            tasks += [self._backward_task(j), self._update_task(j)]
        return tasks

    def _forward_index(self, i: int) -> int:
        return self.base + i

    def _backward_index(self, j: int) -> int:
        return self.base + len(self.forward) + 2 * j

    def _kept(self) -> dict[tuple[TaskKind, int], tuple[range, int]]:
        """(kind, position) -> layers pinned between it and the task at the other end.

        A GPU's last forward task and its first backward task are neighbours in time, so layers
        that both need stay where they are.
        """
        last = {self.place(i): i for i in range(len(self.forward))}
        first: dict[int, int] = {}
        for j in range(len(self.backward)):
            first.setdefault(self.place(len(self.forward) + j), j)
        kept = {}
        for rank, i in last.items():
            if rank not in first:
                continue
            j = first[rank]
            ours, theirs = self.forward[i], self.backward[j]
            common = range(max(ours.start, theirs.start), min(ours.stop, theirs.stop))
            if common:
                kept[FORWARD, i] = (common, self._backward_index(j))
                kept[BACKWARD, j] = (common, self._forward_index(i))
        return kept

    def _weights_in(self, kind: TaskKind, position: int, pack: range) -> list[Flow]:
        """Flows of weights from the host, and in a backward task of weights that are still
        there."""
        if kind is FORWARD or (kind, position) not in self.kept:
            return [Flow(what=What.WEIGHTS, medium=Medium.SHARED, layers=pack)]
        common, peer = self.kept[kind, position]
        missing = [range(pack.start, common.start), range(common.stop, pack.stop)]
        return [
            Flow(what=What.WEIGHTS, medium=Medium.PINNED, layers=common, peer=peer),
            *(
                Flow(what=What.WEIGHTS, medium=Medium.SHARED, layers=layers)
                for layers in missing
                if layers
            ),
        ]

    def _forward_task(self, i: int) -> Task:
        pack = self.forward[i]
        stashes = [
            Flow(
                what=What.X,
                medium=Medium.MESSAGE,
                layers=_entering(self.backward[j].start),
                peer=self._backward_index(j),
            )
            for j in range(len(self.backward) - 1, 0, -1)
            if self.backward[j].start in pack
        ]
        last = i == len(self.forward) - 1
        following = self._backward_index(0) if last else self._forward_index(i + 1)
        medium = self.into_loss if last else self.neighbour
        output = Flow(what=What.X, medium=medium, layers=_entering(pack.stop), peer=following)
        kept = []
        if (FORWARD, i) in self.kept:
            common, peer = self.kept[FORWARD, i]
            kept = [Flow(what=What.WEIGHTS, medium=Medium.PINNED, layers=common, peer=peer)]
        return self._task(
            FORWARD,
            i,
            pack,
            [self._from_previous(i, self.neighbour), *self._weights_in(FORWARD, i, pack)],
            [*stashes, output, *kept],
        )

    def _from_previous(self, i: int, medium: Medium) -> Flow:
        """The input of forward position `i`; the first one's is the data."""
        if i == 0:
            return Flow(what=What.X, medium=Medium.DATA, layers=_entering(0))
        entered = _entering(self.forward[i - 1].stop)
        return Flow(what=What.X, medium=medium, layers=entered, peer=self._forward_index(i - 1))

    def _backward_task(self, j: int) -> Task:
        pack = self.backward[j]
        inputs, outputs = [], []
        if j == 0:
            inputs += [
                self._from_previous(len(self.forward), self.into_loss),
                Flow(what=What.TARGET, medium=Medium.DATA, layers=_entering(pack.stop - 1)),
            ]
        else:
            source = next(i for i, other in enumerate(self.forward) if pack.start in other)
            inputs += [
                Flow(
                    what=What.X,
                    medium=Medium.MESSAGE,
                    layers=_entering(pack.start),
                    peer=self._forward_index(source),
                ),
                Flow(
                    what=What.DX,
                    medium=self.neighbour,
                    layers=_entering(pack.stop),
                    peer=self._backward_index(j - 1),
                ),
            ]
        inputs += self._weights_in(BACKWARD, j, pack)
        if j < len(self.backward) - 1:
            outputs.append(
                Flow(
                    what=What.DX,
                    medium=self.neighbour,
                    layers=_entering(pack.start),
                    peer=self._backward_index(j + 1),
                )
            )
        update = self._backward_index(j) + 1
        outputs.append(Flow(what=What.GRADIENTS, medium=Medium.LOCAL, layers=pack, peer=update))
        return self._task(BACKWARD, j, pack, inputs, outputs)

    def _update_task(self, j: int) -> Task:
        pack = self.backward[j]
        gradients = Flow(
            what=What.GRADIENTS, medium=Medium.LOCAL, layers=pack, peer=self._backward_index(j)
        )
        host = [
            Flow(what=what, medium=Medium.SHARED, layers=pack)
            for what in (What.WEIGHTS, What.STATES)
        ]
        return self._task(UPDATE, j, pack, [gradients, *host], host)

    def _task(
        self,
        kind: TaskKind,
        position: int,
        pack: range,
        inputs: Sequence[Flow],
        outputs: Sequence[Flow],
    ) -> Task:
        forward = kind is FORWARD
        index = self._forward_index(position) if forward else self._backward_index(position)
        return Task(
            index=index + (kind is UPDATE),
            kind=kind,
            pack=pack,
            rank=self.place(position if forward else len(self.forward) + position),
            microbatches=(() if kind is UPDATE else self.chosen.microbatches(kind, self.samples)),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
        )


def _entering(layer: int) -> range:
    return range(layer, layer + 1)
