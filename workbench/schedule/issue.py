"""In which order one thread may issue what several lanes do, and what has surely ended by then.

On a device work is issued long before it runs, so one thread can serve many lanes, as long as
nothing that it issues earlier waits for what it or another rank issues later. The order is the same
on all ranks: one of all actions, of which each rank issues its own. It follows the passes, and
transfers come right after the pass that they wait for. But a RECV, for which the thread waits until
another rank has issued the message, comes only when something needs it: two ranks that send each
other messages would else take turns.

Messages do not meet here as they do in the simulator (graph.py). Their receiver announces a place
when what its RECV waits for has been issued; the sender waits for that, and the RECV for the
sender. So an announcement is a node of its own.

Knowledge is counted as in order.py, by vector clocks, with one component for each lane of one rank.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

from workbench.schedule.action import COMPUTE, RECEIVES, lane_kind
from workbench.schedule.graph import partners, resolve
from workbench.schedule.schedule import Schedule

ANNOUNCED = ".announced"
"""Ends the name of the lane that announces what comes on another."""

Waits = list[tuple[tuple[int, int], ...]]
"""Node -> (relative step, node) of what it waits for, the one before it on its lane among them."""


class Issue:
    """The nodes of a schedule: its actions, then an announcement for each of its messages."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._actions = schedule, schedule.actions
        self.announcements = {
            i: len(self._actions) + number
            for number, i in enumerate(
                i for i, action in enumerate(self._actions) if action.kind in RECEIVES
            )
        }
        """RECV -> the node that announces it."""
        self.waits = self._waits()

    def _waits(self) -> Waits:
        actions, announcements = self._actions, self.announcements
        index = {action.name: i for i, action in enumerate(actions)}
        sender = partners(self._schedule)
        named = [[resolve(a, text, index) for text in a.after] for a in actions]
        waits = [*named, *([] for _ in announcements)]
        lanes: dict[tuple[int, str], list[int]] = defaultdict(list)
        for i, action in enumerate(actions):
            lanes[action.rank, action.lane].append(i)
            if i in announcements:
                announced, send = announcements[i], index[sender[action.name].name]
                lanes[action.rank, action.lane + ANNOUNCED].append(announced)
                waits[announced] += named[i]
                waits[send].append((0, announced))
                waits[i].append((0, send))
        for nodes in lanes.values():
            waits[nodes[0]].append((-1, nodes[-1]))
            for before, node in zip(nodes, nodes[1:], strict=False):
                waits[node].append((0, before))
        return [tuple(dict.fromkeys(others)) for others in waits]

    def order(self) -> list[int]:
        """All nodes of a step, none before what it waits for: by how many passes come one after the
        other before it, and of those transfers first, which no pass of as many is before. RECVs
        come right before the first that waits for them."""
        missing = [sum(not back for back, _ in others) for others in self.waits]
        followers: list[list[int]] = [[] for _ in self.waits]
        for node, others in enumerate(self.waits):
            for back, other in others:
                if not back:
                    followers[other].append(node)
        computes = [lane_kind(action.lane) == COMPUTE for action in self._actions]
        computes += [False] * len(self.announcements)
        passes = [0] * len(self.waits)
        found, ready = [], deque(node for node, count in enumerate(missing) if not count)
        while ready:
            node = ready.popleft()
            found.append(node)
            for follower in followers[node]:
                passes[follower] = max(passes[follower], passes[node] + computes[node])
                missing[follower] -= 1
                if not missing[follower]:
                    ready.append(follower)
        assert len(found) == len(self.waits), "a schedule that deadlocks passed the validator"
        return self._receive_late(sorted(found, key=lambda n: 2 * passes[n] + computes[n]))

    def _receive_late(self, order: list[int]) -> list[int]:
        found: list[int] = []
        late: set[int] = set()
        for node in order:
            if node in self.announcements:
                late.add(node)
                continue
            needed = [node]
            for one in needed:  # those of before on their lanes, too
                needed += (other for back, other in self.waits[one] if not back and other in late)
            late.difference_update(needed)
            found += dict.fromkeys(reversed(needed))
        return found + [node for node in order if node in late]

    def clocks(self, rank: int) -> Mapping[str, dict[str, int]]:
        """Action of a rank -> lane of that rank -> how many of the lane's actions, counted from the
        beginning of the same step, have surely ended when the action starts; below 0 where some of
        the step before may not have."""
        lanes: dict[str, list[int]] = defaultdict(list)
        for i, action in enumerate(self._actions):
            if action.rank == rank:
                lanes[action.lane].append(i)
        number = {lane: k for k, lane in enumerate(lanes)}
        place = {i: k for actions in lanes.values() for k, i in enumerate(actions)}
        order, sizes = self.order(), [len(actions) for actions in lanes.values()]
        clocks: list[list[int]] = [[-2 * size for size in sizes] for _ in self.waits]
        for _ in range(2):  # what is known of the step before comes from that step's clocks
            before, clocks = clocks, [[]] * len(self.waits)
            for node in order:
                clock = [-2 * size for size in sizes]
                for back, other in self.waits[node]:
                    if back < -1:
                        continue
                    known = clocks[other]
                    if back:
                        known = [c - size for c, size in zip(before[other], sizes, strict=True)]
                    clock = [*map(max, clock, known)]
                    if other in place:
                        lane = number[self._actions[other].lane]
                        at = place[other] + 1 + back * sizes[lane]
                        clock[lane] = max(clock[lane], at)
                clocks[node] = clock
        return {self._actions[i].name: dict(zip(lanes, clocks[i], strict=True)) for i in place}
