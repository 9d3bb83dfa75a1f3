"""Runs any schedule: the simulator's counterpart on real hardware.

One thread walks each lane in order. Before an action it waits for what the action names in `after`:
on the host by a `Token` that is set when the other lane has issued its work, on CUDA by an event,
so that copies, compute and host updates overlap exactly as far as the dependencies allow:

* the compute lane runs in the caller's thread, on its own stream;
* h2d and d2h copy on one stream each, overlapping compute and each other (the link is full duplex);
* host and disk lanes are plain threads; their work releases the interpreter lock.

A machine without a GPU runs the same code with no streams. There is no global lock, no device-wide
synchronization and no polling. The first failure stops every lane and is raised in the caller.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from workbench.runtime.threads import use_lane_thread
from workbench.schedule.action import COMPUTE, D2H, H2D, Action, lane_kind
from workbench.schedule.graph import unroll
from workbench.schedule.schedule import Schedule
from workbench.schedule.simulate import Event

Work = Callable[[Action, int], None]
"""Performs one action of one step, on the current stream of the calling thread."""

Perturb = Callable[[Action, int], None]
"""Called around every action; tests delay or fail there."""


class Token:
    """The end of one action: issued on the host, and on CUDA completed by an event."""

    __slots__ = ("cuda", "issued")

    def __init__(self) -> None:
        self.issued = threading.Event()
        self.cuda: torch.cuda.Event | None = None


@dataclass
class _Timing:
    """When an action ran: host clock, or a pair of CUDA events to be read at the end."""

    action: Action
    step: int
    start: float | torch.cuda.Event
    end: float | torch.cuda.Event


class Stopped(RuntimeError):
    """Another lane failed, or the run was cancelled; the cause is raised in the caller."""


class Executor:
    """Executes `schedule` for any number of steps, in segments that end with every lane drained."""

    def __init__(
        self,
        schedule: Schedule,
        work: Work,
        device: torch.device,
        *,
        perturb: Perturb | None = None,
        on_step_end: Callable[[int, float], None] | None = None,
        record_from: int = 0,
    ) -> None:
        if schedule.num_ranks != 1:
            raise ValueError(
                f"this executor runs one rank, the schedule {schedule.name!r} has "
                f"{schedule.num_ranks}"
            )
        self.schedule = schedule
        self.events: list[Event] = []
        self.step_numbers: list[int] = []
        """Steps executed so far."""
        self._work = work
        self._device = device
        self._perturb = perturb
        self._on_step_end = on_step_end
        self._record_from = record_from
        self._streams: dict[str, torch.cuda.Stream] = {}
        if device.type == "cuda":
            self._streams = {kind: torch.cuda.Stream(device) for kind in (COMPUTE, H2D, D2H)}
        self._waits = unroll(schedule).references
        self._lanes: dict[str, list[int]] = {}
        for index, action in enumerate(schedule.actions):
            self._lanes.setdefault(action.lane, []).append(index)
        self._lanes.setdefault(COMPUTE, [])
        self._tokens: dict[int, list[Token]] = {}
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._stop = False
        self._origin: float | None = None

    def run(self, first_step: int, num_steps: int) -> None:
        """Run steps [first_step, first_step + num_steps) and drain all lanes.

        Raises the first exception any lane raised, after all lanes have stopped.
        """
        steps = range(first_step, first_step + num_steps)
        self._tokens = {step: self._make_tokens() for step in steps[:2]}
        self._progress = dict.fromkeys(self._lanes, first_step)
        self._timings: list[_Timing] = []
        self._failure, self._stop = None, False
        if self._streams:  # what was written before this segment, on whatever stream
            torch.cuda.synchronize(self._device)
        base_event = self._mark(COMPUTE)
        if base_event is not None:
            base_event.synchronize()
        self._base = time.perf_counter()
        self._origin = self._origin or self._base
        threads = [
            threading.Thread(
                target=self._walk, args=(lane, steps), name=f"lane {lane}", daemon=True
            )
            for lane in self._lanes
            if lane != COMPUTE
        ]
        for thread in threads:
            thread.start()
        self._walk(COMPUTE, steps)
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        if self._streams:
            torch.cuda.synchronize(self._device)
        self.step_numbers += steps
        self._collect(base_event)

    def stop(self) -> None:
        """Stop all lanes before their next action (from any thread)."""
        self._fail(Stopped("the run was stopped"))

    def _make_tokens(self) -> list[Token]:
        return [Token() for _ in self.schedule.actions]

    def _walk(self, lane: str, steps: range) -> None:
        """The life of one lane."""
        stream = self._streams.get(lane_kind(lane))
        if lane != COMPUTE:
            use_lane_thread(self._device.type)
        try:
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                for step in steps:
                    self._enter(lane, step, steps)
                    for index in self._lanes[lane]:
                        self._run_one(lane, stream, step, index)
                    if lane == COMPUTE:
                        self._end_step(stream, step)
        except BaseException as error:  # every cause must stop the other lanes, even Ctrl-C
            self._fail(error)

    def _enter(self, lane: str, step: int, steps: range) -> None:
        """Keep the tokens of the steps in flight, drop those that every lane has passed."""
        with self._lock:
            if self._stop:  # tokens made from now on would never be set
                raise Stopped
            if step not in self._tokens:
                self._tokens[step] = self._make_tokens()
            self._progress[lane] = step
            oldest = min(self._progress.values()) - 1
            for old in [s for s in self._tokens if s < oldest]:
                del self._tokens[old]

    def _run_one(self, lane: str, stream: torch.cuda.Stream | None, step: int, index: int) -> None:
        action = self.schedule.actions[index]
        for back, other in self._waits[index]:
            tokens = self._tokens.get(step + back)
            if tokens is None:  # before this segment, or so old that every lane has passed it
                continue
            token = tokens[other]
            token.issued.wait()
            if self._stop:  # set by the lane that failed, not by the action
                raise Stopped
            if token.cuda is not None:
                if stream is not None:
                    stream.wait_event(token.cuda)
                else:
                    token.cuda.synchronize()
        if self._stop:
            raise Stopped
        if self._perturb is not None:
            self._perturb(action, step)
        start = self._mark(lane_kind(lane)) or time.perf_counter()
        self._work(action, step)
        if self._perturb is not None:
            self._perturb(action, step)
        end = self._mark(lane_kind(lane)) or time.perf_counter()
        token = self._tokens[step][index]
        token.cuda = end if stream is not None else None
        token.issued.set()
        if step >= self._record_from:  # a long run keeps the timeline of its end only
            self._timings.append(_Timing(action, step, start, end))

    def _end_step(self, stream: torch.cuda.Stream | None, step: int) -> None:
        if self._on_step_end is not None:
            if stream is not None:
                stream.synchronize()
            self._on_step_end(step, time.perf_counter() - self._base)

    def _mark(self, kind: str) -> torch.cuda.Event | None:
        """An event on the lane's stream; None for lanes without one."""
        stream = self._streams.get(kind)
        if stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is None or (
                isinstance(self._failure, Stopped) and not isinstance(error, Stopped)
            ):
                self._failure = error
            self._stop = True
            tokens = [token for step in self._tokens.values() for token in step]
        for token in tokens:
            token.issued.set()

    def _collect(self, base_event: torch.cuda.Event | None) -> None:
        """Turn the segment's timings into events, in seconds since the first segment began."""

        def seconds(mark: float | torch.cuda.Event) -> float:
            if isinstance(mark, float):
                return mark - self._origin
            return self._base - self._origin + base_event.elapsed_time(mark) / 1e3

        for timing in self._timings:
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
                    seconds(timing.start),
                    seconds(timing.end),
                    action.nbytes,
                )
            )
        self.events.sort(key=lambda event: (event.start_s, event.end_s))
