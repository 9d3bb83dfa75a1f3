"""The largest model that trains: a search over layers, each probe a real run with a record.

The bracket comes from the planner, which knows the memory of a method to the byte where the method
is ours; where it is right, two probes are enough: its guess trains, and one layer more does not.
Where it is wrong the search widens by 1, 2, 4, ... layers and then halves. Every probe is a run in
a process of its own under the spec's budgets, so the answer is measured, not planned; and every
probe is a record, so a search that was killed continues and one that is done costs nothing.

A `Search` is polled like a `Sweep`, and offers points and events like one to code that shows
progress.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.runs.events import Event, Teller, make_event
from workbench.runs.executor import Executor, LocalExecutor, Work
from workbench.runs.planning import answer, fits
from workbench.runs.resolve import key_of, resolve
from workbench.runs.runner import POLL_S
from workbench.runs.store import Store
from workbench.runs.sweep import LOOK_AGAIN_S, Point
from workbench.schedule.plan import Plan

FITS = ("ok", "diverged")
"""Statuses of a run that had memory enough."""
TOO_LARGE = ("oom_device", "oom_host", "oom_disk")


def next_probe(known: Mapping[int, bool], *, guess: int, limit: int) -> int | None:
    """Layers to try next; None when the answer is known.

    `known` is whether each number of layers fits, monotone: what fits, fits with fewer layers too.

    >>> next_probe({}, guess=20, limit=96)
    20
    >>> next_probe({20: True}, guess=20, limit=96)
    21
    >>> next_probe({20: True, 21: False}, guess=20, limit=96)
    >>> next_probe({20: False, 19: False, 17: True}, guess=20, limit=96)
    18
    """
    if not known:
        return min(max(guess, 1), limit)
    best = max((layers for layers, ok in known.items() if ok), default=0)
    worst = min((layers for layers, ok in known.items() if not ok), default=limit + 1)
    if best >= limit or worst <= best + 1:
        return None
    if worst <= limit and best > 0:
        return (best + worst) // 2
    # Only one end is known: go beyond it by 1, 2, 4, ...
    stride = 2 ** (len(known) - 1)
    return min(best + stride, limit) if best else max(worst - stride, 1)


def at_layers(spec: RunSpec, layers: int) -> RunSpec:
    """The spec with that many layers; a window larger than the model shrinks with it."""
    window = getattr(spec.options, "window", "auto")
    changes = {} if window == "auto" else {"window": min(window, max(2, layers))}
    return spec.with_(model=replace(spec.model, layers=layers), **changes)


def planned_largest(
    spec: RunSpec, store: Store, *, limit: int, fitting: Callable[[RunSpec], bool] | None = None
) -> int:
    """The most layers that the planner says fit, 0 for none. Nothing runs. `fitting` says what
    fits; None for this machine with the spec's budgets."""
    fitting = fitting or (lambda spec: fits(spec, store, soon=True))
    low, high = 0, limit
    while low < high:
        middle = min((low + high + 1) // 2, max(8, 2 * low))  # deep models take long to ask about
        if fitting(at_layers(spec, middle)):
            low = middle
        else:
            high = middle - 1
    return low


class Search(Teller):
    """One method's largest model. Poll it until `ended`; `layers` is the answer, 0 for none. Events
    are those of the runs, and point and point_ended."""

    def __init__(
        self,
        spec: RunSpec,
        store: Store,
        *,
        limit: int,
        force: bool = False,
        timeout: float | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Starts nothing. Raises ValueError for an unknown method or a device that is not here."""
        super().__init__()
        self.spec, self.store, self.limit = resolve(spec), store, limit
        self._force, self._timeout = force, timeout
        self._cancelled = False
        self._guess: int | None = None
        self._executor = executor or LocalExecutor(store, what="a search for the largest model")
        self._look_at = 0.0
        self.waits_for = ""
        """Resource that the search waits for while nothing runs, in words."""
        self.paused = False
        """While it is, no probe is started; the one that runs is let finish."""
        self._job: Work | None = None
        self.failed = ""
        """Why the search ended without an answer: a run failed for another reason than memory."""
        self.points = [] if force else self._known()

    @property
    def guess(self) -> int:
        """Largest size by the planner; asked once, when first needed."""
        if self._guess is None:
            self._guess = planned_largest(self.spec, self.store, limit=self.limit)
        return self._guess

    @property
    def beyond(self) -> Plan:
        """The planner's answer for one layer more than its guess: what lacks there."""
        return answer(at_layers(self.spec, self.guess + 1), self.store).plan

    @property
    def layers(self) -> int:
        """The most layers that trained so far."""
        return max((_layers(p) for p in self.points if p.record and _fits(p.record)), default=0)

    @property
    def complete(self) -> bool:
        """Whether the answer is known."""
        return bool(self._outcomes()) and self._next() is None

    @property
    def ended(self) -> bool:
        return self._job is None and (self._cancelled or bool(self.failed) or self._next() is None)

    @property
    def running(self) -> list[Point]:
        """The probe that is running."""
        return [point for point in self.points if point.work is not None]

    def counts(self) -> Counter[str]:
        """Probes by state: running, done, failed; how many are to come is not known."""
        return Counter(point.state for point in self.points)

    def seconds_left(self) -> float | None:
        """A search does not know how many probes it takes."""
        return None

    def run(self, on_event: Callable[[Event], None] | None = None) -> int:
        """Probe until the answer is known and return it. An exception (Ctrl-C) cancels."""
        try:
            while not self.ended:
                self.poll()
                self.deliver(on_event)
                time.sleep(POLL_S)
        finally:
            self.close()
        return self.layers

    def poll(self) -> None:
        """Do what can be done without waiting: start the next probe, or look at the current one.

        The first call asks the planner, which takes a second or two.
        """
        if self._job is None:
            if self.ended or self.paused or time.monotonic() < self._look_at:
                return
            spec = at_layers(self.spec, self._next())
            self._job = self._executor.start(spec, force=self._force, timeout=self._timeout)
            if self._job is None:
                self._look_at = time.monotonic() + LOOK_AGAIN_S
                if self.waits_for != self._executor.waits_for:
                    self.waits_for = self._executor.waits_for
                    self._events.append(make_event("waiting", text=f"waiting for {self.waits_for}"))
                return
            self.waits_for = ""
            self.points.append(Point(spec=spec, key=self._job.key, work=self._job))
            self._tell("point", where=self._job.where)
        record, point = self._job.poll(), self.points[-1]
        for event in self._job.new_events():
            if event["event"] == "step":
                point.step_seconds.append(float(event["seconds"]))
            self._events.append({"index": len(self.points) - 1, **event})
        if record is not None:
            point.record, point.cached, point.work = record, self._job.cached, None
            self._tell("point_ended", status=record.status, message=record.message)
            self._job.close()
            self._job = None
            if record.status not in (*FITS, *TOO_LARGE):
                self.failed = f"{_layers(point)} layers: {record.status}: {record.message}"

    def retry(self) -> int:
        """Probe again what failed for another reason than memory; returns how many that are."""
        failed = [point for point in self.points if point.state == "failed"]
        self.points = [point for point in self.points if point not in failed]
        self.failed = ""
        return len(failed)

    def cancel(self) -> None:
        """End the current probe and start no other; poll on until `ended`."""
        self._cancelled = True
        if self._job is not None:
            self._job.cancel()

    def close(self) -> None:
        """Cancel if it still runs, and wait until nothing of it is left."""
        self._cancelled = True
        if self._job is not None:
            self._job.close()
            self.points[-1].record, self.points[-1].work = self._job.record, None
            self._job = None

    def _next(self) -> int | None:
        outcomes = self._outcomes()
        guess = 0 if outcomes else self.guess
        return next_probe(outcomes, guess=guess, limit=self.limit)

    def _outcomes(self) -> dict[int, bool]:
        return {
            _layers(point): _fits(point.record)
            for point in self.points
            if point.record is not None and point.record.status in (*FITS, *TOO_LARGE)
        }

    def _known(self) -> list[Point]:
        """Earlier probes of this very search, as far as their records still hold."""
        points = []
        for record in self.store.records():
            if record.method != self.spec.method or record.status not in (*FITS, *TOO_LARGE):
                continue
            layers = record.spec["model"]["layers"]
            if not 1 <= layers <= self.limit:
                continue
            spec = at_layers(self.spec, layers)
            if spec.to_dict() == record.spec and key_of(spec) == record.key:
                points.append(Point(spec=spec, key=record.key, record=record, cached=True))
        return points

    def _tell(self, kind: str, **values: Any) -> None:
        index = len(self.points) - 1
        self._events.append(make_event(kind, index=index, key=self.points[index].key, **values))


def _layers(point: Point) -> int:
    return point.spec.model.layers


def _fits(record: RunRecord) -> bool:
    return record.status in FITS
