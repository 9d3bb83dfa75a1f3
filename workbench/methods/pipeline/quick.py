"""How long a step of a pipeline takes, without its schedule: for searches and many micro-batches.

Stages are units here, and a step is arrays (schedule/arrays.py): passes on a lane of each rank, or
on two that take turns, and messages on lanes of their own. These meet as in the simulator, or are
links of a rate and a latency (`Links`). Memory is a formula (balance.py); whoever chooses by this
proves the choice. What comes after the passes of a step, and several pipelines side by side, are in
steps.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from workbench.methods.pipeline.draft import AHEAD, LANES
from workbench.methods.pipeline.jitter import Table
from workbench.methods.pipeline.orders import B, F, I, Pass, R, W
from workbench.schedule.action import COMPUTE, LATER, Kind
from workbench.schedule.arrays import ArrayGraph
from workbench.schedule.build.inbox import taken_from
from workbench.schedule.event_loop import Contention, times
from workbench.schedule.turns import NEVER, Turns

IN_FLIGHT = 4
"""Messages that a stage may have on their way in one direction; Varuna's simulator has as many."""


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
    wire_s: Sequence[float] = ()
    """Before that: seconds of a message, its bytes by the link's rate, in which the next one waits;
    none where links have any rate."""


Messages = float | Sequence[float] | Links
"""Seconds of a message that keeps both sides busy, of all or of each link between stages; or links.
"""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a rank goes through its list of passes."""

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
    rank: int
    start_s: float
    end_s: float


def step_seconds(
    passes: Sequence[Sequence[Pass]],
    seconds: Sequence[Mapping[Kind, float]],
    messages: Messages = 0.0,
    rule: Rule = STRICT,
    draws: Table | None = None,
    contention: Contention | None = None,
) -> float:
    """Seconds from the first pass of a step to the end of the last; arguments as of `timeline`.

    >>> from workbench.methods.pipeline.orders import lists
    >>> step_seconds(lists("1f1b", 4, 8), [{F: 1.0, B: 2.0}] * 4)
    33.0
    """
    ran = timeline(passes, seconds, messages, rule, draws, contention)
    return max(timed.end_s for timed in ran)


def timeline(
    passes: Sequence[Sequence[Pass]],
    seconds: Sequence[Mapping[Kind, float]],
    messages: Messages = 0.0,
    rule: Rule = STRICT,
    draws: Table | None = None,
    contention: Contention | None = None,
) -> list[Timed]:
    """When each pass of a step runs, rank by rank in the order of their lists.

    `seconds`: stage -> kind of pass -> seconds that a micro-batch takes. `draws` are added to these
    and to messages (jitter.py). `contention` is how lanes of a rank disturb each other, which they
    do not where none is given. Raises ValueError for lists whose passes wait for each other.
    """
    step = _Step(passes, rule)
    graph = step.graph(messages if isinstance(messages, Links) else None)
    alone = [seconds[stage][kind] for kind, stage, _ in step.nodes]
    if isinstance(messages, Links):
        of_link = messages.seconds
    else:
        of_link = [messages] * step.stages if isinstance(messages, float | int) else messages
    alone += [of_link[link] for _, link, _ in step.messages]
    if draws is not None:
        nodes = [*step.nodes, *step.messages]
        alone = [max(0.0, t + float(draws[n[0]][n[1:]])) for t, n in zip(alone, nodes, strict=True)]
    if step.wires:
        alone += [messages.wire_s[link] for link in step.wires]
    starts, ends, ended = times(graph, alone, contention or Undisturbed())
    if ended < graph.num_nodes:
        raise ValueError("the order deadlocks: its passes wait for each other")
    own = ((rank, each) for rank, those in enumerate(passes) for each in those)
    return [
        Timed(each, rank, start, end)
        for (rank, each), start, end in zip(own, starts, ends, strict=False)
    ]


class _Step:
    """Nodes and edges of one step."""

    def __init__(self, passes: Sequence[Sequence[Pass]], rule: Rule) -> None:
        self.ranks, self.rule = len(passes), rule
        self.nodes: list[tuple[Kind, int, int]] = []
        """(kind, stage, micro-batch) of each pass, rank by rank in order; messages come behind."""
        self.messages: list[tuple[Kind, int, int]] = []
        """(kind of what sends it, link, micro-batch) of the nodes of messages."""
        self.wires: list[int] = []
        """Link of each node that is a message on its wire; they come last."""
        self.bounds = [0]
        for rank, own in enumerate(passes):
            self.nodes += [(p.kind, p.chunk * self.ranks + rank, p.micro) for p in own]
            self.bounds.append(len(self.nodes))
        self.stages = 1 + max(stage for _, stage, _ in self.nodes)
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
        self.lanes = [(rank, COMPUTE) for rank in range(self.ranks)]
        self.lane_of = np.repeat(np.arange(self.ranks), np.diff(self.bounds))
        if rule.turns:
            self.lanes += [(rank, LATER) for rank in range(self.ranks)]
            later = np.array([kind is not F for kind, _, _ in self.nodes])
            self.lane_of = self.lane_of + self.ranks * later
        self.arrivals: np.ndarray = np.full_like(self.back, NEVER)
        """Stage and micro-batch -> the message that brings the gradient of the stage's output."""
        self.held: dict[int, list[int]] = {}
        """Forward pass -> passes of its own rank that it waits for, itself or its message."""

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
        wires: list[tuple[Kind, np.ndarray, np.ndarray]] = []
        for send, receive, made, used in (
            (Kind.SEND, Kind.RECV, self.at[F][:-1], self.at[F][1:]),
            (Kind.SEND_GRAD, Kind.RECV_GRAD, self.back[1:], self.wants[:-1]),
        ):
            if self.ranks == 1 or not made.size:
                edges.append(np.stack([made.ravel(), used.ravel()], axis=1))
                continue
            numbered = [(send, link, micro) for link, micro in np.ndindex(made.shape)]
            if links is not None:
                self.messages += numbered
                arrived, new = self._linked(send, made, used, links.in_flight)
                if any(links.wire_s):
                    wires.append((send, made, arrived))
            else:
                self.messages += 2 * numbered
                freed = self.last[1:] if send is Kind.SEND else self.last[:-1]
                arrived, new = self._met(send, receive, made.ravel(), used.ravel(), freed.ravel())
            edges += new
            if send is Kind.SEND_GRAD:
                self.arrivals[:-1] = arrived.reshape(made.shape)
        for send, made, arrived in wires:
            edges += self._wired(send, made, arrived, links.in_flight)
        return ArrayGraph(
            lane_keys=self.lanes,
            lane_of=self.lane_of,
            edges=np.concatenate(edges),
            turns=self._turns() if self.rule.turns else None,
        )

    def _stashed(self) -> np.ndarray:
        """A forward pass waits for the backward pass that leaves it a place among the inputs."""
        stash = self.rule.stash
        if stash is None or stash >= self.last.shape[1]:
            return np.empty((0, 2), dtype=np.int64)
        return np.stack([self.last[:, :-stash].ravel(), self.at[F][:, stash:].ravel()], axis=1)

    def _linked(
        self, send: Kind, made: np.ndarray, used: np.ndarray, in_flight: int
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Messages of a latency: a node each, on one of so many lanes of its link."""
        at, links = len(self.lane_of), len(made)
        messages = at + np.arange(made.size).reshape(made.shape)
        edges = [np.stack([made.ravel(), messages.ravel()], axis=1)]
        edges.append(np.stack([messages.ravel(), used.ravel()], axis=1))
        lane_of = np.empty(made.shape, dtype=np.int64)
        for link in range(links):
            rank = (link if send is Kind.SEND else link + 1) % self.ranks
            order = np.argsort(made[link])
            for place in range(in_flight):
                lane_of[link, order[place::in_flight]] = len(self.lanes)
                self.lanes.append((rank, f"{LANES[send]}.{link}.{place}"))
                edges.append(_in_turn(messages[link, order[place::in_flight]]))
        self.lane_of = np.concatenate([self.lane_of, lane_of.ravel()])
        return messages, edges

    def _wired(
        self, send: Kind, made: np.ndarray, messages: np.ndarray, in_flight: int
    ) -> list[np.ndarray]:
        """Time that messages take of their link's wire, one by one: a node each, before that of
        their latency."""
        wires = len(self.lane_of) + np.arange(made.size).reshape(made.shape)
        edges = []
        for link, own in enumerate(wires):
            rank = (link if send is Kind.SEND else link + 1) % self.ranks
            order = np.argsort(made[link])
            sent, come = own[order], messages[link, order]
            edges += [np.stack([made[link, order], sent], axis=1), _in_turn(sent)]
            edges.append(np.stack([sent, come], axis=1))
            edges.append(np.stack([come[:-in_flight], sent[in_flight:]], axis=1))
            self.wires += [link] * len(own)
            self.lane_of = np.append(self.lane_of, [len(self.lanes)] * len(own))
            self.lanes.append((rank, f"{LANES[send]}.{link}.wire"))
        return edges

    def _met(
        self, send: Kind, receive: Kind, made: np.ndarray, used: np.ndarray, freed: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Messages of two nodes that meet; their receivers have few places."""
        at, count = len(self.lane_of), len(made)
        sends, receives = at + np.arange(count), at + count + np.arange(count)
        ranks = np.searchsorted(self.bounds, np.stack([made, used]), side="right") - 1
        numbers = (len(self.lanes) + k * self.ranks + ranks[k] for k in (0, 1))
        self.lane_of = np.concatenate([self.lane_of, *numbers])
        self.lanes += [(rank, LANES[k]) for k in (send, receive) for rank in range(self.ranks)]
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
            leaves = freed[into][before[known]]
            waits.append((leaves, receives[into[known]]))
            if send is Kind.SEND:
                for reader, leaver in zip(used[into[known]].tolist(), leaves.tolist(), strict=True):
                    self.held.setdefault(reader, []).append(leaver)
        edges = [np.stack(pair, axis=1) for pair in (*waits, (receives, used))]
        partner = np.arange(at + 2 * count)
        partner[sends], partner[receives] = receives, sends
        met = np.concatenate([np.stack(pair, axis=1) for pair in waits])
        met = met[met[:, 1] >= len(self.nodes)]  # each waits for what the other waits for
        edges.append(np.stack([met[:, 0], partner[met[:, 1]]], axis=1))
        return receives, edges

    def _turns(self) -> Turns:
        """The two lanes of each rank, and who yields to which gradient."""
        count = len(self.lane_of)
        yields = np.full(count, NEVER, dtype=np.int64)
        again = self.at[R] >= 0
        yields[self.at[R][again]] = self.arrivals[again]
        for before, forward in self._stashed().tolist():
            self.held.setdefault(forward, []).append(before)
        ranks, apart = self.ranks, len(self.lanes) - 2 * self.ranks
        of_lane = [np.flatnonzero(self.lane_of == lane).tolist() for lane in range(2 * ranks)]
        return Turns(
            device_of=[*range(ranks), *range(ranks), *[NEVER] * apart],
            queues=[(of_lane[rank], of_lane[ranks + rank]) for rank in range(ranks)],
            goes_on=[False] * count,
            yields_to=yields.tolist(),
            held_by=[self.held.get(node, ()) for node in range(count)],
        )


def _in_turn(nodes: np.ndarray) -> np.ndarray:
    return np.stack([nodes[:-1], nodes[1:]], axis=1)
