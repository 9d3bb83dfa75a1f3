"""When actions ran: by the host's clock, or on CUDA by pairs of events that are read at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from workbench.schedule.action import Action
from workbench.schedule.simulate import Event

Mark = float | torch.cuda.Event
"""A moment: seconds of the host's clock, or an event of a stream."""


def now(stream: torch.cuda.Stream | None) -> Mark:
    """This moment on a lane: of its stream, where it has one."""
    if stream is None:
        return time.perf_counter()
    # A thread that waits for it on the host sleeps: a spinning wait would cost host updates a core.
    event = torch.cuda.Event(enable_timing=True, blocking=True)
    event.record(stream)
    return event


@dataclass(frozen=True, slots=True)
class _Timing:
    action: Action
    step: int
    start: Mark
    end: Mark


class Timings:
    """The timeline of one process, segment by segment."""

    def __init__(self, origin: float | None = None) -> None:
        """Seconds count from `origin` (time.perf_counter), by default from the first segment's
        beginning."""
        self.events: list[Event] = []
        """In the order in which they began; complete for the segments that were collected."""
        self._origin = origin
        self._noted: list[_Timing] = []
        self._base: tuple[Mark, float] | None = None
        """The beginning of the segment, on the stream and by the host's clock."""

    def begin(self, stream: torch.cuda.Stream | None) -> None:
        """A segment begins, on a device that is idle."""
        self._noted = []
        mark = now(stream)
        if stream is not None:
            mark.synchronize()
        host = time.perf_counter()
        self._base = mark, host
        self._origin = host if self._origin is None else self._origin

    def elapsed_s(self) -> float:
        """Since the segment began."""
        return time.perf_counter() - self._base[1]

    def add(self, action: Action, step: int, start: Mark, end: Mark) -> None:
        """Note an action; called by all lanes."""
        self._noted.append(_Timing(action, step, start, end))

    def collect(self) -> None:
        """Make events of what the segment noted; the device is done with all of it."""
        for timing in self._noted:
            action = timing.action
            self.events.append(
                Event(
                    action.name,
                    action.kind.value,
                    action.unit,
                    action.microbatch,
                    action.rank,
                    action.lane,
                    timing.step,
                    self._seconds(timing.start),
                    self._seconds(timing.end),
                    action.nbytes,
                )
            )
        self.events.sort(key=lambda event: (event.start_s, event.end_s))
        self._noted = []

    def _seconds(self, mark: Mark) -> float:
        if isinstance(mark, float):
            return mark - self._origin
        stream, host = self._base
        return host - self._origin + stream.elapsed_time(mark) / 1e3
