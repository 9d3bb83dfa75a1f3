"""Many runs, one after the other, that survive whatever happens to the process that does them.

A sweep keeps no state of its own: what is finished is what the store has records of, so a sweep
that was killed resumes by being started again, two sweeps may share a store, and a point that two
sweeps share runs once. Runs are strictly serial, because two on one machine would measure each
other.

A sweep file is JSON: ``base`` (fields of a spec), ``grid`` (field -> list of values; all
combinations), ``runs`` (list of field changes; default one run that changes nothing), ``results``
(folder, relative to the file), ``timeout`` (seconds a run).
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

from workbench.runs.events import Event, make_event
from workbench.runs.overrides import make_spec, read_object
from workbench.runs.record import RESULTS, STATUSES, RunRecord
from workbench.runs.runner import POLL_S, Job, key_of
from workbench.runs.spec import RunSpec
from workbench.runs.store import REPOSITORY_RESULTS, Store

FIELDS = ("name", "base", "grid", "runs", "results", "timeout")


@dataclass(frozen=True, kw_only=True)
class SweepFile:
    """A sweep as written down."""

    specs: list[RunSpec]
    results: Path = REPOSITORY_RESULTS
    timeout_s: float | None = None

    @classmethod
    def load(cls, path: Path) -> SweepFile:
        """Raises ValueError for a file that is missing or malformed, before anything is run."""
        data = read_object(path, "sweep")
        for name in data:
            if name not in FIELDS:
                raise ValueError(f"unknown field {name!r} in {path}; known: {', '.join(FIELDS)}")
        timeout = data.get("timeout")
        if timeout is not None and (not isinstance(timeout, int | float) or timeout <= 0):
            raise ValueError(
                f"timeout is {timeout!r} in {path}; it must be a positive number of seconds"
            )
        results = data.get("results")
        if not isinstance(results, str | None):
            raise ValueError(f"results is {results!r} in {path}; it must be the path of a folder")
        return cls(
            specs=expand(
                data.get("base", {}), grid=data.get("grid", {}), runs=data.get("runs", [{}])
            ),
            results=REPOSITORY_RESULTS if results is None else path.parent / results,
            timeout_s=timeout,
        )


def expand(
    base: dict[str, Any],
    *,
    grid: dict[str, list[Any]] | None = None,
    runs: Iterable[dict[str, Any]] = ({},),
) -> list[RunSpec]:
    """Every combination of the grid's values, for every entry of `runs`, laid over `base`."""
    grid = {} if grid is None else grid
    if not isinstance(grid, dict) or not isinstance(runs, list | tuple):
        raise ValueError("grid is an object of lists, and runs is a list of objects")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(
                f"the axis {name} is {values!r}; it must be a list of at least one value"
            )
    return [
        make_spec(base, change, dict(zip(grid, values, strict=True)))
        for change in runs
        for values in itertools.product(*grid.values())
    ]


State = Literal["pending", "running", "done", "failed"]


@dataclass(kw_only=True)
class Point:
    """One run of a sweep."""

    spec: RunSpec
    key: str
    record: RunRecord | None = None
    cached: bool = False

    @property
    def state(self) -> State:
        if self.record is None:
            return "pending"
        return "done" if self.record.status in RESULTS else "failed"


