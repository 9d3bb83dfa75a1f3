"""How long a step of a pipeline takes, without its schedule: for searches and many micro-batches.

Stages are units here, and a step is arrays (schedule/arrays.py): passes on one lane a rank, and
messages on lanes of their own, which meet as in the simulator. Memory is a formula
(`orders.in_flight`); whoever chooses by this proves the choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from workbench.methods.pipeline.draft import AHEAD, LANES
from workbench.methods.pipeline.orders import B, F, I, Pass, W
from workbench.schedule.action import COMPUTE, Kind
from workbench.schedule.arrays import ArrayGraph
from workbench.schedule.build.inbox import taken_from
from workbench.schedule.event_loop import times


class Undisturbed:
    """Lanes that do not disturb each other."""

    def slowdown(self, lane: str, busy: Iterable[str]) -> float:
        return 1.0


def step_seconds(
    passes: Sequence[Sequence[Pass]],
    seconds: Sequence[Mapping[Kind, float]],
    message_s: float = 0.0,
) -> float:
    """Seconds from the first pass of a step to the end of the last. `seconds`: stage -> kind of
    pass -> what a micro-batch takes; `message_s`: what a message takes.

    >>> from workbench.methods.pipeline.orders import lists
    >>> step_seconds(lists("1f1b", 4, 8), [{F: 1.0, B: 2.0}] * 4)
    33.0
    """
    step = _Step(passes)
    graph = step.graph()
    alone = [seconds[stage][kind] for kind, stage, _ in step.nodes]
    alone += [message_s] * (graph.num_nodes - len(step.nodes))
    _, ends, ended = times(graph, alone, Undisturbed())
    if ended < graph.num_nodes:
        raise ValueError("the order deadlocks: its passes wait for each other")
    return max(ends)


class _Step:
    """Nodes and edges of one step."""

    def __init__(self, passes: Sequence[Sequence[Pass]]) -> None:
        self.ranks = len(passes)
        self.nodes: list[tuple[Kind, int, int]] = []
        """(kind, stage, micro-batch) of each pass, rank by rank in order; messages come behind."""
        self.bounds = [0]
        for rank, own in enumerate(passes):
            self.nodes += [(p.kind, p.chunk * self.ranks + rank, p.micro) for p in own]
            self.bounds.append(len(self.nodes))
        self.stages = 1 + max(stage for _, stage, _ in self.nodes)
        micros = 1 + max(micro for _, _, micro in self.nodes)
        self.at = {
            kind: np.full((self.stages, micros), -1, dtype=np.int64) for kind in (F, B, I, W)
        }
        for node, (kind, stage, micro) in enumerate(self.nodes):
            self.at[kind][stage, micro] = node
        self.back = np.where(self.at[I] >= 0, self.at[I], self.at[B])
        """Passes that make the gradient of a stage's input."""
        self.last = np.where(self.at[W] >= 0, self.at[W], self.at[B])
        """Passes that read a stage's input, and the gradient of its output, last."""

    def graph(self) -> ArrayGraph:
        """The step's arrays."""
        lanes = [(rank, COMPUTE) for rank in range(self.ranks)]
        lane_of = np.repeat(np.arange(self.ranks), np.diff(self.bounds))
        edges = [_in_turn(np.arange(*bounds)) for bounds in pairwise(self.bounds)]
        at = len(self.nodes)
        for send, receive, made, used in (
            (Kind.SEND, Kind.RECV, self.at[F][:-1], self.at[F][1:]),
            (Kind.SEND_GRAD, Kind.RECV_GRAD, self.back[1:], self.back[:-1]),
        ):
            freed = self.last[1:] if send is Kind.SEND else self.last[:-1]
            made, used, freed = (part.ravel() for part in (made, used, freed))
            count = len(made)
            if self.ranks == 1 or not count:
                edges.append(np.stack([made, used], axis=1))
                continue
            sends, receives = at + np.arange(count), at + count + np.arange(count)
            at += 2 * count
            ranks = np.searchsorted(self.bounds, np.stack([made, used]), side="right") - 1
            numbers = (len(lanes) + k * self.ranks + ranks[k] for k in (0, 1))
            lane_of = np.concatenate([lane_of, *numbers])
            lanes += [(rank, LANES[kind]) for kind in (send, receive) for rank in range(self.ranks)]
            waits = [(made, sends)]
            for rank in range(self.ranks):
                out = np.flatnonzero(ranks[0] == rank)
                out = out[np.argsort(made[out])]
                waits.append((sends[out[:-1]], sends[out[1:]]))
                waits.append((sends[out[:-AHEAD]], made[out[AHEAD:]]))
                into = np.flatnonzero(ranks[1] == rank)
                into = into[np.argsort(used[into])]
                waits.append((receives[into[:-1]], receives[into[1:]]))
                places = taken_from(used[into].tolist(), freed[into].tolist(), AHEAD)
                before = np.array(places, dtype=np.int64)
                known = before >= 0
                waits.append((freed[into][before[known]], receives[into[known]]))
            edges += [np.stack(pair, axis=1) for pair in (*waits, (receives, used))]
            partner = np.arange(at)
            partner[sends], partner[receives] = receives, sends
            met = np.concatenate([np.stack(pair, axis=1) for pair in waits])
            met = met[met[:, 1] >= len(self.nodes)]  # each waits for what the other waits for
            edges.append(np.stack([met[:, 0], partner[met[:, 1]]], axis=1))
        return ArrayGraph(lane_keys=lanes, lane_of=lane_of, edges=np.concatenate(edges))


def _in_turn(nodes: np.ndarray) -> np.ndarray:
    return np.stack([nodes[:-1], nodes[1:]], axis=1)
