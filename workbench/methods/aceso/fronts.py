"""Recomputation chosen freely: the least time for a stage to fit, by fronts of time against bytes.

Segments of operators are made again: all but the last one's activations are then not kept. A
layer's choices are a front: the least time for each number of bytes saved. Fronts of layers add up,
since segments end at layers. The largest segment is made again at once, so each limit of its size
has fronts of its own, and the best limit is taken. Bytes are counted in units, saved ones rounded
down and needed ones up: a plan that fits here fits.

Layers that are alike share a front. Sums of a few layers are exact. Of more, all are at corners of
their fronts' hulls, the cheapest bytes first: that is at most one layer's step from the best, and
takes no longer for more layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat
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
MOST_EXACT = 16
"""Whole layers of a stage whose fronts are added up exactly."""
MOST_KEPT = 1 << 21
"""Numbers of such sums that are remembered."""
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


class Front(NamedTuple):
    """Choices that no other one beats, by bytes saved."""

    points: tuple[Point, ...]
    saved: np.ndarray
    times: np.ndarray


class Segment(NamedTuple):
    """Operators that are made again together."""

    first: int
    last: int
    saved: int
    """Bytes."""
    time: int
    at_once: int
    """Bytes that are there when it is made again."""


class Span(NamedTuple):
    """A stage's operators, cut at layers."""

    ends: tuple[tuple[int, int], ...]
    """The first part and the last one, or the only one."""
    layers: range
    """Between them."""