class Sweep:
    """Runs a list of specs. `run` blocks; `poll` does not, for user interfaces."""

    def __init__(
        self,
        specs: Iterable[RunSpec],
        store: Store,
        *,
        timeout: float | None = None,
        retry_failed: bool = False,
        force: bool = False,
    ) -> None:
        """Points with a record are done; errors and time-outs only run again with `retry_failed`.

        Raises ValueError for an unknown method or a device that is not here. Starts nothing.
        """
        unique = {key_of(spec): spec for spec in specs}
        self.points = [Point(spec=spec, key=key) for key, spec in unique.items()]
        self.store = store
        self._timeout, self._force = timeout, force
        # A cancelled run is one that nobody let finish, so it never counts as done.
        self._accept = RESULTS if retry_failed else frozenset(STATUSES) - {"cancelled"}
        self._cancelled = False
        self._job: Job | None = None
        self._current: Point | None = None
        self._steps: list[float] = []
        self._started = 0.0
        self._events: list[Event] = []
        if not force:
            for point in self.points:
                found = store.find(point.key)
                if found is not None and found.status in self._accept:
                    point.record, point.cached = found, True

    @property
    def current(self) -> Point | None:
        """The point that is running."""
        return self._current

    @property
    def ended(self) -> bool:
        return self._job is None and (self._cancelled or not self._pending())

    def counts(self) -> Counter[str]:
        """Points by state: pending, running, done, failed."""
        return Counter("running" if p is self._current else p.state for p in self.points)

    def seconds_left(self) -> float | None:
        """Expected time to the end; None while nothing is known.

        A pending point takes as long as the finished ones of its method did, or as all did; the
        current one as its own steps say.
        """
        finished: dict[str, list[float]] = {}
        for point in self.points:
            if point.record is not None and point.record.seconds is not None:
                finished.setdefault(point.spec.method, []).append(point.record.seconds)
        everything = list(itertools.chain(*finished.values()))

        def typical(point: Point) -> float | None:
            known = finished.get(point.spec.method) or everything
            return mean(known) if known else None

        total = 0.0
        for point in self.points:
            if point.record is not None:
                continue
            seconds = typical(point)
            if point is self._current and self._steps:
                seconds = median(self._steps) * (point.spec.steps - len(self._steps))
            elif point is self._current and seconds is not None:
                seconds = max(0.0, seconds - (time.monotonic() - self._started))
            if seconds is None:
                return None
            total += seconds
        return total

    def run(self, on_event: Callable[[Event], None] | None = None) -> list[RunRecord]:
        """Run what is not done; returns the records there are. An exception (Ctrl-C) cancels."""
        try:
            while not self.ended:
                self.poll()
                for event in self.new_events():
                    if on_event is not None:
                        on_event(event)
                time.sleep(POLL_S)
        finally:
            self.close()
        return [point.record for point in self.points if point.record is not None]

    def poll(self) -> None:
        """Do what can be done without waiting: start the next run, or look at the current one."""
        if self._job is None:
            pending = self._pending()
            if self._cancelled or not pending:
                return
            self._current, self._steps, self._started = pending[0], [], time.monotonic()
            self._job = Job(
                self._current.spec,
                self.store,
                force=self._force,
                timeout=self._timeout,
                accept=self._accept,
            )
            self._tell("point", self._current)
        record = self._job.poll()
        for event in self._job.new_events():
            if event["event"] == "step":
                self._steps.append(float(event["seconds"]))
            self._events.append(event)
        if record is not None:
            self._current.record, self._current.cached = record, self._job.cached
            self._tell("point_ended", self._current, status=record.status, message=record.message)
            self._job.close()
            self._job = self._current = None

    def new_events(self) -> list[Event]:
        """Events since the last call: those of the runs, and point and point_ended."""
        events, self._events = self._events, []
        return events

    def cancel(self) -> None:
        """End the current run and start no other; poll on until `ended`. Safe from any thread."""
        self._cancelled = True
        job = self._job
        if job is not None:
            job.cancel()

    def close(self) -> None:
        """Cancel if it still runs, and wait until nothing of it is left."""
        self._cancelled = True
        if self._job is not None:
            self._job.close()
            self._current.record = self._job.record
            self._job = self._current = None

    def _pending(self) -> list[Point]:
        return [point for point in self.points if point.record is None]

    def _tell(self, kind: str, point: Point, **values: Any) -> None:
        index = self.points.index(point)
        self._events.append(make_event(kind, index=index, key=point.key, **values))
