"""The most memory any execution of a schedule can occupy at once, found without running one.

At any moment some actions have started and some have ended. What can have happened is exactly what
is closed under *happens before*, so the peak is the heaviest closed set: a buffer's bytes count
where it is taken and are subtracted where it is freed. A heaviest closed set is a minimum cut
(Picard, *Maximal closure of a graph*, 1976), and the cut reads naturally: bytes freed by an action
can be given again to any action that surely starts after it has ended. So

    peak = all bytes taken - the most bytes that can be given again.

The second term is a flow from frees to takes, found by augmenting paths (Ford and Fulkerson, 1956).
Where one lane does all the taking, as compute does on a device, what a take may be given the next
one may be given too: no chains are needed, and the peak is the largest difference between what has
been taken and what has surely been freed. Adding up every buffer that is "not surely free" instead
would count twice what follows one another.

Two steps show all there is, since a buffer is taken again only after it was freed (occupancy.py),
and as many more as a buffer of several copies may be taken before; buffers that may outlive these,
so that more steps could meet, count as permanent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from workbench.schedule.graph import Graph
from workbench.schedule.order import Order


@dataclass(frozen=True)
class Peak:
    """The worst moment of one tier of one rank."""

    nbytes: int
    held: tuple[str, ...]
    """The buffers occupied then, largest first, without those occupied for the whole run."""


def worst_case(graph: Graph, order: Order, tier: str, rank: int = 0) -> Peak:
    """The peak of one tier of one rank; `graph` spans the steps that a proof needs."""
    schedule = graph.schedule
    sizes = {
        name: buffer.nbytes
        for name, buffer in schedule.buffers.items()
        if (buffer.tier, buffer.rank) == (tier, rank)
        and buffer.slot is None
        and not buffer.permanent
        and buffer.nbytes
    }
    total = schedule.static_bytes(tier, rank)
    if not sizes:
        return Peak(nbytes=total, held=())
    window = 1 + max(schedule.buffers[name].copies for name in sizes)
    outliving = _outliving(graph, order, sizes, window)
    total += sum(sizes.pop(name) * schedule.buffers[name].copies for name in outliving)
    takes, frees = _ends(graph, order, sizes, window)
    if len({order.lane_of[node] for node, _ in takes}) == 1:
        nbytes, started, ended = _in_a_row(order, takes, frees)
    else:
        flow = _Flow(order, frees)
        nbytes = sum(wanted - flow.give(node, wanted) for node, wanted in takes)
        started, ended = flow.worst_moment()
    held = outliving + _held(graph, sizes, started, ended)
    held.sort(key=lambda name: (-schedule.buffers[name].nbytes, name))
    return Peak(nbytes=total + nbytes, held=tuple(held))


def _outliving(graph: Graph, order: Order, sizes: dict[str, int], window: int) -> list[str]:
    """Buffers of the first step that may still be occupied when the first step after the window
    takes its own."""
    n = len(graph.schedule.actions)
    first_take: dict[int, int] = {}
    takes_of: dict[str, int] = {}
    freed_by: dict[str, int] = {}
    for i, action in enumerate(graph.schedule.actions):
        if graph.lane_of[i] not in first_take and not sizes.keys().isdisjoint(action.takes):
            first_take[graph.lane_of[i]] = window * n + i
        takes_of.update(dict.fromkeys(action.takes, action.lag))
        for name in action.frees:
            if name in sizes:
                freed_by[name] = i
    found = []
    for name, i in freed_by.items():
        ended = i + (graph.schedule.actions[i].lag - takes_of[name]) * n
        if not all(order.before(ended, take) for take in first_take.values()):
            found.append(name)
    return found


def _ends(
    graph: Graph, order: Order, sizes: dict[str, int], window: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(node, bytes) of everything that takes in a window of steps, and of everything that frees
    those bytes."""
    actions = graph.schedule.actions
    n, taken = len(actions), {}
    taken_by: dict[str, int] = {}
    for i, action in enumerate(actions):
        if nbytes := sum(sizes.get(name, 0) for name in action.takes):
            taken[i] = nbytes
        taken_by.update(dict.fromkeys(action.takes, i))
    freed: dict[int, dict[int, int]] = {}
    """Action -> steps between the take and it -> bytes that it frees."""
    for i, action in enumerate(actions):
        for name in action.frees:
            if name in sizes:
                after = action.lag - actions[taken_by[name]].lag
                own = freed.setdefault(i, {})
                own[after] = own.get(after, 0) + sizes[name]
    takes = [
        (node, taken[node % n])
        for node in order.topological
        if node < window * n and node % n in taken
    ]
    frees = []
    for node in order.topological:
        step, i = divmod(node, n)
        if i in freed:
            nbytes = sum(b for after, b in freed[i].items() if 0 <= step - after < window)
            if nbytes:
                frees.append((node, nbytes))
    return takes, frees


