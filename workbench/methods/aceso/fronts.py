"""Recomputation chosen freely: the least time for a stage to fit, by fronts of time against bytes.

Segments of operators are made again: all but the last one's activations are then not kept. A
layer's choices are a front: the least time for each number of bytes saved. Fronts of layers add up,
since segments end at layers. The largest segment is made again at once, so each limit of its size
has fronts of its own, and the best limit is taken. Bytes are counted in units, saved ones rounded
down and needed ones up: a plan that fits here fits.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from workbench.methods.aceso.costs import Costs
from workbench.methods.aceso.database import ACTIVATIONS, FORWARD
from workbench.methods.aceso.plan import Stage
from workbench.model.operators import OperatorList

UNITS = 800
"""Of a layer's activations."""
MOST_POINTS = 64
MOST_LIMITS = 12
"""Sizes of segments that are tried as limits, those of the cheapest ones by byte first."""
LONG = 10**15
"""Nanoseconds of what cannot be."""
NEVER_AGAIN = ("embedding", "head", "classifier")
"""Kinds of operators that are not made again."""


class Point(NamedTuple):
    """A choice of a layer, or of a part of one."""

    saved: int
    """Units."""
    time: int
    """Nanoseconds."""
    segments: tuple[tuple[int, int], ...]
    """First and last operator of each, counted from the part's first one."""


Choices = tuple[tuple[Point, ...], np.ndarray, np.ndarray]


class Segment(NamedTuple):
    """Operators that are made again together."""

    first: int
    last: int
    saved: int
    """Bytes."""
    time: int
    at_once: int
    """Bytes that are there when it is made again."""


