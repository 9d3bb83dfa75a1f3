"""Many runs that survive whatever happens to the process that does them.

A sweep keeps no state of its own: what is finished is what the store has records of, so a sweep
that was killed resumes by being started again, two sweeps may share a store, and a point that two
sweeps share runs once. How many run at once is the executor's matter: on this machine one on each
device (device_locks.py), because two on one device would measure each other.

A sweep file is JSON: ``base`` (fields of a spec), ``grid`` (field -> list of values; all
combinations, of fields that stand nowhere else), ``runs`` (list of changes of the base's fields;
default one run that changes nothing), ``results``
(folder, relative to the file), ``timeout`` (seconds a run), ``executor`` (``local``, or ``ray``),
``name``; or instead of base, grid and runs an ``exhibit`` and its ``size``. Its ``version`` is 2;
in files without one, ``gpipe`` and ``1f1b`` are torch's, as they were before there were our own.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import mean, median
from time import monotonic, sleep
from typing import Any, Literal

from workbench.core.methods import RENAMED
from workbench.core.paths import user_path
from workbench.core.record import RESULTS, STATUSES, RunRecord
from workbench.core.schema import read_as
from workbench.core.spec import RunSpec
from workbench.runs.events import Event, Teller, make_event
from workbench.runs.executor import Executor, LocalExecutor, Work
from workbench.runs.overrides import WHOLE, make_spec, named, read_object, twice
from workbench.runs.resolve import Keys
from workbench.runs.runner import POLL_S, check_timeout
from workbench.runs.store import REPOSITORY_RESULTS, Store

VERSION = 2
"""Version of sweep files."""
MOST_POINTS = 4000
"""Points of a sweep: hours of runs that take a few seconds each."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A sweep file's fields."""

    base: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, Any] = field(default_factory=dict)
    runs: list[Any] = field(default_factory=lambda: [{}])
    name: str | None = None
    results: str | None = None
    timeout: float | None = None
    executor: str = "local"
    exhibit: str = ""
    size: str = "smoke"
    version: int = 1

    def __post_init__(self) -> None:
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"timeout is {self.timeout:g}; it must be positive, in seconds")
        if not self.runs:
            raise ValueError("runs is []; it must be a list of at least one object")
        if not 1 <= self.version <= VERSION:
            raise ValueError(f"version is {self.version}; this program reads 1 to {VERSION}")


@dataclass(frozen=True, kw_only=True)
class SweepFile:
    """A sweep as written down."""

    specs: list[RunSpec]
    data: dict[str, Any]
    """The sweep file's JSON, as it stands there."""
    name: str = "sweep"
    """As the file says, else the file's own."""
    results: Path = REPOSITORY_RESULTS
    timeout_s: float | None = None
    executor: str = "local"
    exhibit: str = ""
    """Not a sweep but the runs of this exhibit (``8a``), at `size`."""
    size: str = "smoke"
    note: str = ""
    """A sentence for readers on how the file was read."""

    @classmethod
    def load(cls, path: Path) -> SweepFile:
        """Raises ValueError for a file that is missing or malformed, before anything is run."""
        return cls.parse(read_object(path, "sweep"), path)

    @classmethod
    def parse(cls, data: dict[str, Any], source: Path | str) -> SweepFile:
        """`source` is what errors name, and if it is a file, what `results` is relative to."""
        note = ""
        if read_as(Written, data, str(source)).version < VERSION:
            data, renamed = _of_today(data)
            if renamed:
                note = (
                    f"{source} has no version: {', '.join(renamed)} in it are torch's; for "
                    f'pipelines of our own write "version": {VERSION}'
                )
        told = read_as(Written, data, str(source))
        name = told.name or re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).stem).strip("-.")
        results = REPOSITORY_RESULTS if told.results is None else told.results
        return cls(
            specs=[] if told.exhibit else expand(told.base, grid=told.grid, runs=told.runs),
            data=data,
            name=name or "sweep",
            results=Path(source).parent / user_path(results),
            timeout_s=told.timeout,
            executor=told.executor,
            exhibit=told.exhibit,
            size=told.size,
            note=note,
        )


