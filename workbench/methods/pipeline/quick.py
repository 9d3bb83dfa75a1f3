"""How long a step of a pipeline takes, without its schedule: for searches and many micro-batches.

Stages are units here, and a step is arrays (schedule/arrays.py): passes on a lane of each position,
or on two that take turns, and messages on lanes of their own. These meet as in the simulator, or
are links of a rate and a latency (`Links`). Memory is a formula (balance.py); whoever chooses by
this proves the choice. What comes after the passes of a step, and several pipelines side by side,
are in steps.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from workbench.methods.pipeline.definition import AHEAD, LANES, room
from workbench.methods.pipeline.jitter import Table
from workbench.methods.pipeline.orders import B, F, I, Pass, R, W, held, positions_of
from workbench.schedule.action import COMPUTE, LATER, NET_IN, Action, Kind, lane_kind
from workbench.schedule.arrays import ArrayGraph
from workbench.schedule.build.inbox import taken_from
from workbench.schedule.event_loop import Contention, times
from workbench.schedule.turns import NEVER, Turns, turns_of

IN_FLIGHT = 4
"""Messages on their way to a position in one direction, at most, as in Varuna's simulator."""


class Undisturbed:
    """Lanes that do not disturb each other."""

    def slowdown(self, lane: str, busy: Iterable[str]) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Links:
    """Messages that arrive so long after they were made, and occupy nobody meanwhile."""

    seconds: Sequence[float]
    """From stage s to stage s + 1, or back; of the link between them."""
    in_flight: int = IN_FLIGHT
    places: bool = False
    """Whether a message waits for a place at its receiver, and a pass for one of its outputs, as in
    schedules; Varuna's simulator has any number of both."""
    wire_s: Sequence[float] = ()
    """With places, before those seconds: seconds of a message, its bytes by the link's rate, in
    which the next one waits; none where links have any rate."""


