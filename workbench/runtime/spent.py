"""What lanes of a device have read for the last time, until its memory may be used again.

An activation is made on one lane and read for the last time on another: a copy to the host, or to
another device. On the host that read is issued long before the device does it. The allocator's own
answer is to keep the memory until it sees that the device is done, however far the host is ahead by
then, so that a run holds more than was planned; and a plan says exactly when it is free again: when
the lane that made it has waited for the one that read it, as whoever takes the memory next must.
Until then it is held here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

from workbench.runtime.bundle import Bundle
from workbench.schedule.action import Action
from workbench.schedule.issue import Issue
from workbench.schedule.schedule import Schedule


class Spent:
    """Bundles of one rank that are read, by the lane that made them."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        lanes: dict[str, list[str]] = defaultdict(list)
        for action in schedule.actions:
            if action.rank == rank:
                lanes[action.lane].append(action.name)
        self._sizes = {lane: len(names) for lane, names in lanes.items()}
        self._number = {name: k for names in lanes.values() for k, name in enumerate(names)}
        self._clocks: Mapping[str, dict[str, int]] = Issue(schedule).clocks(rank)
        self._held: dict[str, dict[str, deque[tuple[int, Bundle]]]] = {
            lane: {other: deque() for other in lanes if other != lane} for lane in lanes
        }

    def hold(self, bundle: Bundle, made_on: str, action: Action, step: int) -> None:
        """`action` is the last to read what was made on a lane."""
        if made_on != action.lane:
            end = step * self._sizes[action.lane] + self._number[action.name] + 1
            self._held[made_on][action.lane].append((end, bundle))

    def release(self, action: Action, step: int) -> None:
        """An action begins, before which its lane has waited for all that it waits for: let go of
        what was made on that lane and has been read by then."""
        ended = self._clocks[action.name]
        for lane, held in self._held[action.lane].items():
            while held and held[0][0] <= step * self._sizes[lane] + ended[lane]:
                held.popleft()

    def clear(self) -> None:
        """Let go of all; every lane has ended."""
        for lanes in self._held.values():
            for held in lanes.values():
                held.clear()