def _of_today(data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A sweep as this version writes it, and the names of methods that were others then."""
    renamed: set[str] = set()

    def method(name: Any) -> Any:
        if not isinstance(name, str) or name not in RENAMED:
            return name
        renamed.add(name)
        return RENAMED[name]

    def fields(given: Any) -> Any:
        if not isinstance(given, dict) or "method" not in given:
            return given
        names = given["method"]
        return given | {
            "method": [*map(method, names)] if isinstance(names, list) else method(names)
        }

    found = {k: fields(v) for k, v in data.items() if k in ("base", "grid")}
    if isinstance(data.get("runs"), list):
        found["runs"] = [*map(fields, data["runs"])]
    return data | found | {"version": VERSION}, sorted(renamed)


def expand(
    base: dict[str, Any],
    *,
    grid: dict[str, list[Any]] | None = None,
    runs: Iterable[dict[str, Any]] = ({},),
) -> list[RunSpec]:
    """Every combination of the grid's values, for every entry of `runs`, laid over `base`. An
    option is for the runs whose method has it."""
    grid = {} if grid is None else grid
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(
                f"the axis {name} is {values!r}; it must be a list of at least one value"
            )
    _check_once(base, grid, runs)
    points = len(runs) * prod(map(len, grid.values()))
    if points > MOST_POINTS:
        raise ValueError(
            f"the grid and the runs of the sweep make {points} points; at most {MOST_POINTS} can "
            "be looked after: split it, or leave out values"
        )
    return [
        make_spec(base, change, dict(zip(grid, values, strict=True)), lenient=True)
        for change in runs
        for values in itertools.product(*grid.values())
    ]


def _check_once(base: Any, grid: dict[str, list[Any]], runs: Iterable[Any]) -> None:
    """Raise ValueError for a field of the grid that stands elsewhere, too. Runs change the base."""
    axes: dict[str, str] = {}
    for name, values in grid.items():
        for each in values if name in WHOLE else ({name: None},):
            for field_ in named(each) if isinstance(each, dict) else ():
                if (before := axes.setdefault(field_, name)) != name:
                    raise twice(field_, f"the axis {before}", f"the axis {name}")
    for where, each in [("base", base), *(("runs", run) for run in runs)]:
        for field_, written in named(each).items() if isinstance(each, dict) else ():
            if field_ in axes:
                raise twice(field_, f"{written} of {where}", f"the axis {axes[field_]}")


State = Literal["pending", "running", "done", "failed"]

LOOK_AGAIN_S = 0.5
"""Seconds between two looks for a free device."""


@dataclass(kw_only=True)
class Point:
    """One run of a sweep."""

    spec: RunSpec
    key: str
    record: RunRecord | None = None
    cached: bool = False
    work: Work | None = None
    """While it runs."""
    step_seconds: list[float] = field(default_factory=list)
    """Seconds of the steps that the present run has done."""
    began: float = 0.0

    @property
    def state(self) -> State:
        if self.work is not None:
            return "running"
        if self.record is None or self.record.status == "cancelled":  # nobody let it finish
            return "pending"
        return "done" if self.record.status in RESULTS else "failed"


class Sweep(Teller):
    """Runs a list of specs. `run` blocks; `poll` does not, for user interfaces. Events are those of
    the runs, each with the index of its point, and point, point_ended and waiting."""

    def __init__(
        self,
        specs: Iterable[RunSpec],
        store: Store,
        *,
        timeout: float | None = None,
        retry_failed: bool = False,
        force: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """Points with a record are done; errors and time-outs only run again with `retry_failed`.

        `executor`: by default this machine. Raises ValueError for an unknown method or a device
        that is not here. Starts nothing.
        """
        super().__init__()
        check_timeout(timeout)
        keys = Keys()
        unique = {keys.of(spec): spec for spec in specs}
        self.points = [Point(spec=spec, key=key) for key, spec in unique.items()]
        self.store = store
        self.paused = False
        """While it is, nothing new is started; what runs is let finish."""
        self.waits_for = ""
        """Resource that the sweep waits for while nothing runs, in words."""
        self._executor = executor or LocalExecutor(store, what="a sweep")
        self._timeout, self._force = timeout, force
        # A cancelled run is one that nobody let finish, so it never counts as done.
        self._accept = RESULTS if retry_failed else frozenset(STATUSES) - {"cancelled"}
        self._cancelled = False
        self._look_at = 0.0
        if not force:
            for point in self.points:
                found = store.find(point.key)
                if found is not None and found.status in self._accept:
                    point.record, point.cached = found, True

    @property
    def running(self) -> list[Point]:
        """The points that are running."""
        return [point for point in self.points if point.work is not None]

    @property
    def ended(self) -> bool:
        return not self.running and (self._cancelled or not self._pending())

    def counts(self) -> Counter[str]:
        """Points by state: pending, running, done, failed."""
        return Counter(point.state for point in self.points)

    def seconds_left(self) -> float | None:
        """Expected time to the end; None while nothing is known.

        A pending point takes as long as the finished ones of its method did, or as all did; the
        running ones as their own steps say, from the second on.
        """
        finished: dict[str, list[float]] = {}
        for point in self.points:
            if point.record is not None and point.record.seconds is not None:
                finished.setdefault(point.spec.method, []).append(point.record.seconds)
        everything = list(itertools.chain(*finished.values()))

        def expected(point: Point) -> float | None:
            known = finished.get(point.spec.method) or everything
            seconds = mean(known) if known else None
            if point.work is None:
                return seconds
            if (done := len(point.step_seconds)) > 1:  # the first one may compile layers
                return median(point.step_seconds[1:]) * (point.spec.steps - done)
            return None if seconds is None else max(0.0, seconds - (monotonic() - point.began))

        left = [expected(point) for point in self.points if point.record is None]
        if None in left:
            return None
        return sum(left) / max(1, len(self.running))

    def run(self, on_event: Callable[[Event], None] | None = None) -> list[RunRecord]:
        """Run what is not done; returns the records there are. An exception (Ctrl-C) cancels."""
        try:
            while not self.ended:
                self.poll()
                self.deliver(on_event)
                sleep(POLL_S)
        finally:
            self.close()
        return [point.record for point in self.points if point.record is not None]

    def poll(self) -> None:
        """Do what can be done without waiting: look at what runs, and start what there is room for.
        Raises StoreError."""
        for point in self.running:
            self._follow(point)
        if not self._cancelled and not self.paused and monotonic() >= self._look_at:
            for point in self._pending():
                if not self._start(point):
                    break

    def retry(self) -> int:
        """Take the records of failed points for none, so that they run again; returns how many."""
        failed = [point for point in self.points if point.state == "failed"]
        for point in failed:
            point.record = None
        self._accept = RESULTS
        return len(failed)

    def cancel(self) -> None:
        """End what runs and start nothing more; poll on until `ended`. Safe from any thread."""
        self._cancelled = True
        for point in self.points:
            if (work := point.work) is not None:
                work.cancel()

    def close(self) -> None:
        """Cancel if it still runs, and wait until nothing of it is left."""
        self._cancelled = True
        for point in self.running:
            point.work.close()
            point.record, point.work = point.work.record, None

    def _pending(self) -> list[Point]:
        return [point for point in self.points if point.record is None and point.work is None]

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
