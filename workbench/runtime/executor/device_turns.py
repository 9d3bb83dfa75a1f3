"""A rank's device goes to one lane's thread at a time, where lanes take turns (schedule/turns.py).

A thread takes the device before each of its actions and gives it away when the action is issued.
The one who gives it away chooses who is next, by the simulator's functions, so nobody waits for a
choice: of the list's passes (`ListTurns`) whoever has the device is the only one who changes what
stands here. Of passes that are ready (`ReadyTurns`) there may be none; then whoever tells of
something else chooses. What is skipped, of steps that there are not, takes its turn, too.

Without a GPU a pass has ended when it is issued. With one all lanes of passes have one stream, and
a pass is chosen when the pass before the running one has ended on the device: early enough to be
issued in time, and late enough to know what has come (on four H100s a step of Varuna's takes 0.3 %
less than the simulator says).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from workbench.runtime.executor.board import Failed
from workbench.runtime.executor.completions import Completions
from workbench.runtime.executor.lane_threads import Refs
from workbench.schedule.graph import unroll
from workbench.schedule.schedule import Schedule
from workbench.schedule.turns import NEVER, Turns, first_ready, next_lane

WHY = "another lane failed"


def device_turns(
    schedule: Schedule, rank: int, completions: Completions, waits: Refs
) -> DeviceTurns:
    """The turns of a rank's device. `waits` of each action for others of its rank."""
    graph = unroll(schedule)
    device_of = graph.turns.device_of if graph.turns is not None else ()
    own = {
        text: device
        for (at, text), device in zip(graph.lane_keys, device_of, strict=False)
        if at == rank and device != NEVER
    }
    if not own:
        return DeviceTurns()
    given = graph.turns, next(iter(own.values())), [*own], completions
    return ReadyTurns(*given, waits) if graph.turns.places else ListTurns(*given)


class DeviceTurns:
    """No turns: passes of the rank have one order."""

    cores = 1
    """Processor cores for the thread that has the device."""

    def __contains__(self, lane: str) -> bool:
        """Whether a lane is among those that take turns."""
        return False

    def begin(self, step: int) -> None:
        """Begin a segment at a step; nobody may be at work."""

    def ask(self, end: int) -> None:
        """Let lanes begin steps before `end`."""

    def take(self, lane: str) -> None:
        """Wait until the device is this lane's, if it takes turns. Raises Failed when all stop."""

    def wants_end(self, lane: str) -> bool:
        """Whether an action of a GPU's lane is told of when it has ended there, not when it is
        issued."""
        return False

    def told(self, lane: str, end: torch.cuda.Event | None) -> None:
        """Others are told of an action. If its lane has the device, that is free for others, and
        `end` is the end on a GPU."""

    def end_step(self, step: int) -> None:
        """Wait until all passes of a step are issued that end with it. Raises Failed when all
        stop."""

    def stop(self) -> None:
        """Wake whoever waits, now and later."""


class LaneTurns(DeviceTurns):
    """Turns of several lanes."""

    def __init__(
        self, turns: Turns, device: int, lanes: Sequence[str], completions: Completions
    ) -> None:
        """`device` is one of `turns`, whose queues are of these lanes; `completions` tell what has
        ended."""
        self._turns, self._device, self._completions = turns, device, completions
        self._queues, self._lanes = turns.queues[device], lanes
        self._mine = {lane: threading.Event() for lane in lanes}
        """Lane -> set while the device is its own."""
        self._stopped = False
        self.cores = torch.get_num_threads()
        self.begin(0)

    def __contains__(self, lane: str) -> bool:
        return lane in self._mine

    def begin(self, step: int) -> None:
        self._step, self._begun = step, [0] * len(self._queues)
        self._ends: list[torch.cuda.Event | None] = []
        """Ends of the last two passes that were begun: of the action that each issued last."""
        self._stopped = False
        for event in self._mine.values():
            event.clear()

    def take(self, lane: str) -> None:
        if lane not in self._mine:
            return
        self._mine[lane].wait()
        if self._stopped:
            raise Failed(WHY)
        self._mine[lane].clear()

    def stop(self) -> None:
        self._stopped = True
        for event in self._mine.values():
            event.set()

    def _choose(self, lane: int) -> None:
        """The device is a lane's."""
        self._begun[lane] += 1
        self._mine[self._lanes[lane]].set()


class ListTurns(LaneTurns):
    """Turns by the list, with yields. A device ends a step before it begins the next."""

    def begin(self, step: int) -> None:
        super().begin(step)
        self._next()

    def told(self, lane: str, end: torch.cuda.Event | None) -> None:
        if lane not in self:
            return
        self._ends[-1] = end
        if self._begun == [*map(len, self._queues)]:
            self._step, self._begun = self._step + 1, [0] * len(self._queues)
        self._next()

    def end_step(self, step: int) -> None:
        for actions in self._queues:
            self._completions.of(step)[actions[-1]].wait()
        if self._stopped:
            raise Failed(WHY)

    def _next(self) -> None:
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
        self._choose(lane)

    def _has_ended(self, action: int) -> bool:
        """Whether an action of the step has. Passes of this device have, when they are issued: what
        is chosen next comes behind them."""
        completion = (self._completions.of(self._step) or {}).get(action)
        if completion is None or not completion.issued:
            return False
        own = any(action in actions for actions in self._queues)
        return own or completion.cuda is None or completion.cuda.query()


class ReadyTurns(LaneTurns):
    """Turns of passes that are ready, whatever their steps."""

    def __init__(
        self, turns: Turns, device: int, lanes: Sequence[str], completions: Completions,
        waits: Refs,
    ) -> None:  # fmt: skip
        """`waits` of each action for others of the rank."""
        self._waits, self._lock = waits, threading.Lock()
        super().__init__(turns, device, lanes, completions)

    def begin(self, step: int) -> None:
        super().begin(step)
        self._busy, self._end = False, 0
        """Whether a lane has the device, and the steps that lanes may begin, counted from the
        first."""

    def ask(self, end: int) -> None:
        self._end = end - self._step
        self._look()

    def wants_end(self, lane: str) -> bool:
        return lane not in self

    def told(self, lane: str, end: torch.cuda.Event | None) -> None:
        if lane in self:
            self._ends += [] if end is None else [end]
            if len(self._ends) > 1:
                self._ends.pop(0).synchronize()
            self._busy = False
        self._look()

    def _look(self) -> None:
        """Give the device to a lane that is ready."""
        with self._lock:
            if self._busy:
                return
            lane = first_ready(self._turns, self._device, self._begun, self._is_ready)
            if lane != NEVER:
                self._busy = True
                self._choose(lane)

    def _is_ready(self, step: int, action: int) -> bool:
        """Whether all that an action waits for is told of; on its lane it is the next."""
        if step >= self._end:
            return False
        for back, other in self._waits[action]:
            told = self._completions.of(self._step + step + back)
            if told is None and not back:  # no lane has come to that step
                return False
            if told is not None and not told[other].issued:
                return False
        return True
