"""Simulates a schedule: a list scheduler over lanes.

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

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from workbench.schedule.action import COMPUTE, Action, lane_kind
from workbench.schedule.event_loop import Contention, times
from workbench.schedule.graph import Graph, topological, unroll
from workbench.schedule.schedule import TIERS, Schedule


class Costs(Contention, Protocol):
    """How long work takes."""

    def seconds(self, action: Action) -> float:
        """Duration of the action with every other lane idle."""


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
        """Seconds from the beginning to the end of the last action."""
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


def simulate(schedule: Schedule, costs: Costs, *, steps: int = 3, in_flight: int = 0) -> Simulation:
    """Run `steps` repetitions of the schedule under the cost model; `in_flight` as of `unroll`.
    Work that lags is done only for these steps: the pipeline fills, and drains at the end.

    Raises ScheduleError when the schedule deadlocks, ValueError for a cost that is no duration.
    """
    graph = unroll(schedule, steps + schedule.lag, in_flight)
    start, end = _times(graph, costs)
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
            start[node],
            end[node],
            action.nbytes,
        )
        for step in range(steps)
        for i, action in enumerate(schedule.actions)
        for node in ((step + action.lag) * n + i,)
    ]
    memory = Occupied.of(schedule)
    peak_bytes = {
        rank: {tier: max(nbytes for _, nbytes in memory.line(events, tier, rank)) for tier in TIERS}
        for rank in range(schedule.num_ranks)
    }
    return Simulation(
        events=events,
        steps=steps,
        peak_bytes=peak_bytes,
        step_ends_s=_step_ends(graph, end, steps),
    )


def step_seconds(graph: Graph, costs: Costs) -> float:
    """The steady-state time of a step that `simulate` finds in as many steps as the graph has, in
    seconds, without its events and memory: for those who compare many schedules.
    """
    _, end = _times(graph, costs)
    return _steady(_step_ends(graph, end, graph.steps - graph.schedule.lag))


def _step_ends(graph: Graph, end: list[float], steps: int) -> list[float]:
    """When the last compute action of each step ended."""
    n, actions = len(graph.schedule.actions), graph.schedule.actions
    lanes = zip(graph.lane_keys, graph.lane_actions, strict=True)
    last = [own[-1] for (_, lane), own in lanes if lane_kind(lane) == COMPUTE]
    if graph.schedule.lag:  # the end of a lane's turn is not the end of a step's work
        last = [i for i, action in enumerate(actions) if lane_kind(action.lane) == COMPUTE]
    return [
        max((end[(step + actions[i].lag) * n + i] for i in last), default=0.0)
        for step in range(steps)
    ]


def _steady(step_ends: list[float]) -> float:
    """The mean distance of step ends, the first step left out where there are others."""
    if len(step_ends) == 1:
        return step_ends[0]
    return (step_ends[-1] - step_ends[0]) / (len(step_ends) - 1)


def _times(graph: Graph, costs: Costs) -> tuple[list[float], list[float]]:
    """Start and end of every node, in seconds."""
    alone = _durations(graph.schedule, costs)
    if lag := graph.schedule.lag:
        steps = range(graph.steps - lag)
        alone = [
            seconds if step - action.lag in steps else 0.0
            for step in range(graph.steps)
            for seconds, action in zip(alone, graph.schedule.actions, strict=True)
        ]
    start, end, num_ended = times(graph, alone, costs)
    if num_ended < graph.num_nodes:
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


@dataclass(frozen=True, kw_only=True)
class Occupied:
    """Memory of a schedule, by which events of its actions tell how full each tier is."""

    budgets: dict[str, int]
    """Tier -> bytes that it may hold."""
    always: list[tuple[str, int, int]]
    """(tier, rank, bytes) that are held for the whole run."""
    changes: list[tuple[str, int, dict[str, tuple[int, int]]]]
    """(tier, rank, action -> bytes that it takes and that it frees), of places that change."""

    @classmethod
    def of(cls, schedule: Schedule) -> Occupied:
        """A schedule's memory."""
        sizes = {
            name: (b.tier, b.rank, b.nbytes)
            for name, b in schedule.buffers.items()
            if b.slot is None and not b.permanent
        }
        moving: dict[tuple[str, int], dict[str, tuple[int, int]]] = defaultdict(dict)
        for action in schedule.actions:
            for way, names in enumerate((action.takes, action.frees)):
                for tier, rank, nbytes in filter(None, map(sizes.get, names)):
                    here = moving[tier, rank]
                    taken, freed = here.get(action.name, (0, 0))
                    here[action.name] = (taken, freed + nbytes) if way else (taken + nbytes, freed)
        places = [(tier, rank) for tier in TIERS for rank in range(schedule.num_ranks)]
        always = [(*place, nbytes) for place in places if (nbytes := schedule.static_bytes(*place))]
        changes = [(*place, here) for place, here in moving.items()]
        return cls(budgets=dict(schedule.budgets), always=always, changes=changes)

    def line(self, events: Iterable[Event], tier: str, rank: int = 0) -> list[tuple[float, int]]:
        """(seconds, bytes occupied from then on) after each change of one tier of one rank, in time
        order.

        Events may come in any order, simulated or measured. What ends at an instant frees its
        memory before what starts there takes its own.
        """
        moving = next((here for *place, here in self.changes if place == [tier, rank]), {})
        changes: list[tuple[float, int]] = []
        for event in events if moving else ():
            if event.name in moving:
                taken, freed = moving[event.name]
                changes.append((event.start_s, taken))
                changes.append((event.end_s, -freed))
        occupied = sum(nbytes for *place, nbytes in self.always if place == [tier, rank])
        line = [(0.0, occupied)]
        for at, delta in sorted(changes):
            occupied += delta
            if at == line[-1][0]:
                line[-1] = (at, occupied)
            elif delta:
                line.append((at, occupied))
        return line


def memory_timeline(
    schedule: Schedule, events: Iterable[Event], tier: str, rank: int = 0
) -> list[tuple[float, int]]:
    """`Occupied.line` of a schedule."""
    return Occupied.of(schedule).line(events, tier, rank)
