"""The largest model that trains: a search over layers, each probe a real run with a record.

The bracket comes from the planner, which knows the memory of a method to the byte where the method
is ours; where it is right, two probes are enough: its guess trains, and one layer more does not.
Where it is wrong the search widens by 1, 2, 4, ... layers and then halves. Every probe is a run in
a process of its own under the spec's budgets, so the answer is measured, not planned; and every
probe is a record, so a search that was killed continues and one that is done costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.runs.events import Event
from workbench.runs.planning import answer, fits
from workbench.runs.polled import Point, PolledRuns
from workbench.runs.resolve import key_of, resolve
from workbench.runs.store import Store
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


class Search(PolledRuns):
    """One method's largest model. Poll it until `ended`; `layers` is the answer, 0 for none. A run
    that fails for another reason than memory ends it without an answer."""

    def __init__(self, spec: RunSpec, store: Store, *, limit: int, **how: Any) -> None:
        """`how` as of `PolledRuns`. Raises ValueError for an unknown method or a device that is not
        here."""
        super().__init__(store, "a search for the largest model", **how)
        self.spec, self.limit = resolve(spec, store.root), limit
        self._guess: int | None = None
        self.points = [] if self._force else self._known()

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
    def failed(self) -> str:
        """Why the search has no answer: a run that failed for another reason than memory."""
        ended = [(_layers(point), point.record) for point in self._failed()]
        return "; ".join(f"{n} layers: {each.status}: {each.message}" for n, each in ended)

    def run(self, on_event: Callable[[Event], None] | None = None) -> int:
        """Probe until the answer is known and return it. An exception (Ctrl-C) cancels."""
        self.finish(on_event)
        return self.layers

    def retry(self) -> int:
        """Probe again what failed for another reason than memory; returns how many that are."""
        failed = self._failed()
        self.points = [point for point in self.points if point not in failed]
        return len(failed)

    def _pending(self) -> list[Point]:
        """The next probe. The first call asks the planner, which takes a second or two."""
        layers = None if self.running or self._failed() else self._next()
        return [] if layers is None else [Point(spec=at_layers(self.spec, layers))]

    def _failed(self) -> list[Point]:
        ended = (point for point in self.points if point.record is not None)
        return [point for point in ended if point.record.status not in (*FITS, *TOO_LARGE)]

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


def _layers(point: Point) -> int:
    return point.spec.model.layers


def _fits(record: RunRecord) -> bool:
    return record.status in FITS