class Fronts:
    """Of one model, whose operators are each split in some way."""

    def __init__(
        self, operators: OperatorList, times: np.ndarray, sizes: np.ndarray, rows: np.ndarray
    ) -> None:
        """`times` and `sizes` of all operators; those that are alike have equal `rows`."""
        self.operators, self.times, self.sizes, self.rows = operators, times, sizes, rows
        self.bounds = np.array(self.operators.layers)
        spans = zip(self.bounds, self.bounds[1:], strict=False)
        layer = max((int(self.sizes[a:b].sum()) for a, b in spans), default=0)
        self.unit = max(1, (layer or int(self.sizes.sum())) // UNITS)
        self.may = np.array([o.kind not in NEVER_AGAIN for o in self.operators.operators])
        self._parts: dict[tuple[object, ...], Choices] = {}
        self._sums: dict[tuple[object, ...], np.ndarray] = {}
        self._spans: dict[tuple[int, ...], np.ndarray] = {}
        self._segments: dict[tuple[object, ...], list[Segment]] = {}
        self.limits = cache(self._limits)

    @classmethod
    def uniform(cls, costs: Costs, samples: int, tp: int) -> Fronts:
        """Of operators that are all split alike."""
        made, _ = costs.table(samples, tp, 0)
        return cls(costs.operators, made[FORWARD], made[ACTIVATIONS], costs.rows)

    @classmethod
    def of_stage(cls, costs: Costs, stage: Stage, first: int, micro: int) -> Fronts:
        """Of a stage's operators, each as it is split there."""
        count, last = len(costs.operators), first + len(stage.tp)
        columns = costs.columns(stage, first, micro)
        both = np.zeros((2, count), dtype=np.int64)
        both[:, first:last] = columns[[FORWARD, ACTIVATIONS]]
        return cls(costs.operators, *both, np.arange(count))

    def parts(self, first: int, last: int) -> list[tuple[int, int]]:
        """A stage's operators, cut at layers."""
        inner = self.bounds[(self.bounds > first) & (self.bounds < last)]
        return list(pairwise([first, *map(int, inner), last]))

    def _limits(self, first: int, last: int) -> tuple[int, ...]:
        """Sizes that segments of a stage may have at most."""
        useful: set[tuple[float, int]] = set()
        for part in {self._key(*part): part for part in self.parts(first, last)}.values():
            useful |= {(each.time / each.saved, each.at_once) for each in self._useful(*part, 0)}
        cheap = list(dict.fromkeys(at_once for _, at_once in sorted(useful)))
        spread = sorted(cheap)[:: -max(1, len(cheap) // 4)]
        return tuple(sorted({*cheap[:MOST_LIMITS], *spread}))

    def least(self, first: int, last: int, excess: int, turns: int) -> tuple[int, int]:
        """Nanoseconds to save `excess` bytes where each byte counts in `turns` micro-batches, and
        the limit of segments; `LONG` where it cannot be."""
        best = LONG, 0
        for limit in self.limits(first, last):
            units = -(-(excess + limit) // (turns * self.unit))
            time = self._lookup(self.parts(first, last), limit, units)
            best = min(best, (time, limit))
        return best

    def flags(self, first: int, last: int, excess: int, turns: int) -> bytes:
        """The choice of `least`, as flags of operators."""
        flags = bytearray(last - first)
        time, limit = self.least(first, last, excess, turns)
        if time >= LONG:
            return bytes(flags)
        parts = self.parts(first, last)
        left = -(-(excess + limit) // (turns * self.unit))
        chosen: list[tuple[int, Point]] = []
        while parts:
            here, *rest = parts
            point = min(
                self.front(*here, limit, opens=not chosen),
                key=lambda p: p.time + self._lookup(rest, limit, left - p.saved, opens=False),
            )  # fmt: skip
            chosen.append((here[0], point))
            left -= point.saved
            parts = rest
        for start, point in chosen:
            for a, b in point.segments:
                flags[start - first + a : start - first + b + 1] = b"\1" * (b - a + 1)
        return bytes(flags)

    def _lookup(
        self, parts: list[tuple[int, int]], limit: int, units: int, *, opens: bool = True
    ) -> int:
        """Least time of parts to save so many units: whole layers by sums of their fronts, the
        first part, which `opens` a stage, and the last one by their points."""
        if units <= 0:
            return 0
        if not parts:
            return LONG
        ends = [parts[0]] if len(parts) == 1 else [parts[0], parts[-1]]
        sums = self._sum(parts[1:-1], limit)
        saved, times = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        for part in ends:
            _, more, longer = self._choices(part, limit, opens=opens and part == parts[0])
            saved = np.add.outer(saved, more).ravel()
            times = np.add.outer(times, longer).ravel()
        need = np.maximum(units - saved, 0)
        known = need < len(sums)
        if not known.any():
            return LONG
        return int((sums[need[known]] + times[known]).min())

    def _sum(self, parts: list[tuple[int, int]], limit: int) -> np.ndarray:
        """Least time of whole layers by units to save."""
        span = (limit, *(parts and (parts[0][0], parts[-1][1])))
        if span in self._spans:
            return self._spans[span]
        counts = Counter(self._key(*part) for part in parts)
        key = (limit, *sorted(counts.items()))
        if key not in self._sums:
            if not parts:
                made = np.zeros(1, dtype=np.int64)
            else:
                points = self.front(*parts[-1], limit)
                before = self._sum(parts[:-1], limit)
                most = max(p.saved for p in points)
                made = np.full(len(before) + most, LONG, dtype=np.int64)
                for point in points:
                    end = point.saved + len(before)
                    np.minimum(made[point.saved : end], before + point.time,
                               out=made[point.saved : end])  # fmt: skip
                made = np.minimum.accumulate(made[::-1])[::-1]  # more may be saved than needed
            self._sums[key] = made
        self._spans[span] = self._sums[key]
        return self._sums[key]

    def _key(self, first: int, last: int) -> tuple[object, ...]:
        return (self.rows[first:last].tobytes(),)

    def front(self, first: int, last: int, limit: int, *, opens: bool = False) -> tuple[Point, ...]:
        """Choices of a part that no other one beats, by bytes saved."""
        return self._choices((first, last), limit, opens=opens)[0]

    def _choices(self, part: tuple[int, int], limit: int, *, opens: bool) -> Choices:
        """Points of a part, and the bytes and times of all."""
        first, last = part
        # Else a segment would go on with the one before, and be larger than either.
        begin = 0 if opens or self.operators.operators[first].starts_layer else 1
        key = (limit, begin, *self._key(first, last))
        if key not in self._parts:
            points = self._front(first, last, limit, begin)
            saved, times = (np.array([p[i] for p in points]) for i in (0, 1))
            self._parts[key] = points, saved, times
        return self._parts[key]

    def _useful(self, first: int, last: int, begin: int) -> list[Segment]:
        """Segments of a part that no shorter one inside them beats."""
        key = (begin, *self._key(first, last))
        if key not in self._segments:
            self._segments[key] = self._find_useful(first, last, begin)
        return self._segments[key]

    def _find_useful(self, first: int, last: int, begin: int) -> list[Segment]:
        count, found = last - first, []
        times, sizes, may = (each[first:last] for each in (self.times, self.sizes, self.may))
        if self.operators.apart:
            each = zip(sizes.tolist(), times.tolist(), strict=True)
            return [Segment(a, a, size, time, size) for a, (size, time) in enumerate(each) if size]
        for length in range(1, count):
            for a in range(begin, count - length):
                b = a + length
                if not may[a : b + 1].all() or sizes[a] == 0:
                    continue
                saved, time = int(sizes[a:b].sum()), int(times[a : b + 1].sum())
                if not any(a <= s.first and s.last <= b and s.saved >= saved for s in found):
                    # Where the next layer's first operator is made again, so is this one's output.
                    at_once = saved + (int(sizes[b]) if b == count - 1 else 0)
                    found.append(Segment(a, b, saved, time, at_once))
        return found

    def _front(self, first: int, last: int, limit: int, begin: int) -> tuple[Point, ...]:
        count = last - first
        steps: dict[int, list[Segment]] = {}
        for each in self._useful(first, last, begin):
            if each.at_once <= limit:
                steps.setdefault(each.first, []).append(each)
        reached: list[list[Point]] = [[] for _ in range(count + 1)]
        reached[0] = [Point(0, 0, ())]
        for at in range(count):
            points = reached[at] = _pruned(reached[at])
            reached[at + 1] += points
            for each in steps.get(at, ()):
                span = (at, each.last)
                reached[min(each.last + 2, count)] += [
                    Point(p.saved + each.saved, p.time + each.time, (*p.segments, span))
                    for p in points
                ]
        ends = _pruned(reached[count])
        units = [p._replace(saved=p.saved // self.unit) for p in ends]
        return tuple(_pruned(units))


def _pruned(points: list[Point]) -> list[Point]:
    """Without points that save no more in as much time; some evenly over bytes, where many are
    left."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.saved, p.time)):
        if not kept or point.time < kept[-1].time:
            kept.append(point)
    if len(kept) > MOST_POINTS:
        places = np.linspace(0, len(kept) - 1, MOST_POINTS).round().astype(int)
        kept = [kept[i] for i in sorted(set(places))]
    return kept[::-1]
