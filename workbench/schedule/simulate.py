"""What a schedule will do, before it does it: a list scheduler over lanes.

Each lane runs its actions in order; an action starts when its lane is free and everything it waits
for has ended. A cost model says how long each action takes alone and how much it slows down while
other lanes of its rank are busy (copies, host updates and compute share memory bandwidth and
cores), so a running action's rate changes when a neighbour lane becomes busy or idle. One heap
holds the next endings. An event costs as much as its lane has neighbours, so the whole is linear in
actions (times the logarithm of the lanes), and nothing depends on chance: equal inputs give equal
bits.

    >>> from workbench.schedule import Action, Kind, Schedule
    >>> class Seconds:
    ...     def seconds(self, action): return 2.0 if action.kind is Kind.BACKWARD else 1.0
    ...     def slowdown(self, lane, busy): return 1.0
    >>> F, B, U = Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE
    >>> step = Schedule(name="one unit", num_units=1, num_microbatches=1, actions=(
    ...     Action(kind=F, unit=0, microbatch=0, lane="compute", after=("U0@-1",)),
    ...     Action(kind=B, unit=0, microbatch=0, lane="compute"),
    ...     Action(kind=U, unit=0, lane="host", after=("B0.0",))))
    >>> events = simulate(step, Seconds(), steps=2).events
    >>> [(e.name, e.step, e.start_s, e.end_s) for e in events[2:4]]
    [('U0', 0, 3.0, 4.0), ('F0.0', 1, 4.0, 5.0)]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import isfinite
from typing import Protocol

from workbench.schedule.action import COMPUTE, Action, lane_kind
from workbench.schedule.graph import Graph, topological, unroll
from workbench.schedule.schedule import TIERS, Schedule


class Costs(Protocol):
    """How long work takes."""

    def seconds(self, action: Action) -> float:
        """Duration of the action with every other lane idle."""

    def slowdown(self, lane: str, busy: Iterable[str]) -> float:
        """Factor >= 1 by which an action of lane kind `lane` slows beside these busy lane kinds.

        `busy` names a kind once for each of its busy lanes; the lane itself is not among them.
        Asked once for every combination that occurs.
        """


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, or will: the row of every timeline, simulated or measured."""

    name: str
    kind: str
    unit: int
    microbatch: int | None
    rank: int
    lane: str
    step: int
    start_s: float
    end_s: float
    nbytes: int = 0


@dataclass(frozen=True)
class Simulation:
    """Predicted events and what follows from them."""

    events: list[Event]
    """Step by step, in the order of the schedule's actions."""
    steps: int
    peak_bytes: dict[int, dict[str, int]]
    """Rank -> tier -> largest occupied bytes in this timeline."""
    step_ends_s: list[float]
    """When the last compute action of each step ended."""

    @property
    def makespan_s(self) -> float:
        return max((event.end_s for event in self.events), default=0.0)

    @property
    def step_seconds(self) -> float:
        """Steady-state time of a step: the mean distance of step ends, the first step left out."""
        return _steady(self.step_ends_s)

    def busy_seconds(self, lane: str, rank: int = 0) -> float:
        """Mean busy time per step of all lanes of a kind."""
        total = sum(
            e.end_s - e.start_s for e in self.events if e.rank == rank and lane_kind(e.lane) == lane
        )
        return total / self.steps


def simulate(schedule: Schedule, costs: Costs, *, steps: int = 3) -> Simulation:
    """Run `steps` repetitions of the schedule under the cost model.

    Raises ScheduleError when the schedule deadlocks, ValueError for a cost that is no duration.
    """
    start, end = _times(unroll(schedule, steps), costs)
    n = len(schedule.actions)
    names = [action.name for action in schedule.actions]
    events = [
        Event(
            names[i],
            action.kind.value,
            action.unit,
            action.microbatch,
            action.rank,
            action.lane,
            step,
            start[step * n + i],
            end[step * n + i],
            action.nbytes,
        )
        for step in range(steps)
        for i, action in enumerate(schedule.actions)
    ]
    peak_bytes = {
        rank: {
            tier: max(nbytes for _, nbytes in memory_timeline(schedule, events, tier, rank))
            for tier in TIERS
        }
        for rank in range(schedule.num_ranks)
    }
    return Simulation(
        events=events,
        steps=steps,
        peak_bytes=peak_bytes,
        step_ends_s=_step_ends(schedule, steps, end),
    )


def step_seconds(graph: Graph, costs: Costs) -> float:
    """The steady-state time of a step that `simulate` finds in as many steps as the graph has, in
    seconds, without its events and memory: for those who compare many schedules.
    """
    _, end = _times(graph, costs)
    return _steady(_step_ends(graph.schedule, graph.steps, end))


def _step_ends(schedule: Schedule, steps: int, end: list[float]) -> list[float]:
    """When the last compute action of each step ended."""
    n = len(schedule.actions)
    compute = [i for i, a in enumerate(schedule.actions) if lane_kind(a.lane) == COMPUTE]
    return [max((end[step * n + i] for i in compute), default=0.0) for step in range(steps)]


def _steady(step_ends: list[float]) -> float:
    """The mean distance of step ends, the first step left out where there are others."""
    if len(step_ends) == 1:
        return step_ends[0]
    return (step_ends[-1] - step_ends[0]) / (len(step_ends) - 1)


