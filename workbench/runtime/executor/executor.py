"""Runs any schedule: the simulator's counterpart on real hardware.

A thread walks each lane in order. Before an action it waits for the actions that it names in
`after`: on the host by a `Completion` that is set when the other lane has issued its work, on CUDA
by an event, so that copies, compute and host updates overlap exactly as far as the dependencies
allow:

* the compute lane runs in the caller's thread, on its own stream. On a device of several ranks it
  walks all other lanes that are only issued, too (lane_threads.py), or takes turns with the threads
  of other lanes of passes (device_turns.py);
* h2d and d2h copy on one stream each, overlapping compute and each other (the link is full duplex);
* updates of states that visit the device have a stream too, since they wait for the link while
  compute goes on;
* host and disk lanes are plain threads; their work releases the interpreter lock;
* of several ranks, each process walks its own lanes. What another rank does is waited for on the
  board (board.py), messages and collectives by themselves. Room for a message is announced beside
  its lane, which may be messages ahead of those that have come.

Without a GPU there are no streams. No lock is global, and nothing polls.

Steps come in segments. `run` does one of so many steps. `step` begins one that goes on, or does its
next step: the compute lane's part of it, while other lanes may still update for the step before, as
far as dependencies allow, or a piece of that part (stepwise.py). `pause` waits for other lanes, and
`end` until all is done that was asked.

The first failure stops every lane and is raised in the caller, Ctrl-C and SIGTERM among them: they
arrive as exceptions in the caller's thread, at any instruction of it. Of steps that were asked one
by one, lanes finish those before the one that failed. Nobody may free memory that a lane still
works on, so `run` and `end` return only after all lanes have ended and the device is idle, and
`close` makes sure of it where a second Ctrl-C broke that wait too.
"""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress

import torch

from workbench.core.garbage import keep_what_is_there
from workbench.runtime.executor import stream_pool
from workbench.runtime.executor.board import Board, Failed, Stopped
from workbench.runtime.executor.completions import Completions
from workbench.runtime.executor.device_turns import device_turns
from workbench.runtime.executor.lane_threads import lane_threads
from workbench.runtime.executor.lanes import Lanes
from workbench.runtime.executor.stepwise import Stepwise
from workbench.runtime.executor.threads import use_lane_thread
from workbench.runtime.executor.timings import Timings, now
from workbench.schedule.action import COMPUTE, Action, Kind
from workbench.schedule.schedule import Schedule

CHANGES = (Kind.NORM, Kind.UPDATE, Kind.SETTLE, Kind.MOMENTS)
"""Actions of which the first one changes weights, moments or their count."""

Work = Callable[[Action, int], None]
"""Performs one action of one step, on the current stream of the calling thread."""

Perturb = Callable[[Action, int], None]
"""Called around every action; tests delay or fail there."""