class Fronts:
    """Of one model, whose operators are each split in some way."""

    def __init__(
        self, operators: OperatorList, times: np.ndarray, sizes: np.ndarray, rows: np.ndarray
    ) -> None:
        """`times` and `sizes` of all operators; those that are alike have equal `rows`."""
        self.operators, self.times, self.sizes, self.rows = operators, times, sizes, rows
        self.bounds = np.array(self.operators.layers)
        layers = [*pairwise(map(int, self.bounds))]
        layer = max((int(self.sizes[a:b].sum()) for a, b in layers), default=0)
        self.unit = max(1, (layer or int(self.sizes.sum())) // UNITS)
        self.may = np.array([o.kind not in NEVER_AGAIN for o in self.operators.operators])
        keys = [self._key(*each) for each in layers]
        places = {key: i for i, key in reversed([*enumerate(keys)])}
        self.firsts = sorted(places.values())
        """The first layer of each kind: layers of a kind are alike."""
        self.kind = [self.firsts.index(places[key]) for key in keys]
        alike = np.array(self.kind) == np.arange(len(self.firsts))[:, None]
        self.before = np.pad(alike.cumsum(axis=1), ((0, 0), (1, 0)))
        """[kinds, layers + 1]: how many are before a layer."""
        self._parts: dict[tuple[object, ...], Front] = {}
        self._pairs: dict[tuple[object, ...], tuple[np.ndarray, np.ndarray]] = {}
        self._sums: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        self._hulls: dict[int, Hull] = {}
        self._segments: dict[tuple[object, ...], list[Segment]] = {}
        self._limits: dict[tuple[object, ...], tuple[int, ...]] = {}

    @classmethod
    def uniform(cls, costs: Costs, samples: int, tp: int) -> Fronts:
        """Of operators that are all split alike."""
        made, _ = costs.table(samples, tp, 0)
        return cls(costs.operators, made[FORWARD], made[ACTIVATIONS], costs.rows)

    @classmethod
    def of_stage(cls, costs: Costs, stage: Stage, first: int, micro: int) -> Fronts:
        """Of a stage's operators, each as it is split there."""
        last = first + len(stage.tp)
        made = np.zeros((3, len(costs.operators)), dtype=np.int64)
        made[:2, first:last] = costs.columns(stage, first, micro)[[FORWARD, ACTIVATIONS]]
        made[2] = costs.rows
        for lists in stage[1:4]:
            made[2, first:last] = made[2, first:last] << 8 | np.frombuffer(lists, dtype=np.uint8)
        return cls(costs.operators, *made)

    def _span(self, first: int, last: int) -> Span:
        low = int(np.searchsorted(self.bounds, first, side="right"))
        high = int(np.searchsorted(self.bounds, last))
        if low >= high:
            return Span(((first, last),), range(0))
        ends = (first, int(self.bounds[low])), (int(self.bounds[high - 1]), last)
        return Span(ends, range(low, high - 1))

    def limits(self, first: int, last: int) -> tuple[int, ...]:
        """Sizes that segments of a stage may have at most."""
        span = self._span(first, last)
        present = np.flatnonzero(self._counts(span.layers))
        parts = *span.ends, *(self._layer(kind) for kind in present)
        key = tuple(self._key(*part) for part in parts)
        if key not in self._limits:
            useful: set[tuple[float, int]] = set()
            for part in parts:
                useful |= {
                    (each.time / each.saved, each.at_once) for each in self._useful(*part, 0)
                }
            cheap = list(dict.fromkeys(at_once for _, at_once in sorted(useful)))
            spread = sorted(cheap)[:: -max(1, len(cheap) // 4)]
            self._limits[key] = tuple(sorted({*cheap[:MOST_LIMITS], *spread}))
        return self._limits[key]

    def least(self, first: int, last: int, excess: int, turns: int) -> tuple[int, int]:
        """Nanoseconds to save `excess` bytes where each byte counts in `turns` micro-batches, and
        the limit of segments; `LONG` where it cannot be."""
        best, span = (LONG, 0), self._span(first, last)
        for limit in self.limits(first, last):
            units = -(-(excess + limit) // (turns * self.unit))
            best = min(best, (self._lookup(span, limit, units), limit))
        return best

    def flags(self, first: int, last: int, excess: int, turns: int) -> bytes:
        """The choice of `least`, as flags of operators."""
        flags = bytearray(last - first)
        time, limit = self.least(first, last, excess, turns)
        if time >= LONG:
            return bytes(flags)
        span = self._span(first, last)
        for start, point in self._chosen(span, limit, -(-(excess + limit) // (turns * self.unit))):
            for a, b in point.segments:
                flags[start - first + a : start - first + b + 1] = b"\1" * (b - a + 1)
        return bytes(flags)

    def _lookup(self, span: Span, limit: int, units: int) -> int:
        """Least time of a stage to save so many units."""
        if units <= 0:
            return 0
        key = (limit, *(self._key(*part) for part in span.ends))
        if key not in self._pairs:
            self._pairs[key] = _unbeaten(*self._both(span, limit))
        saved, times = self._pairs[key]
        return int((times + self._layers(span.layers, limit, units - saved)).min())

    def _both(self, span: Span, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Units and times of each choice of a stage's ends."""
        fronts = [self.front(*part, limit, opens=not i) for i, part in enumerate(span.ends)]
        saved, times = fronts[0][1:]
        for front in fronts[1:]:
            saved = np.add.outer(saved, front.saved).ravel()
            times = np.add.outer(times, front.times).ravel()
        return saved, times

    def _chosen(self, span: Span, limit: int, units: int) -> list[tuple[int, Point]]:
        """First operator and choice of each part of a stage."""
        saved, times = self._both(span, limit)
        best = int((times + self._layers(span.layers, limit, units - saved)).argmin())
        left, found = units - int(saved[best]), []
        for index, part in reversed([*enumerate(span.ends)]):
            points = self.front(*part, limit, opens=not index).points
            best, place = divmod(best, len(points))
            found.append((part[0], points[place]))
        layers = span.layers
        if len(layers) > MOST_EXACT:
            corners = self._hull(limit).corners(self._counts(layers), left)
            for at in layers:
                front = self.front(*self.bounds[at : at + 2], limit)
                found.append((int(self.bounds[at]), front.points[next(corners[self.kind[at]])]))
            return found
        while layers:
            at, layers = layers[-1], layers[:-1]
            front = self.front(*self.bounds[at : at + 2], limit)
            rest = self._layers(layers, limit, left - front.saved)
            point = front.points[int((front.times + rest).argmin())]
            found.append((int(self.bounds[at]), point))
            left -= point.saved
        return found

    def _layers(self, layers: range, limit: int, units: np.ndarray) -> np.ndarray:
        """Least times of whole layers to save so many units each."""
        need = np.maximum(units, 0)
        if len(layers) > MOST_EXACT:
            return self._hull(limit).times(self._counts(layers), need)
        sums = self._sum(self._counts(layers), limit)
        return np.where(need < len(sums), sums[np.minimum(need, len(sums) - 1)], LONG)

    def _counts(self, layers: range) -> tuple[int, ...]:
        """How many layers there are of each kind."""
        found = self.before[:, layers.stop] - self.before[:, layers.start]
        return tuple(found.tolist()) if layers else (0,) * len(self.firsts)

    def _layer(self, kind: int) -> tuple[int, int]:
        """First operator of a layer of a kind, and the one after its last."""
        first, last = self.bounds[self.firsts[kind] : self.firsts[kind] + 2].tolist()
        return first, last

    def _sum(self, counts: tuple[int, ...], limit: int) -> np.ndarray:
        """Least time of whole layers by units to save."""
        key = (limit, counts)
        if key not in self._sums:
            made = np.zeros(1, dtype=np.int64)
            kind = next((kind for kind, number in enumerate(counts) if number), None)
            if kind is not None:
                front = self.front(*self._layer(kind), limit)
                before = self._sum((*counts[:kind], counts[kind] - 1, *counts[kind + 1 :]), limit)
                size = len(before)
                made = np.full(size + int(front.saved.max()), LONG, dtype=np.int64)
                for saved, time in zip(front.saved.tolist(), front.times.tolist(), strict=True):
                    part = made[saved : saved + size]
                    np.minimum(part, before + time, out=part)
                made = np.minimum.accumulate(made[::-1])[::-1]  # more may be saved than needed
            if sum(map(len, self._sums.values())) > MOST_KEPT:
                self._sums.clear()
            self._sums[key] = made
        return self._sums[key]

    def _hull(self, limit: int) -> Hull:
        if limit not in self._hulls:
            fronts = [self.front(*self._layer(kind), limit) for kind in range(len(self.firsts))]
            self._hulls[limit] = Hull(fronts)
        return self._hulls[limit]

    def _key(self, first: int, last: int) -> bytes:
        return self.rows[first:last].tobytes()

    def front(self, first: int, last: int, limit: int, *, opens: bool = False) -> Front:
        """Of a part, which may open a stage."""
        # Else a segment would go on with the one before, and be larger than either.
        begin = 0 if opens or self.operators.operators[first].starts_layer else 1
        key = (limit, begin, self._key(first, last))
        if key not in self._parts:
            points = self._front(first, last, limit, begin)
            saved, times = (np.array([p[i] for p in points]) for i in (0, 1))
            self._parts[key] = Front(points, saved, times)
        return self._parts[key]

    def _useful(self, first: int, last: int, begin: int) -> list[Segment]:
        """Segments of a part that no shorter one inside them beats."""
        key = (begin, self._key(first, last))
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


class Hull:
    """Layers at corners of the hulls of their fronts, which are given by kind."""

    def __init__(self, fronts: Sequence[Front]) -> None:
        self.ways = [_corners(front) for front in fronts]
        self.least = [int(front.saved[0]) for front in fronts]
        steps = []
        for kind, way in enumerate(self.ways):
            for at, (a, b) in enumerate(pairwise(way)):
                saved, times = (int(each[b] - each[a]) for each in fronts[kind][1:])
                steps.append((times / saved, kind, at, saved, times))
        steps.sort()
        self.kind, self.saved, self.longer = np.array(
            [(kind, saved, time) for _, kind, _, saved, time in steps] or [(0, 1, LONG)]
        ).T
        """Steps from corner to corner, the cheapest by byte first."""

    def times(self, counts: tuple[int, ...], units: np.ndarray) -> np.ndarray:
        """Times of so many layers of each kind that save so many units."""
        last, taken, before = self._walk(counts, units)
        return np.where(taken < 0, LONG, before + taken * self.longer[last])

    def corners(self, counts: tuple[int, ...], units: int) -> list[Iterator[int]]:
        """By kind, the choices of its layers."""
        (last,), (taken,), _ = self._walk(counts, np.array([units]))
        done = np.bincount(self.kind[:last], minlength=len(counts)).tolist()
        further = [int(taken) * (kind == self.kind[last]) for kind in range(len(counts))]
        return [
            chain(repeat(way[at + (more > 0)], more), repeat(way[at]))
            for way, at, more in zip(self.ways, done, further, strict=True)
        ]

    def _walk(
        self, counts: tuple[int, ...], units: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The last step to save so many units, how many layers take it, below 0 where no number
        does, and the time of all steps before."""
        saved, times = (each * np.array(counts)[self.kind] for each in (self.saved, self.longer))
        least = sum(n * saved for n, saved in zip(counts, self.least, strict=True))
        need, ends = np.maximum(units - least, 0), saved.cumsum()
        last = np.minimum(np.searchsorted(ends, need), len(ends) - 1)
        taken = -(((ends - saved)[last] - need) // self.saved[last])
        return last, np.where(need > ends[-1], -1, taken), (times.cumsum() - times)[last]


def _corners(front: Front) -> list[int]:
    """Choices on the lower hull of time over bytes."""
    found: list[int] = []
    for place, (saved, time) in enumerate(zip(*front[1:], strict=True)):
        while len(found) > 1:
            (s, t), (a, b) = ((front.saved[i], front.times[i]) for i in found[-2:])
            if (b - t) * (saved - s) < (time - t) * (a - s):
                break
            found.pop()
        found.append(place)
    return found


def _unbeaten(saved: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs without those that save no more in as much time."""
    order = np.lexsort((times, -saved))
    saved, times = saved[order], times[order]
    least = np.minimum.accumulate(times)
    kept = np.append(True, times[1:] < least[:-1])
    return saved[kept], times[kept]


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
