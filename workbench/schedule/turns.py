"""Lanes that take turns on one device, where the order of passes is settled while the step runs.

Most schedules give a device one order of passes. Varuna's (EuroSys 2022) leaves some of it open: a
recomputation whose gradient has not come lets the next forward pass go first. So forward passes are
on one lane of a device, recomputations and backward passes on another one. Each lane keeps its own
order. Between the two, the device takes the pass that stands first in the list, unless that pass
yields: then the first one of another lane, of the step at hand. What the device has chosen it waits
for, whatever comes meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEVER = -1
"""Instead of an action that is waited for."""


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Which lanes share devices, and who yields. Actions are those of one step, by number; their
    numbers are their order in the list."""

    device_of: Sequence[int]
    """Lane -> its device, or -1 where it shares none."""
    queues: Sequence[Sequence[Sequence[int]]]
    """Device -> its lanes, each with its actions in order."""
    yields_to: Sequence[int]
    """Action -> the action whose end it wants before it takes its turn, or NEVER."""
    held_by: Sequence[Sequence[int]]
    """Action -> actions of other lanes of its device that it waits for: until they have ended the
    device does not choose it, for it would wait for itself."""


class Devices:
    """The turns of a run of several steps."""

    def __init__(self, turns: Turns, num_actions: int, num_nodes: int) -> None:
        self._turns, self._actions, self._nodes = turns, num_actions, num_nodes
        self._started = [[0] * len(lanes) for lanes in turns.queues]
        self._chosen = [NEVER] * len(turns.queues)
        """Device -> the node that it waits for."""
        self._busy = [False] * len(turns.queues)
        self.free = [*range(len(turns.queues))]
        """Devices that may begin something now."""

    def device(self, lane: int) -> int:
        """Of a lane, or -1."""
        return self._turns.device_of[lane]

    def end(self, device: int) -> None:
        """What runs there has ended."""
        self._busy[device] = False
        self.free.append(device)

    def begin(self, missing: Sequence[int], ended: Sequence[bool]) -> list[int]:
        """Nodes that begin now. `missing`: node -> how many it waits for; `ended`: node -> whether
        it has."""
        begun = []
        for device in dict.fromkeys(self.free):
            if self._busy[device]:
                continue
            if self._chosen[device] == NEVER:
                self._chosen[device] = self._choose(device, ended)
            node = self._chosen[device]
            if node != NEVER and not missing[node]:
                self._chosen[device], self._busy[device] = NEVER, True
                begun.append(node)
        self.free.clear()
        return begun

    def _choose(self, device: int, ended: Sequence[bool]) -> int:
        n, turns = self._actions, self._turns
        heads = []
        for lane, actions in enumerate(turns.queues[device]):
            step, place = divmod(self._started[device][lane], len(actions))
            first, action = step * n, actions[place]
            held = first + action < self._nodes and any(
                not ended[first + other] for other in turns.held_by[action]
            )
            if first + action < self._nodes and not held:
                heads.append((first + action, lane))
        if not heads:
            return NEVER
        node, lane = min(heads)
        first = node // n * n
        wanted = turns.yields_to[node - first]
        if wanted != NEVER and not ended[first + wanted]:
            others = [head for head in heads if node < head[0] < first + n]
            node, lane = min(others, default=(node, lane))
        self._started[device][lane] += 1
        return node