class Executor(Stepwise):
    """Executes `schedule` for any number of steps, in segments that end with every lane drained."""

    def __init__(
        self, schedule: Schedule, work: Work, device: torch.device, *,
        perturb: Perturb | None = None, on_step_end: Callable[[int, float], None] | None = None,
        record_from: int = 0, origin: float | None = None,
        board: Board | None = None, rank: int | None = None,
        compute_stream: torch.cuda.Stream | None = None, announce: Work | None = None,
        together: bool = False, on_failure: Callable[[BaseException], None] | None = None,
        abandon_s: float | None = None,
    ) -> None:  # fmt: skip
        """Several ranks need a board; one whose ranks meet in messages and sums alone does without,
        and says its `rank`. Events count from `origin` (time.perf_counter), by default from the
        first segment's beginning. `compute_stream` is the stream on which passes were recorded, if
        some were.
        `announce` says that there is room for a message, once all that its RECV waits for has
        ended, or on CUDA is waited for by the current stream. `together`: one thread walks all
        lanes that are only issued. `abandon_s` after a failure, lanes that wait for other processes
        by means that nobody can end are left behind, and nothing can run any more."""
        self.schedule = schedule
        self._board, self._on_failure = board, on_failure
        self._timings = Timings(origin)
        self.events = self._timings.events
        self.step_numbers: list[int] = []
        """Steps executed so far."""
        self._changed: dict[str, int] = {}
        """Lane -> the last step in which it has begun to update."""
        self._work, self._device, self._announce = work, device, announce
        self._perturb, self._on_step_end = perturb, on_step_end
        self._record_from = record_from
        rank = board.position if board else (rank or 0)
        found = lane_threads(schedule, rank, announces=announce is not None, together=together)
        self._waits, self._remote = found.local, found.remote
        seen = found.published or any(self._remote[i] for own in found.lanes.values() for i in own)
        if board is None and (seen or schedule.mesh.processes > 1 and rank is None):
            raise ValueError(
                f"the schedule {schedule.name!r} has {schedule.mesh.processes} ranks; several need "
                "a board"
            )
        self._lane_items = found.threads
        self._announcing, self._publishing = found.announcing, found.publishing
        beside = {index for lane in found.publishing for index in found.lanes[lane]}
        self._published = found.published - beside
        """Actions that are published to other ranks by the thread that issues them."""
        self._streams = found.streams(device, compute_stream) if device.type == "cuda" else {}
        self._own = {k: v for k, v in self._streams.items() if v is not compute_stream}
        """Streams that this executor gives back."""
        self._depth = max([1, *(-back for waits in self._waits for back, _ in waits)])
        """Steps back that an action may wait for."""
        self._completions = Completions(i for i, a in enumerate(schedule.actions) if a.rank == rank)
        self._turns = device_turns(schedule, rank, self._completions, self._waits)
        self._lanes = Lanes(launches=bool(self._streams), abandon_s=abandon_s)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._stop_at: float = math.inf
        """Lanes end before this step."""
        self._first, self._end = 0, math.inf
        """The first step of the segment, and the first one behind it, once it is known."""

    @property
    def half_updated(self) -> bool:
        """Whether a step of the last segment that was not finished has begun to update."""
        return any(step >= self._stop_at for step in self._changed.values())

    def run(self, first_step: int, num_steps: int) -> None:
        """Run steps [first_step, first_step + num_steps) and drain all lanes, and the pipeline of a
        schedule whose work lags.

        Raises the first exception any lane raised, after all lanes have stopped.
        """
        steps = range(first_step, first_step + num_steps)
        self._reset(first_step)
        self._end = steps.stop
        walked = range(first_step, steps.stop + self.schedule.lag)
        try:
            self._start_lanes(walked)
            self._turns.ask(walked.stop)
            self._compute(walked)
        except BaseException as error:  # outside `walk`: Ctrl-C, or no more threads to be had
            self.fail(error)
        self._drain()
        self._leave(steps)

    def _reset(self, first: int) -> None:
        self._first, self._end, self._piece = first, math.inf, slice(None)
        self._completions.begin(range(first, first + 2))
        self._progress = dict.fromkeys(self._lane_items, first)
        self._failure, self._stop_at = None, math.inf
        self._changed.clear()
        self._turns.begin(first)
        if self._streams:  # what was written before this segment, on whatever stream
            torch.cuda.synchronize(self._device)
        self._timings.begin(self._streams.get(COMPUTE))

    def _leave(self, steps: range) -> None:
        """The end of a segment of these steps, whose lanes have ended."""
        self._next, self._piece = None, slice(None)
        self._lanes.rest()
        self._completions.clear()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            # The frames it passed hold activations, which the next attempt may have no room beside.
            traceback.clear_frames(failure.__traceback__)
            raise failure
        self.step_numbers += steps
        self._timings.collect()

    def stop(self) -> None:
        """Stop all lanes before their next action (from any thread)."""
        self.fail(Stopped("the run was stopped"))

    def close(self) -> None:
        """End what may be left of a run that was interrupted twice. Memory may be freed after.

        Where nothing is left, other ranks may still be at work, and are not disturbed.
        """
        if self._lanes:
            self.stop()
        self._drain()
        if self.goes_on:
            self._failure = None  # of steps that nobody wants any more
            self._leave(range(0))
        stream_pool.give_back(self._own)
        self._own = {}

    def _compute(self, steps: range) -> None:
        """Walk the compute lane, in the caller's thread."""
        own = self._streams.get(COMPUTE)
        with torch.cuda.stream(own) if own is not None else nullcontext():
            self.walk(COMPUTE, steps)

    def _start_lanes(self, steps: range) -> None:
        names = [lane for lane in self._lane_items if lane != COMPUTE]
        self._lanes.start(self, names, steps, ends=not self.goes_on, first=not self.step_numbers)

    def _drain(self, before: float = -math.inf) -> None:
        """Wait until all lanes have ended and the device is idle. An exception that breaks the wait
        stops the lanes, at first `before` a step, and the wait goes on.
        """
        try:
            ended = self._lanes.wait(lambda: self._failure is not None)
            if not ended:  # lanes that are left behind keep theirs
                self._own = {}
            if self._streams and ended:
                # A device that failed has told a lane already, and that cause is the one to raise.
                with suppress(RuntimeError) if self._failure else nullcontext():
                    torch.cuda.synchronize(self._device)
        except BaseException as error:
            self.fail(error, before)
            self._drain()

    def prepare(self, lane: str) -> None:
        """Prepare the thread of a lane."""
        use_lane_thread(self._device.type, self._turns.cores if lane in self._turns else 1)
        if (stream := self._streams.get(lane)) is not None:
            # For good: to set the one before again waits for the device, and keeps Python's lock.
            torch.cuda.set_stream(stream)

    def walk(self, thread: str, steps: range) -> bool:
        """Do all work of a thread, named by its first lane; a failure stops the others. Returns
        whether there was none."""
        stream = current = self._streams.get(thread)
        step = self._first
        try:
            for step in steps:
                piece = self._piece if thread == COMPUTE else slice(None)
                if not piece.start:
                    self._enter(thread, step)
                for lane, index in self._lane_items[thread][piece]:
                    wanted = self._streams.get(lane)
                    if wanted is not current:
                        torch.cuda.set_stream(wanted)
                        current = wanted
                    self._run_one(lane, wanted, step, index)
                if stream is not current:  # the next step's samples come where passes run
                    torch.cuda.set_stream(stream)
                    current = stream
                if piece.stop and stream is not None:  # the caller reads what it has made
                    stream.synchronize()
                elif thread == COMPUTE and not piece.stop:
                    self._end_step(stream, step)
                    if self._streams and step == self._first and not self.step_numbers:
                        # The first of all, in which layers are compiled.
                        keep_what_is_there()
            return True
        except Stopped:  # by what has told its cause
            return False
        except BaseException as error:  # every cause must stop the other lanes, even Ctrl-C
            self.fail(error, step if self.goes_on else -math.inf)
            return False

    def _enter(self, thread: str, step: int) -> None:
        """Keep the completions of the steps in flight, drop those that every thread has passed."""
        with self._lock:
            if step >= self._stop_at:  # completions made from now on would never be set
                raise Stopped
            self._progress[thread] = step
            self._completions.drop_before(min(self._progress.values()) - self._depth)
            self._completions.add(step)

    def _run_one(self, lane: str, stream: torch.cuda.Stream | None, step: int, index: int) -> None:
        """One action of one step, in five parts. `stream` is the lane's, None without a GPU."""
        action = self.schedule.actions[index]
        work = step - action.lag
        if not self._first <= work < self._end:  # before the first step, or after the last one
            self._turns.take(lane)
            self._completions.of(step)[index].set()
            self._turns.told(lane, None)
            return
        publishes = lane in self._publishing

        # 1. Wait for a turn on the device, for this rank's actions and for those of other ranks.
        self._turns.take(lane)
        for back, other in ((0, index),) if publishes else self._waits[index]:
            ended = self._completions.issued(step + back, other)
            if step >= self._stop_at:  # set by the lane that failed, not by the action
                raise Stopped
            if ended is not None and ended.cuda is not None:
                ended.until(stream)
        if publishes:
            self._board.publish(index, step)
            return
        for back, other in self._remote[index]:
            self._board.wait(other, step + back)
        if step >= self._stop_at:
            raise Stopped
        if lane in self._announcing:
            self._announce(action, work)
            return

        # 2. Begin: on the board, for other ranks, and on the clock.
        if self._board is not None:
            self._board.begin(index, step)
        if self._perturb is not None:
            self._perturb(action, work)
        recorded = step >= self._record_from  # a long run keeps the timeline of its end only
        start = now(stream) if recorded else None
        if action.kind in CHANGES:
            self._changed[lane] = step

        # 3. Do the work, or with a GPU issue it.
        self._work(action, work)
        if self._board is not None:
            self._board.end(index, step)
        if self._perturb is not None:
            self._perturb(action, work)

        # 4. Publish the end: to lanes of this rank, and to ranks that wait for it.
        end = now(stream)
        if stream is not None and self._turns.wants_end(lane):
            end.synchronize()
        completion = self._completions.of(step)[index]
        completion.cuda = end if stream is not None else None
        completion.set()
        if index in self._published:
            if stream is not None:
                end.synchronize()
            self._board.publish(index, step)

        # 5. Note the times, and give the turn to another lane.
        if recorded:
            self._timings.add(action, step, start, end)
        self._turns.told(lane, completion.cuda)

    def _end_step(self, stream: torch.cuda.Stream | None, step: int) -> None:
        self._turns.end_step(step)  # other lanes' passes may be of it, too
        if self._on_step_end is not None and step - self.schedule.lag >= self._first:
            if stream is not None:
                now(stream).synchronize()
            self._on_step_end(step - self.schedule.lag, self._timings.elapsed_s())

    def fail(self, error: BaseException, step: float = -math.inf) -> None:
        """Note what failed in a step, before which all lanes end: by default at once."""
        try:
            if self._on_failure is not None:  # other ranks end then, and are missed: no cause
                self._on_failure(error)
        finally:
            if self._board is not None:
                self._board.fail()
        with self._lock:
            if self._failure is None or (
                isinstance(self._failure, Failed) and not isinstance(error, Failed)
            ):
                self._failure = error
        self._stop_before(step)

    def _stop_before(self, step: float) -> None:
        """Have all lanes end before a step."""
        with self._lock:
            self._stop_at = min(self._stop_at, step)
            completions = self._completions.since(self._stop_at)
            self._turns.stop()
        for completion in completions:
            completion.set()
        self._lanes.close()
