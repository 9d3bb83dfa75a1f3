"""When every action of a schedule starts and ends: the loop of the simulator (simulate.py).

It is here twice, to the same bits: in Python, to be read, and for machines without a compiler; and
in C++ (event_loop.cpp), since planners simulate hundreds of schedules before they answer.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import accumulate, chain
from math import isfinite
from pathlib import Path
from typing import Protocol

from workbench.core import native
from workbench.schedule.action import lane_kind
from workbench.schedule.arrays import ArrayGraph
from workbench.schedule.graph import Graph
from workbench.schedule.turns import Devices

SOURCE = Path(__file__).with_suffix(".cpp")
MOST_LANES = 64
"""Most lanes of a rank, for the compiled loop: a set of busy lanes is one number there."""
ASK = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int32, ctypes.c_uint64)

Times = tuple[list[float], list[float], int]
"""Start and end of every node, in seconds, and how many nodes ended: less than all of them where
some wait for each other."""


class Contention(Protocol):
    """How much lanes of one rank disturb each other."""

    def slowdown(self, lane: str, busy: Iterable[str]) -> float:
        """Factor >= 1 by which an action of lane kind `lane` slows beside these busy lane kinds.

        `busy` names a kind once for each of its busy lanes; the lane itself is not among them.
        Asked once for every combination that occurs.
        """


def times(graph: Graph | ArrayGraph, alone: list[float], contention: Contention) -> Times:
    """`alone` is how long each action takes with every other lane idle, in seconds; or each node,
    where steps differ.

    Raises ValueError for a slowdown that is none.
    """
    slowdowns = Slowdowns(graph, contention)
    return compiled(graph, alone, slowdowns) or in_python(graph, alone, slowdowns)


def in_python(graph: Graph | ArrayGraph, alone: list[float], slowdowns: Slowdowns) -> Times:
    """Compute `times` in Python; see there for arguments and result."""
    n, total = graph.num_actions, graph.num_nodes
    lane_of, missing = graph.lane_of, graph.missing()
    rank_of, lanes_of = slowdowns.rank_of, slowdowns.lanes_of
    known: dict[int, list[tuple[int, float]]] = {}  # busy lanes of a rank -> (lane, slowdown)
    start, end = [0.0] * total, [0.0] * total
    running = [0] * len(rank_of)  # lane -> its node
    left = [0.0] * len(rank_of)  # lane -> seconds of work left at `since`, were there no slowdown
    since = [0.0] * len(rank_of)
    factor = [0.0] * len(rank_of)  # lane -> present slowdown, 0 for what has only just started
    plan = [0] * len(rank_of)  # of the endings planned for a lane, only the last one holds
    busy = [0] * len(lanes_of)  # rank -> its busy lanes, as bits
    heap: list[tuple[float, int, int]] = []
    ready = [node for node in range(n) if not missing[node]]
    now, num_ended = 0.0, 0
    changed: set[int] = set()  # ranks where a lane became busy or idle just now
    devices = Devices(graph.turns, n, total) if graph.turns is not None else None
    ended = [False] * total
    if devices is not None:
        ready = [node for node in ready if devices.device(lane_of[node % n]) < 0]
    while True:
        for node in ready:
            lane = lane_of[node % n]
            start[node] = since[lane] = now
            running[lane], left[lane], factor[lane] = node, alone[node % len(alone)], 0.0
            busy[rank_of[lane]] |= 1 << lane
            changed.add(rank_of[lane])
        for rank in changed:
            if (now_busy := busy[rank]) not in known:
                lanes = [lane for lane in lanes_of[rank] if now_busy >> lane & 1]
                known[now_busy] = [(lane, slowdowns.of(lane, lanes)) for lane in lanes]
            for lane, slowdown in known[now_busy]:
                if slowdown != factor[lane]:
                    if factor[lane]:
                        left[lane] = max(0.0, left[lane] - (now - since[lane]) / factor[lane])
                    since[lane], factor[lane] = now, slowdown
                    plan[lane] += 1
                    heappush(heap, (now + left[lane] * slowdown, lane, plan[lane]))
        ready, changed = [], set()
        if devices is not None:
            while heap and heap[0][2] != plan[heap[0][1]]:
                heappop(heap)
            if not heap or heap[0][0] > now:  # all that ends now has ended
                ready = devices.begin(missing, ended)
                if ready:
                    continue
        while heap and (not changed or heap[0][0] == now):  # everything that ends at one instant
            time, lane, planned = heappop(heap)
            if planned != plan[lane]:
                continue
            node, now = running[lane], time
            end[node], ended[node] = now, True
            num_ended += 1
            plan[lane] += 1
            busy[rank_of[lane]] &= ~(1 << lane)
            changed.add(rank_of[lane])
            released = graph.release(node, missing)
            if devices is not None:
                if (device := devices.device(lane)) >= 0:
                    devices.end(device)
                theirs = [devices.device(lane_of[other % n]) for other in released]
                devices.free += [each for each in theirs if each >= 0]
                released = [o for o, each in zip(released, theirs, strict=True) if each < 0]
            ready += released
        if not changed:
            return start, end, num_ended


def compiled(graph: Graph | ArrayGraph, alone: list[float], slowdowns: Slowdowns) -> Times | None:
    """As `in_python`; None where it cannot be compiled, or a rank has too many lanes."""
    loop = _loop()
    if loop is None or max(map(len, slowdowns.lanes_of), default=0) > MOST_LANES:
        return None
    bit_of = {lane: bit for lanes in slowdowns.lanes_of for bit, lane in enumerate(lanes)}
    failures: list[BaseException] = []

    @ASK
    def ask(lane: int, busy: int) -> float:
        beside = slowdowns.lanes_of[slowdowns.rank_of[lane]]
        try:
            return slowdowns.of(lane, [each for each in beside if busy >> bit_of[each] & 1])
        except BaseException as error:
            failures.append(error)
            return 0.0

    start, end = (array("d", bytes(8 * graph.num_nodes)) for _ in range(2))
    given = (
        array("i", graph.lane_of), array("d", alone), *graph.flat_followers,
        array("i", slowdowns.rank_of), array("i", map(bit_of.get, range(len(graph.lane_keys)))),
        array("i", graph.missing()), *_taking_turns(graph),
    )  # fmt: skip
    sizes = graph.num_actions, graph.num_nodes, len(graph.lane_keys), len(slowdowns.lanes_of)
    pointers = [each.buffer_info()[0] for each in (*given, start, end)]
    turns = graph.turns
    taking = (len(turns.queues), bool(turns.places)) if turns is not None else (0, 0)
    num_ended = loop(
        *sizes, len(alone), *pointers[:7], *taking, *pointers[7:-2], ask, *pointers[-2:]
    )
    if failures:
        raise failures[0]
    return start.tolist(), end.tolist(), num_ended


def _taking_turns(graph: Graph | ArrayGraph) -> list[array]:
    """The graph's turns as the compiled loop takes them."""
    turns = graph.turns
    if turns is None:
        return [array("i"), *(array("q") for _ in range(7))]
    of_device = {d: iter(lanes) for d, lanes in enumerate(turns.queues)}
    lanes = [next(of_device[d]) if d >= 0 else () for d in turns.device_of]
    flat = [array("i", turns.device_of)]
    for rows in (lanes, turns.held_by):
        flat.append(array("q", accumulate(map(len, rows), initial=0)))
        flat.append(array("q", chain.from_iterable(rows)))
    flat[3:3] = array("q", turns.goes_on), array("q", turns.yields_to)
    flat.append(array("q", turns.places))
    return flat