def _in_a_row(
    order: Order, takes: list[tuple[int, int]], frees: list[tuple[int, int]]
) -> tuple[int, list[int], list[int]]:
    """The peak where one lane does all the taking: its bytes, the takes that have started then, and
    the frees that have surely ended.
    """
    lanes: dict[int, list[tuple[int, int]]] = {}
    for node, nbytes in frees:
        lanes.setdefault(order.lane_of[node], []).append((node, nbytes))
    ended = dict.fromkeys(lanes, 0)  # lane -> so many of its frees have surely ended
    occupied, most, worst = 0, 0, (0, ended.copy())
    for place, (take, nbytes) in enumerate(takes, start=1):
        occupied += nbytes
        clock = order.clocks[take]
        for lane, waiting in lanes.items():
            k = ended[lane]
            while k < len(waiting) and order.position[waiting[k][0]] < clock[lane]:
                occupied -= waiting[k][1]
                k += 1
            ended[lane] = k
        if occupied > most:
            most, worst = occupied, (place, ended.copy())
    count, ended = worst
    started = [take for take, _ in takes[:count]]
    return most, started, [node for lane in lanes for node, _ in lanes[lane][: ended[lane]]]


def _held(graph: Graph, sizes: dict[str, int], started: list[int], ended: list[int]) -> list[str]:
    """The buffers that these takes have occupied and these frees have not given back."""
    held = Counter(name for node in started for name in graph.action(node).takes)
    for node in ended:
        held.subtract(name for name in graph.action(node).frees if name in sizes)
    return [name for name in held.elements() if name in sizes]


class _Flow:
    """Freed bytes given to later takes.

    Lanes run in order, so the frees a take may draw on are a prefix of every lane, and those that a
    failed search has seen are prefixes too. Numbers stand for the edges of the network.
    """

    def __init__(self, order: Order, frees: list[tuple[int, int]]) -> None:
        self.order = order
        self.lanes = sorted({order.lane_of[node] for node, _ in frees})
        self.nodes: list[list[int]] = [[] for _ in self.lanes]
        self.left: list[list[int]] = [[] for _ in self.lanes]
        """Lane -> free -> its bytes not given to anybody yet."""
        for node, nbytes in frees:
            lane = self.lanes.index(order.lane_of[node])
            self.nodes[lane].append(node)
            self.left[lane].append(nbytes)
        self.positions = [[order.position[node] for node in nodes] for nodes in self.nodes]
        self.given: list[list[dict[int, int]]] = [[{} for _ in nodes] for nodes in self.nodes]
        """Lane -> free -> take -> bytes."""
        self.skip = [list(range(len(nodes) + 1)) for nodes in self.nodes]
        """Lane -> k -> a number <= k, leading to the last of the first k frees that has bytes."""
        self.hopeless = [0] * len(self.lanes)
        """Lane -> so many frees from its start are of no use to a take that still needs bytes."""
        self.unserved: set[int] = set()
        """Takes that need bytes, or would if others were served."""
        self.limits: dict[int, list[int]] = {}
        """Take -> how many frees of every lane have surely ended when it starts."""

    def give(self, take: int, nbytes: int) -> int:
        """Find up to `nbytes` freed bytes for a take; returns how many there are."""
        clock = self.order.clocks[take]
        self.limits[take] = [
            bisect_left(positions, clock[lane])
            for lane, positions in zip(self.lanes, self.positions, strict=True)
        ]
        found = 0
        while found < nbytes:
            path = self._search(take)
            if not path:
                break
            found += self._push(path, nbytes - found)
        return found

    def _search(self, take: int) -> list[tuple[int, int, int]]:
        """A chain of (take, lane, free) in which each take gets the free of the next one.

        The last free has bytes left. Empty when there is no such chain.
        """
        came_from: dict[int, tuple[int, int, int] | None] = {take: None}
        seen = self.hopeless.copy()
        queue = [take]
        for current in queue:
            for lane, limit in enumerate(self.limits[current]):
                free = self._last_with_bytes(lane, limit)
                if free >= 0:
                    path = [(current, lane, free)]
                    while (link := came_from[path[-1][0]]) is not None:
                        path.append(link)
                    return path[::-1]
            for lane, limit in enumerate(self.limits[current]):
                for free in reversed(range(seen[lane], limit)):  # late ones reach further
                    for other in self.given[lane][free]:
                        if other not in came_from:
                            came_from[other] = (current, lane, free)
                            queue.append(other)
                seen[lane] = max(seen[lane], limit)
        self.unserved.update(queue)
        self.hopeless = seen
        return []

    def _last_with_bytes(self, lane: int, limit: int) -> int:
        skip = self.skip[lane]
        while skip[limit] != limit:
            skip[limit] = skip[skip[limit]]
            limit = skip[limit]
        return limit - 1

    def _push(self, path: list[tuple[int, int, int]], wanted: int) -> int:
        """Move bytes along a chain; returns how many its first take got."""
        losers = [take for take, _, _ in path[1:]]
        _, lane, free = path[-1]
        amount = min(wanted, self.left[lane][free])
        for (_, lane, free), loser in zip(path, losers, strict=False):
            amount = min(amount, self.given[lane][free][loser])
        for take, lane, free in path:
            given = self.given[lane][free]
            given[take] = given.get(take, 0) + amount
        for (_, lane, free), loser in zip(path, losers, strict=False):
            given = self.given[lane][free]
            given[loser] -= amount
            if not given[loser]:
                del given[loser]
        _, lane, free = path[-1]
        self.left[lane][free] -= amount
        if not self.left[lane][free]:
            self.skip[lane][free + 1] = free
        return amount

    def worst_moment(self) -> tuple[list[int], list[int]]:
        """The takes that have started, and the frees that have surely ended, when all `unserved`
        takes have just started.
        """
        ended = [
            node
            for nodes, count in zip(self.nodes, self.hopeless, strict=True)
            for node in nodes[:count]
        ]
        return list(self.unserved), ended