Messages = float | Sequence[float] | Links
"""Seconds of a message that keeps both sides busy, of all or of each link between stages; or links.
"""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a position goes through its list of passes."""

    turns: bool = False
    """Whether a recomputation whose gradient has not come lets the next forward pass go first."""
    early: bool = False
    """Whether a recomputation may begin before its gradient has come."""
    stash: int | None = None
    """Micro-batches of which a stage may hold the input; None for any number."""


STRICT = Rule()
"""In the order of the list, each pass when what it reads is there."""


class Timed(NamedTuple):
    """A pass, and when it runs, in seconds from the beginning of the step."""

    each: Pass
    stage: int
    position: int
    start_s: float
    end_s: float


def end_s(ran: Iterable[Timed]) -> float:
    """Seconds from the first pass of a step to the end of the last.

    >>> from workbench.methods.pipeline.orders import lists
    >>> end_s(timeline(lists("1f1b", 4, 8), [{F: 1.0, B: 2.0}] * 4))
    33.0
    """
    return max(timed.end_s for timed in ran)


def timeline(
    passes: Sequence[Sequence[Pass]],
    seconds: Sequence[Mapping[Kind, float]],
    messages: Messages = 0.0,
    rule: Rule = STRICT,
    draws: Table | None = None,
    contention: Contention | None = None,
    positions: Sequence[int] = (),
) -> list[Timed]:
    """When each pass of a step runs, position by position in the order of their lists.

    `seconds`: stage -> kind of pass -> seconds that a micro-batch takes. `draws` are added to these
    and to messages (jitter.py). `contention` is how lanes of a device disturb each other, which
    they do not where none is given. `positions` of the stages are by default dealt in turn. Raises
    ValueError for lists whose passes wait for each other.
    """
    step = _Step(passes, rule, positions or positions_of(passes))
    links = messages if isinstance(messages, Links) else None
    graph = step.graph(links)
    if links is not None:
        messages = links.seconds
    of_link = [messages] * step.stages if isinstance(messages, float | int) else messages
    wires = (links and links.wire_s) or [0.0] * step.stages
    alone = [seconds[stage][kind] for kind, stage, _ in step.nodes]
    alone += [(of_link if kind else wires)[link] for kind, link, _ in step.messages]
    if draws is not None:
        nodes = [*step.nodes, *step.messages]
        late = [float(draws[kind][at, micro]) if kind else 0.0 for kind, at, micro in nodes]
        alone = [max(0.0, t + d) for t, d in zip(alone, late, strict=True)]
    starts, ends, ended = times(graph, alone, contention or Undisturbed())
    if ended < graph.num_nodes:
        few = "" if rule.stash is None else f" with a stash of {rule.stash}; use a larger one"
        raise ValueError(f"the order deadlocks: its passes wait for each other{few}")
    every = (each for own in passes for each in own)
    return [
        Timed(each, stage, step.positions[stage], start, end)
        for each, (_, stage, _), start, end in zip(every, step.nodes, starts, ends, strict=False)
    ]


class _Step:
    """Nodes and edges of one step."""

    def __init__(
        self, passes: Sequence[Sequence[Pass]], rule: Rule, positions: Sequence[int]
    ) -> None:
        self.rule, self.positions, self.own = rule, positions, held(positions)
        self.stages, self.depth = len(positions), len(passes)
        self.nodes: list[tuple[Kind, int, int]] = []
        """(kind, stage, micro-batch) of each pass, in the order of the lists; messages come behind.
        """
        self.messages: list[tuple[Kind | None, int, int]] = []
        """(kind of what sends it, link, micro-batch) of the nodes of messages; no kind where it is
        on its link's wire."""
        self.bounds = [0]
        for own, stages in zip(passes, self.own, strict=True):
            self.nodes += [(p.kind, stages[p.chunk], p.micro) for p in own]
            self.bounds.append(len(self.nodes))
        micros = 1 + max(micro for _, _, micro in self.nodes)
        self.at = {
            kind: np.full((self.stages, micros), -1, dtype=np.int64) for kind in (F, R, B, I, W)
        }
        for node, (kind, stage, micro) in enumerate(self.nodes):
            self.at[kind][stage, micro] = node
        self.back = np.where(self.at[I] >= 0, self.at[I], self.at[B])
        """Passes that make the gradient of a stage's input."""
        self.last = np.where(self.at[W] >= 0, self.at[W], self.at[B])
        """Passes that read a stage's input, and the gradient of its output, last."""
        again = (self.at[R] >= 0) & (not rule.early)
        self.wants = np.where(again, self.at[R], self.back)
        """Passes that wait for the gradient of a stage's output."""
        self.lanes = [(position, COMPUTE) for position in range(self.depth)]
        self.lane_of = np.repeat(np.arange(self.depth), np.diff(self.bounds))
        if rule.turns:
            self.lanes += [(position, LATER) for position in range(self.depth)]
            later = np.array([kind is not F for kind, _, _ in self.nodes])
            self.lane_of = self.lane_of + self.depth * later
        self.arrivals: np.ndarray = np.full_like(self.back, NEVER)
        """Stage and micro-batch -> the message that brings the gradient of the stage's output."""
        self.held: dict[int, list[int]] = {}
        """Forward pass -> passes of its own position that it waits for, itself or its message."""
        self.behind: dict[int, int] = {}
        """Pass -> the pass of a neighbour that leaves a place for what was sent two before its own
        message: it waits for that."""

    def graph(self, links: Links | None) -> ArrayGraph:
        """The step's arrays."""
        edges = [
            _in_turn(begin + np.flatnonzero(self.lane_of[begin:end] == lane))
            for begin, end in pairwise(self.bounds)
            for lane in dict.fromkeys(self.lane_of[begin:end].tolist())
        ]
        edges += [
            np.stack([one[both], other[both]], axis=1)
            for one, other in ((self.at[F], self.at[R]), (self.at[F], self.back))
            if (both := (one >= 0) & (other >= 0)).any()
        ]
        edges.append(self._stashed())
        crossed = np.diff(self.positions) != 0
        across, within = np.flatnonzero(crossed), np.flatnonzero(~crossed)
        """Links between stages of two positions, whose messages take time, and of one."""
        for send, receive, made, used, freed in (
            (Kind.SEND, Kind.RECV, self.at[F][:-1], self.at[F][1:], self.last[1:]),
            (Kind.SEND_GRAD, Kind.RECV_GRAD, self.back[1:], self.wants[:-1], self.last[:-1]),
        ):
            edges.append(np.stack([made[within].ravel(), used[within].ravel()], axis=1))
            if not across.size:
                continue
            numbered = [(send, link, micro) for link in across for micro in range(made.shape[1])]
            wired = [(None, *one[1:]) for one in numbered] if links else numbered
            self.messages += wired + numbered
            ends = (nodes[across].ravel() for nodes in (made, used, freed))
            arrived, new = self._messages(send, receive, *ends, links)
            edges += new
            if send is Kind.SEND_GRAD:
                self.arrivals[across] = arrived.reshape(made[across].shape)
                for link in within[::-1]:  # its position is sent the gradient of a later output
                    self.arrivals[link] = self.arrivals[link + 1]
        graph = ArrayGraph(lane_keys=self.lanes, lane_of=self.lane_of, edges=np.concatenate(edges))
        if not self.rule.turns:
            return graph
        several = self.stages > self.depth
        return replace(graph, turns=self._turns_of(graph) if several else self._turns())

    def _stashed(self) -> np.ndarray:
        """A forward pass waits for the backward pass that leaves it a place among the inputs."""
        stash = self.rule.stash
        if stash is None or stash >= self.last.shape[1]:
            return np.empty((0, 2), dtype=np.int64)
        return np.stack([self.last[:, :-stash].ravel(), self.at[F][:, stash:].ravel()], axis=1)

    def _messages(
        self, send: Kind, receive: Kind, made: np.ndarray, used: np.ndarray, freed: np.ndarray,
        links: Links | None,
    ) -> tuple[np.ndarray, list[np.ndarray]]:  # fmt: skip
        """Messages of two nodes, which meet; or, where there are links, the second is a latency
        that follows the first."""
        at, count = len(self.lane_of), len(made)
        sends, receives = at + np.arange(count), at + count + np.arange(count)
        sender, receiver = np.searchsorted(self.bounds, [made, used], side="right") - 1
        lanes, first = links.in_flight if links else 1, len(self.lanes)
        placed = links is None or links.places
        taken = first + self.depth + receiver * lanes
        self.lanes += [(position, LANES[send]) for position in range(self.depth)]
        self.lanes += [
            (position, f"{LANES[receive]}.{lane}")
            for position in range(self.depth)
            for lane in range(lanes)
        ]
        waits = [(made, sends)]
        stashes = send is Kind.SEND and (self.at[R] >= 0).any()
        leaves = np.full(count, NEVER)
        for position in range(self.depth):
            into = np.flatnonzero(receiver == position)
            into = into[np.argsort(used[into])]
            taken[into] += np.arange(len(into)) % lanes
            waits.append((receives[into[:-lanes]], receives[into[lanes:]]))
            if placed:
                most = (len(into), room(self.own[position], self.stages)) if stashes else (AHEAD,)
                places = taken_from(used[into].tolist(), freed[into].tolist(), *most)
                leaves[into] = np.where(np.array(places) < 0, NEVER, freed[into][places])
        known = leaves >= 0
        waits.append((leaves[known], (sends if links else receives)[known]))
        if send is Kind.SEND:
            for reader, leaver in zip(used[known].tolist(), leaves[known].tolist(), strict=True):
                self.held.setdefault(reader, []).append(leaver)
        for position in range(self.depth):
            out = np.flatnonzero(sender == position)
            out = out[np.argsort(made[out])]
            waits.append((sends[out[:-1]], sends[out[1:]]))
            if placed:
                waits.append((sends[out[:-AHEAD]], made[out[AHEAD:]]))
            maker, sent = made[out[AHEAD:]].tolist(), leaves[out[:-AHEAD]].tolist()
            self.behind |= {one: left for one, left in zip(maker, sent, strict=True) if left >= 0}
        self.lane_of = np.concatenate([self.lane_of, first + sender, taken])
        edges = [np.stack(pair, axis=1) for pair in (*waits, (receives, used))]
        if links:
            edges.append(np.stack([sends, receives], axis=1))
        else:  # each waits for what the other waits for
            partner = np.arange(at + 2 * count)
            partner[sends], partner[receives] = receives, sends
            met = np.concatenate([np.stack(pair, axis=1) for pair in waits])
            met = met[met[:, 1] >= len(self.nodes)]
            edges.append(np.stack([met[:, 0], partner[met[:, 1]]], axis=1))
        return receives, edges

    def _turns_of(self, graph: ArrayGraph) -> Turns | None:
        """Turns as of a schedule, where positions have several stages, which wait for each other
        through other positions."""
        every = [*self.nodes, *((Kind.SEND, link, micro) for _, link, micro in self.messages)]
        for (stage, micro), node in np.ndenumerate(self.arrivals):
            if node >= 0:
                every[node] = Kind.RECV_GRAD, stage + 1, micro
        lane_of, nodes = self.lane_of.tolist(), range(len(every))
        keys = [
            (position, text if lane_kind(text) == COMPUTE else NET_IN)
            for position, text in self.lanes
        ]
        actions = [
            Action(kind=kind, unit=stage, microbatch=micro, rank=keys[at][0], lane=keys[at][1])
            for (kind, stage, micro), at in zip(every, lane_of, strict=True)
        ]
        lanes: list[list[int]] = [[] for _ in self.lanes]
        references: list[list[tuple[int, int]]] = [[] for _ in nodes]
        for node in nodes[: len(self.nodes)]:
            lanes[lane_of[node]].append(node)
        for before, node in graph.edges.tolist():
            references[node].append((0, before))
        starts, _, ended = times(graph, [1.0] * len(nodes), Undisturbed())
        if ended < len(nodes):  # which taking turns does not help
            return None
        order = sorted(nodes, key=starts.__getitem__)
        return turns_of(actions, self.lanes, lanes, references, order)

    def _turns(self) -> Turns:
        """The two lanes of each position, and who yields to which gradient."""
        count = len(self.lane_of)
        yields = np.full(count, NEVER, dtype=np.int64)
        again = self.at[R] >= 0
        yields[self.at[R][again]] = self.arrivals[again]
        for before, forward in self._stashed().tolist():
            self.held.setdefault(forward, []).append(before)
        for forward, first in self.behind.items():
            if self.nodes[forward][0] is F and first in self.behind:  # of its own position again
                self.held.setdefault(forward, []).append(self.behind[first])
        depth, apart = self.depth, len(self.lanes) - 2 * self.depth
        of_lane = [np.flatnonzero(self.lane_of == lane).tolist() for lane in range(2 * depth)]
        return Turns(
            device_of=[*range(depth), *range(depth), *[NEVER] * apart],
            queues=[*zip(of_lane[:depth], of_lane[depth:], strict=True)],
            goes_on=[False] * count,
            yields_to=yields.tolist(),
            held_by=[self.held.get(node, ()) for node in range(count)],
        )


def _in_turn(nodes: np.ndarray) -> np.ndarray:
    return np.stack([nodes[:-1], nodes[1:]], axis=1)
