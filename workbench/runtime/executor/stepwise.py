"""Steps that are asked one by one, or piece by piece, in a segment of an executor that goes on.

A step can be cut where its compute lane has its first action of a kind: before the first backward
pass, say, so that a user's own code makes a loss of what the forward passes have put out. Other
lanes know nothing of the cut; they wait for actions of the compute lane as they ever do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch

from workbench.runtime.executor.board import Stopped
from workbench.runtime.executor.lanes import Lanes
from workbench.schedule.action import COMPUTE, Kind
from workbench.schedule.schedule import Schedule


class Stepwise:
    """Part of an executor."""

    schedule: Schedule
    _lane_items: Mapping[str, Sequence[tuple[str, int]]]
    _lanes: Lanes
    _streams: Mapping[str, torch.cuda.Stream]
    _device: torch.device
    _failure: BaseException | None
    _stop_at: float
    _first: int
    _end: float
    _next: int | None = None
    """The step that is done next, in a segment that goes on."""
    _piece = slice(None)
    """Of the compute lane in a step, which is done now or last."""

    @property
    def goes_on(self) -> bool:
        """Whether a segment is begun whose steps are asked one by one."""
        return self._next is not None

    def step(self, step: int, *, until: Kind | None = None) -> None:
        """Do one step to the end of its compute lane, in a segment that goes on or begins with it;
        or `until` the lane's first action of a kind, where the next call goes on.

        Raises as `run` does; steps before the one that failed are finished then.
        """
        asked = range(step, step + 1)
        if self._stop_at <= step:  # something failed while no step was asked
            self.end()
        if begins := not self.goes_on:
            self._reset(step)
        begun = self._piece.stop
        self._piece = slice(begun, until and self._first_of(until))
        try:
            self._next = step
            if begins:
                self._start_lanes(asked)
            elif not begun:
                self._lanes.ask(asked.stop)
            if not begun:
                self._turns.ask(asked.stop)
            self._compute(asked)
            self._next = asked.stop if until is None else step
        except BaseException as error:
            self.fail(error, step)
        if self._stop_at <= step:
            self.end()

    def drop(self) -> None:
        """Let go of a step of which a first piece is done, if there is one; it can be done anew."""
        if self._piece.stop:
            self.fail(Stopped("the step was not wanted any more"), self._next)
            with suppress(Stopped):
                self.end()

    def _first_of(self, kind: Kind) -> int:
        """Where the compute lane has its first action of a kind."""
        kinds = [self.schedule.actions[index].kind for _, index in self._lane_items[COMPUTE]]
        return kinds.index(kind)

    def pause(self) -> None:
        """Wait until all lanes have done the steps that were asked; raises as `step` does."""
        if self.goes_on:
            self._lanes.idle()
            if self._failure is not None:
                self.end()
            if self._streams:
                torch.cuda.synchronize(self._device)

    def end(self) -> None:
        """End a segment that goes on, when all is done that was asked; raises as `step` does."""
        if self._next is None:
            return
        if self._failure is None and (lag := self.schedule.lag):
            self._end, last = self._next, range(self._next, self._next + lag)
            self._lanes.ask(last.stop)
            self._turns.ask(last.stop)
            self._compute(last)
        self._lanes.close()
        self._drain(before=self._next)
        self._leave(range(self._first, self._next))