class Slowdowns:
    """The cost model's slowdowns, by the numbers of lanes."""

    def __init__(self, graph: Graph | ArrayGraph, contention: Contention) -> None:
        self._kinds = [lane_kind(lane) for _, lane in graph.lane_keys]
        self._contention = contention
        numbers: dict[int, int] = {}
        self.rank_of = [numbers.setdefault(rank, len(numbers)) for rank, _ in graph.lane_keys]
        """Lane -> its rank, counted among those that have lanes."""
        self.lanes_of: list[list[int]] = [[] for _ in numbers]
        """Rank -> its lanes."""
        for lane, rank in enumerate(self.rank_of):
            self.lanes_of[rank].append(lane)

    def of(self, lane: int, busy: list[int]) -> float:
        """The factor of a lane while these of its rank are busy, itself among them."""
        kind, beside = self._kinds[lane], [self._kinds[other] for other in busy if other != lane]
        factor = self._contention.slowdown(kind, beside)
        if not (isfinite(factor) and factor >= 1):
            raise ValueError(
                f"lane {kind} beside {', '.join(beside) or 'none'} slows down by {factor}; "
                f"a slowdown is finite and at least 1"
            )
        return factor


@functools.cache
def _loop() -> Callable[..., int] | None:
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    takes = (*[number] * 5, *[pointer] * 7, *[number] * 2, *[pointer] * 8, ASK, pointer, pointer)
    return native.function(SOURCE, "workbench_times", takes, number)