def _times(graph: Graph, costs: Costs) -> tuple[list[float], list[float]]:
    """Start and end of every node, in seconds."""
    n, total = len(graph.schedule.actions), graph.num_nodes
    lane_of, followers, missing = graph.lane_of, graph.followers, graph.missing()
    alone = _durations(graph.schedule, costs)
    rank_of = [rank for rank, _ in graph.lane_keys]
    slowdowns = _Slowdowns(graph, costs)
    known = slowdowns.known  # asked at every event
    start, end = [0.0] * total, [0.0] * total
    running = [0] * len(rank_of)  # lane -> its node
    left = [0.0] * len(rank_of)  # lane -> seconds of work left at `since`, were there no slowdown
    since = [0.0] * len(rank_of)
    factor = [0.0] * len(rank_of)  # lane -> present slowdown, 0 for what has only just started
    plan = [0] * len(rank_of)  # of the endings planned for a lane, only the last one holds
    busy = dict.fromkeys(rank_of, 0)  # rank -> its busy lanes, as bits
    heap: list[tuple[float, int, int]] = []
    ready = [node for node in range(n) if not missing[node]]
    now, num_ended = 0.0, 0
    changed: set[int] = set()  # ranks where a lane became busy or idle just now
    while True:
        for node in ready:
            lane = lane_of[node % n]
            start[node] = since[lane] = now
            running[lane], left[lane], factor[lane] = node, alone[node % n], 0.0
            busy[rank_of[lane]] |= 1 << lane
            changed.add(rank_of[lane])
        for rank in changed:
            for lane, slowdown in known.get(busy[rank]) or slowdowns.of(busy[rank]):
                if slowdown != factor[lane]:
                    if factor[lane]:
                        left[lane] = max(0.0, left[lane] - (now - since[lane]) / factor[lane])
                    since[lane], factor[lane] = now, slowdown
                    plan[lane] += 1
                    heappush(heap, (now + left[lane] * slowdown, lane, plan[lane]))
        ready, changed = [], set()
        while heap and (not changed or heap[0][0] == now):  # everything that ends at one instant
            time, lane, planned = heappop(heap)
            if planned != plan[lane]:
                continue
            node, now = running[lane], time
            end[node] = now
            num_ended += 1
            plan[lane] += 1
            busy[rank_of[lane]] &= ~(1 << lane)
            changed.add(rank_of[lane])
            for distance in followers[node % n]:
                follower = node + distance
                if follower < total:
                    missing[follower] -= 1
                    if not missing[follower]:
                        ready.append(follower)
        if not changed:
            break
    if num_ended < total:
        topological(graph)  # says who waits for whom
    return start, end


def _durations(schedule: Schedule, costs: Costs) -> list[float]:
    found = [costs.seconds(action) for action in schedule.actions]
    if not (all(map(isfinite, found)) and min(found, default=0.0) >= 0):
        for action, seconds in zip(schedule.actions, found, strict=True):
            if not (isfinite(seconds) and seconds >= 0):
                raise ValueError(
                    f"{action.name} costs {seconds} s; a duration is finite and not negative"
                )
    return found


class _Slowdowns:
    """The cost model's slowdowns, asked once for each set of busy lanes."""

    def __init__(self, graph: Graph, costs: Costs) -> None:
        self._kinds = [lane_kind(lane) for _, lane in graph.lane_keys]
        self._costs = costs
        self.known: dict[int, list[tuple[int, float]]] = {}
        """What `of` gave: set of busy lanes -> (lane, factor) of each."""

    def of(self, busy: int) -> list[tuple[int, float]]:
        """(lane, factor) of each lane in a set of busy lanes of one rank."""
        if busy not in self.known:
            lanes = [lane for lane in range(len(self._kinds)) if busy >> lane & 1]
            self.known[busy] = [
                (lane, self._ask(lane, [other for other in lanes if other != lane]))
                for lane in lanes
            ]
        return self.known[busy]

    def _ask(self, lane: int, others: list[int]) -> float:
        kind, beside = self._kinds[lane], [self._kinds[other] for other in others]
        factor = self._costs.slowdown(kind, beside)
        if not (isfinite(factor) and factor >= 1):
            raise ValueError(
                f"lane {kind} beside {', '.join(beside) or 'none'} slows down by {factor}; "
                f"a slowdown is finite and at least 1"
            )
        return factor


def memory_timeline(
    schedule: Schedule, events: Iterable[Event], tier: str, rank: int = 0
) -> list[tuple[float, int]]:
    """(seconds, bytes occupied from then on) after each change of one tier of one rank, in time
    order.

    Events may come in any order, simulated or measured. What ends at an instant frees its memory
    before what starts there takes its own.
    """

    def size(names: Iterable[str]) -> int:
        buffers = (schedule.buffers[name] for name in names)
        return sum(
            b.nbytes
            for b in buffers
            if (b.tier, b.rank) == (tier, rank) and b.slot is None and not b.permanent
        )

    sizes = {action.name: (size(action.takes), size(action.frees)) for action in schedule.actions}
    moving = {name: sizes_ for name, sizes_ in sizes.items() if any(sizes_)}
    changes: list[tuple[float, int]] = []
    for event in events if moving else ():
        if event.name in moving:
            taken, freed = moving[event.name]
            changes.append((event.start_s, taken))
            changes.append((event.end_s, -freed))
    occupied = schedule.static_bytes(tier, rank)
    timeline = [(0.0, occupied)]
    for at, delta in sorted(changes):
        occupied += delta
        if at == timeline[-1][0]:
            timeline[-1] = (at, occupied)
        elif delta:
            timeline.append((at, occupied))
    return timeline
