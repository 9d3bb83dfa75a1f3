"""A rank's device goes to one of two lanes' threads, where lanes take turns (schedule/turns.py).

A thread takes the device before each of its actions and gives it away when the action is issued.
The one who gives it away chooses who is next, by the simulator's function, so nobody waits for a
choice: whoever has the device is the only one who changes what stands here.

Without a GPU a pass has ended when it is issued. With one both lanes have one stream, and a pass is
chosen when the pass before the running one has ended on the device: early enough to be issued in
time, and late enough to know whether its gradient has come (on four H100s a step takes 0.3 % less
than the simulator says).
"""

from __future__ import annotations

import threading

import torch

from workbench.runtime.executor.board import Failed
from workbench.runtime.executor.completions import Completions
from workbench.schedule.action import COMPUTE, LATER
from workbench.schedule.graph import unroll
from workbench.schedule.schedule import Schedule
from workbench.schedule.turns import NEVER, Turns, next_lane

LANES = (COMPUTE, LATER)
WHY = "another lane failed"


def device_turns(schedule: Schedule, rank: int, completions: Completions) -> DeviceTurns | None:
    """The turns of a rank's device; None where its passes have one order."""
    graph = unroll(schedule)
    if graph.turns is None or (rank, LATER) not in graph.lane_keys:
        return None
    device = graph.turns.device_of[graph.lane_keys.index((rank, LATER))]
    return DeviceTurns(graph.turns, device, completions)


class DeviceTurns:
    """The turns of one device's lanes."""

    def __init__(self, turns: Turns, device: int, completions: Completions) -> None:
        """`device` is one of `turns`; `completions` tell what has ended."""
        self._turns, self._device, self._completions = turns, device, completions
        self._queues = turns.queues[device]
        self._mine = {lane: threading.Event() for lane in LANES}
        """Lane -> set while the device is its own."""
        self._stopped = False
        self.cores = torch.get_num_threads()
        """Processor cores for the thread that has the device."""
        self.begin(0)

    def begin(self, step: int) -> None:
        """Let the first lane begin a step; nobody may be at work."""
        self._step, self._begun = step, [0] * len(self._queues)
        self._ends: list[torch.cuda.Event | None] = []
        """Ends of the last two passes that were begun: of the action that each issued last."""
        self._stopped = False
        for event in self._mine.values():
            event.clear()
        self._choose()

    def take(self, lane: str) -> None:
        """Wait until the device is this lane's. Raises Failed when all stop."""
        self._mine[lane].wait()
        if self._stopped:
            raise Failed(WHY)
        self._mine[lane].clear()

    def give(self, end: torch.cuda.Event | None) -> None:
        """The action of the lane that has the device is issued; with a GPU, `end` is its end."""
        self._ends[-1] = end
        if self._begun == [*map(len, self._queues)]:
            self._step, self._begun = self._step + 1, [0] * len(self._queues)
        self._choose()

    def end_step(self, step: int) -> None:
        """Wait until all passes of a step are issued. Raises Failed when all stop."""
        for actions in self._queues:
            self._completions.of(step)[actions[-1]].wait()
        if self._stopped:
            raise Failed(WHY)

    def stop(self) -> None:
        """Wake whoever waits, now and later."""
        self._stopped = True
        for event in self._mine.values():
            event.set()

    def _choose(self) -> None:
        goes_on = any(
            done < len(actions) and self._turns.goes_on[actions[done]]
            for actions, done in zip(self._queues, self._begun, strict=True)
        )
        if not goes_on:
            if len(self._ends) == 2 and (before := self._ends.pop(0)) is not None:
                before.synchronize()
            self._ends.append(None)
        lane = next_lane(self._turns, self._device, self._begun, self._has_ended)
        assert lane != NEVER, "a schedule whose passes wait for themselves passed the validator"
        self._begun[lane] += 1
        self._mine[LANES[lane]].set()

    def _has_ended(self, action: int) -> bool:
        """Whether an action of the step has. Passes of this device have, when they are issued: what
        is chosen next comes behind them."""
        completion = (self._completions.of(self._step) or {}).get(action)
        if completion is None or not completion.issued:
            return False
        own = any(action in actions for actions in self._queues)
        return own or completion.cuda is None or completion.cuda.query()
