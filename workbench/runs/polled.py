"""Runs that are carried out together and polled: what a sweep and a search have in common.

How many run at once is the executor's matter: on this machine one on each device (device_locks.py),
because two on one device would measure each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from workbench.core.record import RESULTS, RunRecord, State, Status, state_of
from workbench.core.spec import RunSpec
from workbench.runs.events import Event, Teller, make_event
from workbench.runs.executor import Executor, LocalExecutor
from workbench.runs.one_run import Work
from workbench.runs.runner import POLL_S, check_timeout
from workbench.runs.store import Store

LOOK_AGAIN_S = 0.5
"""Seconds between two looks for a free device."""


@dataclass(kw_only=True)
class Point:
    """One of the runs."""

    spec: RunSpec
    key: str = ""
    record: RunRecord | None = None
    cached: bool = False
    work: Work | None = None
    """While it runs."""
    step_seconds: list[float] = field(default_factory=list)
    """Seconds of the steps that the present run has done."""
    began: float = 0.0

    @property
    def state(self) -> State:
        """State of the run; one that was cancelled is pending, for nobody let it finish."""
        if self.work is not None:
            return "running"
        return state_of(self.record.status if self.record is not None else "")


class PolledRuns(Teller):
    """Polls its points until `ended`. Events are those of the runs, each with the index of its
    point, and point, point_ended and waiting."""

    def __init__(
        self,
        store: Store,
        what: str,
        *,
        timeout: float | None = None,
        force: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """`what` names them to others who want a device; `timeout` is a run's, in seconds;
        `force` runs what has a record, too; `executor` is this machine by default. Starts
        nothing."""
        super().__init__()
        check_timeout(timeout)
        self.store = store
        self.points: list[Point] = []
        self.paused = False
        """While it is, nothing new is started; what runs is let finish."""
        self.waits_for = ""
        """Resource that they wait for while nothing runs, in words."""
        self._executor = executor or LocalExecutor(store, what=what)
        self._timeout, self._force = timeout, force
        self._accept: Iterable[Status] = RESULTS
        self._cancelled = False
        self._look_at = 0.0

    def _pending(self) -> list[Point]:
        """Points that may be started now, those not yet among `points` with them."""
        raise NotImplementedError

    def retry(self) -> int:
        """Take failed points for such that were not run; returns how many."""
        raise NotImplementedError

    def seconds_left(self) -> float | None:
        """Expected time to the end; None while nothing is known."""
        return None

    @property
    def running(self) -> list[Point]:
        """The points that are running."""
        return [point for point in self.points if point.work is not None]

    @property
    def ended(self) -> bool:
        """Whether nothing runs and nothing more is to be started."""
        return not self.running and (self._cancelled or not self._pending())

    def counts(self) -> Counter[str]:
        """Points by state: pending, running, done, failed."""
        return Counter(point.state for point in self.points)

    def finish(self, on_event: Callable[[Event], None] | None = None) -> None:
        """Poll until it has ended. An exception (Ctrl-C) cancels."""
        try:
            while not self.ended:
                self.poll()
                self.deliver(on_event)
                sleep(POLL_S)
        finally:
            self.close()

    def poll(self) -> None:
        """Do what can be done without waiting: look at what runs, and start what there is room for.
        Raises StoreError."""
        for point in self.running:
            self._follow(point)
        if not self._cancelled and not self.paused and monotonic() >= self._look_at:
            for point in self._pending():
                if not self._start(point):
                    break

    def cancel(self) -> None:
        """End what runs and start nothing more; poll on until `ended`. Safe from any thread."""
        self._cancelled = True
        for point in [*self.points]:
            if (work := point.work) is not None:
                work.cancel()

    def close(self) -> None:
        """Cancel if it still runs, and wait until nothing of it is left."""
        self._cancelled = True
        for point in self.running:
            point.work.close()
            point.record, point.work = point.work.record, None

    def _start(self, point: Point) -> bool:
        """Start a point if there is room."""
        point.work = self._executor.start(
            point.spec, force=self._force, timeout=self._timeout, accept=self._accept
        )
        if point.work is None:
            self._look_at = monotonic() + LOOK_AGAIN_S
            waits_for = "" if self.running else self._executor.waits_for
            if waits_for != self.waits_for and waits_for:
                self._events.append(make_event("waiting", text=f"waiting for {waits_for}"))
            self.waits_for = waits_for
            return False
        self.waits_for = ""
        if point not in self.points:
            point.key = point.work.key
            self.points.append(point)
        point.step_seconds, point.began = [], monotonic()
        self._tell("point", point, where=point.work.where)
        self._follow(point)
        return True

    def _follow(self, point: Point) -> None:
        record = point.work.poll()
        index = self.points.index(point)
        for event in point.work.new_events():
            if event["event"] == "step":
                point.step_seconds.append(float(event["seconds"]))
            self._events.append({"index": index, **event})
        if record is not None:
            point.record, point.cached = record, point.work.cached
            point.work.close()
            point.work = None
            self._tell("point_ended", point, status=record.status, message=record.message)

    def _tell(self, kind: str, point: Point, **values: Any) -> None:
        index = self.points.index(point)
        self._events.append(make_event(kind, index=index, key=point.key, **values))
