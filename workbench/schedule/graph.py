"""The dependency graph of a schedule unrolled over several steps.

The validator, the simulator and the executor need the same three things: who precedes whom on a
lane, who waits for whom, and an order in which everything can run. Node ``step * n + i`` is action
i of that step, n the number of actions. Steps are alike, so edges are kept once per action, as
distances between nodes; a graph of a million nodes costs no more than its schedule. References to
steps before the first are satisfied from the start (the model is loaded and updated).
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

from workbench.schedule.action import (
    COMPUTE,
    LATER,
    MEETING,
    RECEIVES,
    SENDS,
    Action,
    format_name,
    lane_kind,
    parse_name,
)
from workbench.schedule.schedule import Schedule
from workbench.schedule.turns import Turns, turns_of


class ScheduleError(ValueError):
    """A schedule that must not be run; the message names the action at fault."""


@dataclass(frozen=True)
class Graph:
    """`schedule` unrolled over `steps`."""

    schedule: Schedule
    steps: int
    lane_keys: list[tuple[int, str]]
    """Lane number -> (rank, lane)."""
    lane_of: list[int]
    """Action -> lane number."""
    lane_actions: list[list[int]]
    """Lane number -> its actions in order."""
    references: list[tuple[tuple[int, int], ...]]
    """Action -> what it waits for, as (step relative to its own, action); no lane predecessor.
    Those that meet wait for what each of them waits for."""

    @property
    def num_actions(self) -> int:
        """Nodes of a step."""
        return len(self.schedule.actions)

    @property
    def num_nodes(self) -> int:
        """Actions of all steps."""
        return self.num_actions * self.steps

    def action(self, node: int) -> Action:
        """The action of a node, whatever its step."""
        return self.schedule.actions[node % len(self.schedule.actions)]

    @cached_property
    def turns(self) -> Turns | None:
        """Lanes that share devices, where some do. Raises ScheduleError for a deadlock of such as
        the list orders."""
        lanes = Counter(rank for rank, lane in self.lane_keys if lane_kind(lane) == COMPUTE)
        if max(lanes.values(), default=0) < 2:
            return None
        order: list[int] = []
        if any(lane == LATER for _, lane in self.lane_keys):
            order = [node for node in topological(self) if node < self.num_actions]
        actions, lanes = self.schedule.actions, (self.lane_keys, self.lane_actions)
        return turns_of(actions, *lanes, self.references, order)

    @cached_property
    def waits(self) -> list[tuple[int, ...]]:
        """Node -> the nodes it waits for, without its lane predecessor."""
        n = len(self.schedule.actions)
        return [
            tuple((step + back) * n + j for back, j in references if step + back >= 0)
            for step in range(self.steps)
            for references in self.references
        ]

    @cached_property
    def crossing(self) -> list[tuple[tuple[int, int], ...]]:
        """Action -> those of its references that the order of its lane does not keep anyway."""
        lane_of = self.lane_of
        return [
            tuple([
                (back, j)
                for back, j in references
                if lane_of[j] != lane or not (back < 0 or j < i)
            ])
            for i, (lane, references) in enumerate(zip(lane_of, self.references, strict=True))
        ]  # fmt: skip

    @cached_property
    def followers(self) -> list[tuple[int, ...]]:
        """Action -> distances from its node to those that wait for it, its lane successor among
        them.

        A distance that leads past the last node belongs to a step that is not unrolled.
        """
        n = len(self.schedule.actions)
        distances: list[list[int]] = [[] for _ in range(n)]
        for i, references in enumerate(self.crossing):
            for back, j in references:
                distances[j].append(i - j - back * n)
        for actions in self.lane_actions:
            for i, successor in zip(actions, actions[1:], strict=False):
                distances[i].append(successor - i)
            distances[actions[-1]].append(n + actions[0] - actions[-1])
        return [tuple(d) for d in distances]

    @cached_property
    def flat_followers(self) -> tuple[array[int], array[int]]:
        """`followers` one after the other, as 64-bit numbers: where those of each action begin, and
        the last ones end; and the distances."""
        first = accumulate(map(len, self.followers), initial=0)
        return array("q", first), array("q", chain.from_iterable(self.followers))

    def missing(self) -> list[int]:
        """Node -> how many nodes it waits for, as `followers` count them; the caller's own."""
        return self._missing.copy()

    def release(self, node: int, missing: list[int]) -> list[int]:
        """The nodes that waited for this one last, now that it has ended; `missing` is brought up
        to date."""
        ready = []
        for distance in self.followers[node % len(self.schedule.actions)]:
            follower = node + distance
            if follower < len(missing):
                missing[follower] -= 1
                if not missing[follower]:
                    ready.append(follower)
        return ready

    @cached_property
    def _missing(self) -> list[int]:
        first = {actions[0] for actions in self.lane_actions}
        depth = max((-back for refs in self.crossing for back, _ in refs), default=0)
        counts: list[int] = []
        for step in range(self.steps):
            if step <= max(depth, 1):  # from here on every step is like the one before
                one_step = [
                    sum([step + back >= 0 for back, _ in references]) + (step > 0 or i not in first)
                    for i, references in enumerate(self.crossing)
                ]
            counts += one_step
        return counts


