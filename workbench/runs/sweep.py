"""Many runs that survive whatever happens to the process that does them.

A sweep keeps no state of its own: what is finished is what the store has records of, so a sweep
that was killed resumes by being started again, two sweeps may share a store, and a point that two
sweeps share runs once.

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import mean, median
from time import monotonic
from typing import Any

from workbench.core.methods import RENAMED
from workbench.core.paths import user_path
from workbench.core.record import RESULTS, STATUSES, RunRecord
from workbench.core.schema import read_as
from workbench.core.spec import RunSpec
from workbench.runs.events import Event
from workbench.runs.overrides import WHOLE, make_spec, named, read_object, twice
from workbench.runs.polled import Point, PolledRuns
from workbench.runs.resolve import Keys, settled
from workbench.runs.store import REPOSITORY_RESULTS, Store

VERSION = 2
"""Version of sweep files."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOST_POINTS = 4000
"""Points of a sweep: hours of runs that take a few seconds each."""


def check_name(name: str, what: str) -> str:
    """The name of `what`, seen to be one that a file or a folder may have. Raises ValueError."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name {what}; use up to 64 letters, digits, dots, underscores and "
            "hyphens, the first a letter or a digit"
        )
    return name


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
        if self.name is not None:
            check_name(self.name, "a sweep")
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"timeout is {self.timeout:g}; it must be positive, in seconds")
        if not re.fullmatch(r"local|ray(:.+)?", self.executor):
            raise ValueError(
                f"executor is {self.executor!r}; it must be local, ray, or ray:ADDRESS"
            )
        if not self.runs:
            raise ValueError("runs is []; it must be a list of at least one object")
        if not 1 <= self.version <= VERSION:
            raise ValueError(f"version is {self.version}; this program reads 1 to {VERSION}")

    def specs(self) -> list[RunSpec]:
        """Specs of all runs. Raises ValueError for one that cannot be."""
        return expand(self.base, grid=self.grid, runs=self.runs)


@dataclass(frozen=True, kw_only=True)
class SweepFile:
    """A sweep as written down."""

    specs: list[RunSpec]
    data: dict[str, Any]
    """The sweep file's JSON, as it stands there."""
    written: Written
    """The file's fields. One that names an `exhibit` is no sweep but the runs of that."""
    name: str
    """As the file says, else the file's own."""
    results: Path
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
        written = read_as(Written, data, str(source))
        name = written.name or re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).stem).strip("-.")
        results = REPOSITORY_RESULTS if written.results is None else written.results
        return cls(
            specs=[]
            if written.exhibit
            else expand(written.base, grid=written.grid, runs=written.runs),
            data=data,
            written=written,
            name=name or "sweep",
            results=Path(source).parent / user_path(results),
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


class Sweep(PolledRuns):
    """Runs a list of specs. `run` blocks; `poll` does not, for user interfaces."""

    def __init__(
        self, specs: Iterable[RunSpec], store: Store, *, retry_failed: bool = False, **how: Any
    ) -> None:
        """Points with a record are done; errors and time-outs only run again with `retry_failed`.

        `how` as of `PolledRuns`. Raises ValueError for an unknown method or a device that is not
        here.
        """
        super().__init__(store, "a sweep", **how)
        keys = Keys()
        specs = [settled(spec, store.root) for spec in specs]
        unique = {keys.of(spec): spec for spec in specs}
        self.points = [Point(spec=spec, key=key) for key, spec in unique.items()]
        # A cancelled run is one that nobody let finish, so it never counts as done.
        self._accept = RESULTS if retry_failed else frozenset(STATUSES) - {"cancelled"}
        for point in () if self._force else self.points:
            found = store.find(point.key)
            if found is not None and found.status in self._accept:
                point.record, point.cached = found, True

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
        self.finish(on_event)
        return [point.record for point in self.points if point.record is not None]

    def retry(self) -> int:
        """Take the records of failed points for none, so that they run again; returns how many."""
        failed = [point for point in self.points if point.state == "failed"]
        for point in failed:
            point.record = None
        self._accept = RESULTS
        return len(failed)

    def _pending(self) -> list[Point]:
        return [point for point in self.points if point.record is None and point.work is None]
