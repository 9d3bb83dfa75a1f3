"""References to tensors that a device has yet to read for the last time.

An activation is made on one stream and read for the last time on another: by a copy to the host, or
to another device. The host issues that read long before the device does it. torch's `record_stream`
would free the tensor only when the host sees that the read's event has completed, so a host that
runs ahead would hold more than the plan proved. A plan says exactly when the memory is free: once
the lane that made the tensor has waited for the lane that read it, as the next action that takes
the memory must. A reference is kept here until that wait. On a CPU a read has ended when its
action returns, and no reference is kept.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

import torch

from workbench.runtime.passes.bundle import Bundle
from workbench.schedule.action import Action
from workbench.schedule.issue import Issue
from workbench.schedule.schedule import Schedule


class DeferredFrees:
    """Bundles of one rank whose last read is issued, by the lane that made them."""

    def __init__(self, schedule: Schedule, rank: int, device: torch.device) -> None:
        self._ended_at_once = device.type == "cpu"
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
        """Keep a bundle made on lane `made_on`; `action` is the last to read it."""
        if made_on != action.lane and not self._ended_at_once:
            end = step * self._sizes[action.lane] + self._number[action.name] + 1
            self._held[made_on][action.lane].append((end, bundle))

    def release(self, action: Action, step: int) -> None:
        """Let go of bundles made on the lane of `action` whose last read that lane has waited for.
        The action begins, after all waits of its lane."""
        ended = self._clocks[action.name]
        for lane, held in self._held[action.lane].items():
            while held and held[0][0] <= step * self._sizes[lane] + ended[lane]:
                held.popleft()

    def clear(self) -> None:
        """Let go of all bundles; every lane has ended."""
        for lanes in self._held.values():
            for held in lanes.values():
                held.clear()