def unroll(schedule: Schedule, steps: int = 1, in_flight: int = 0) -> Graph:
    """Lay `steps` repetitions of the schedule end to end. Messages meet; or, where so many that
    come to one lane may be `in_flight`, a RECV is a latency behind its SEND that occupies nobody.

    Raises ScheduleError for a name that occurs twice and for a dependency that does not exist.
    """
    if steps < 1:
        raise ValueError(f"a schedule runs for at least 1 step, got {steps}")
    index: dict[str, int] = {}
    for i, action in enumerate(schedule.actions):
        name = action.name
        if name in index:
            raise ScheduleError(f"{name} stands twice in the schedule {schedule.name!r}")
        index[name] = i
    lane_number: dict[tuple[int, str], int] = {}
    came = Counter()
    lane_of = []
    for action in schedule.actions:
        key = action.rank, action.lane
        if in_flight and action.kind in RECEIVES:
            came[key] += 1
            key = action.rank, f"{action.lane}.{came[key] % in_flight}"
        lane_of.append(lane_number.setdefault(key, len(lane_number)))
    lane_actions: list[list[int]] = [[] for _ in lane_number]
    for i, lane in enumerate(lane_of):
        lane_actions[lane].append(i)
    references = [
        tuple([resolve(action, text, index) for text in action.after])
        for action in schedule.actions
    ]
    if schedule.num_ranks > 1:
        _meet(schedule, lane_actions, references, flies=bool(in_flight))
    return Graph(
        schedule=schedule,
        steps=steps,
        lane_keys=list(lane_number),
        lane_of=lane_of,
        lane_actions=lane_actions,
        references=references,
    )


def _meet(
    schedule: Schedule,
    lane_actions: list[list[int]],
    references: list[tuple[tuple[int, int], ...]],
    *,
    flies: bool,
) -> None:
    """A message, and a collective, begins when all who take part are there: each of them waits for
    what the others wait for, and for what the others' lanes do before. A message that `flies` is
    sent when its RECV has a place, and the RECV begins when it has been sent.
    """
    groups: dict[tuple, list[int]] = {}
    for i, action in enumerate(schedule.actions):
        if action.kind in MEETING:
            groups.setdefault(action.meeting, []).append(i)
    predecessor = {
        i: (0, before) if before is not None else (-1, actions[-1])
        for actions in lane_actions
        for before, i in zip([None, *actions], actions, strict=False)
    }
    for group in groups.values():
        if flies and schedule.actions[group[0]].kind in (*SENDS, *RECEIVES):
            send, receive = sorted(group, key=lambda i: schedule.actions[i].kind in RECEIVES)
            references[send] += references[receive]
            references[receive] += ((0, send),)
            continue
        among = {(0, i) for i in group}
        own = {i: [wait for wait in references[i] if wait not in among] for i in group}
        for i in group:
            others = [w for other in group if other != i for w in (*own[other], predecessor[other])]
            references[i] = tuple(dict.fromkeys([*own[i], *others]))


def partners(schedule: Schedule) -> dict[str, Action]:
    """The other side of each message."""
    sides: dict[tuple, list[Action]] = {}
    for action in schedule.actions:
        if action.kind in (*SENDS, *RECEIVES):
            sides.setdefault(action.meeting, []).append(action)
    return {one.name: other for a, b in sides.values() for one, other in ((a, b), (b, a))}


def resolve(action: Action, text: str, index: dict[str, int]) -> tuple[int, int]:
    """(relative step, action) of one name in `after`."""
    if text in index:
        return 0, index[text]
    if text.endswith("@-1") and text[:-3] in index:
        return -1, index[text[:-3]]
    try:
        ref = parse_name(text)
    except ValueError as error:
        raise ScheduleError(f"{action.name} waits for what has no name: {error}") from None
    target = format_name(ref.kind, ref.unit, ref.microbatch, turn=ref.turn, rank=ref.rank)
    if target not in index:
        raise ScheduleError(f"{action.name} waits for {text}, which is not in the schedule")
    if ref.step > 0:
        raise ScheduleError(f"{action.name} waits for {text}, which lies in the future")
    return ref.step, index[target]


def topological(graph: Graph) -> list[int]:
    """An order in which all nodes can run.

    Raises ScheduleError naming a ring of actions that wait for each other when there is none.
    """
    missing = graph.missing()
    ready = [node for node in range(len(graph.schedule.actions)) if not missing[node]]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        ready += graph.release(node, missing)
    if len(order) < graph.num_nodes:
        raise ScheduleError("the schedule deadlocks: " + _ring(graph, set(order)))
    return order


def _ring(graph: Graph, done: set[int]) -> str:
    """The actions of one cycle. Edges never lead back a step, so a cycle stays within one."""
    n = len(graph.schedule.actions)
    node = next(i for i in range(graph.num_nodes) if i not in done)
    path: list[tuple[int, str]] = []
    seen: dict[int, int] = {}
    while node not in seen:
        seen[node] = len(path)
        name = graph.action(node).name
        waiting = [other for other in graph.waits[node] if other not in done]
        if waiting:
            node = waiting[0]
            path.append((node, f"{name} waits for {graph.action(node).name}"))
        else:
            step, i = divmod(node, n)
            lane = graph.lane_actions[graph.lane_of[i]]
            place = lane.index(i)
            node = (step if place else step - 1) * n + lane[place - 1]
            path.append((node, f"{name} queues behind {graph.action(node).name}"))
    return ", ".join(text for _, text in path[seen[node] :])
