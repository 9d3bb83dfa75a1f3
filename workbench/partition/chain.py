"""Cuts of a chain of layers into S packs whose slowest pack is the fastest possible, within memory.

The slowest stage of a pipeline sets its pace, and so does the slowest of packs that wrap around the
GPUs in turn. Published rules cut near equal shares and then see whether the packs fit; here the
largest pack time is minimal among all partitions into S packs that fit, for every S that is asked.

Memory is any yes or no about (first, last): it may be uneven (a pack that ends at a large
activation needs more than a longer one), so that a greedy fill would be wrong. Whether limit T on
the pack time can be met is asked for all S at once: `counts[j]` is a bit set of the S with which
layers before j can be cut, and packs that end before j only add their starts' sets, shifted by one.
The smallest T for each S is one of the sums of consecutive layers; every answer narrows the
interval of all S that are still open, which share the work of a sweep.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from operator import neg

Packs = tuple[range, ...]
"""Consecutive layers, in their order."""

Fits = Callable[[int, int], bool]
"""Whether layers `first` to `last`, both included, may be one pack."""


def min_max_partition(seconds: Sequence[float], count: int, fits: Fits) -> Packs | None:
    """The partition of all layers into `count` packs with the smallest largest time, or None."""
    return min_max_partitions(seconds, (count,), fits).get(count)


def min_max_partitions(
    seconds: Sequence[float],
    counts: Iterable[int],
    fits: Fits,
    *,
    tolerance: float = 0.0,
    even: bool = False,
) -> dict[int, Packs]:
    """Number of packs -> its best partition, for those of `counts` that memory allows. With a
    tolerance the slowest pack may be slower by that share. `even`: whether every part of a pack
    that fits is known to fit, so that few packs need to be asked about."""
    wanted = sorted(set(counts))
    if not seconds or any(value < 0 for value in seconds):
        raise ValueError("a partition needs layers, and their times from 0 s on")
    if wanted and not 1 <= wanted[0] <= wanted[-1] <= len(seconds):
        raise ValueError(
            f"{len(seconds)} layers cannot be cut into {wanted[0]} to {wanted[-1]} packs: give "
            f"counts from 1 to {len(seconds)}"
        )
    return _Sweep(seconds, wanted, fits, tolerance, even).partitions() if wanted else {}


class _Sweep:
    def __init__(
        self, seconds: Sequence[float], wanted: list[int], fits: Fits, tolerance: float, even: bool
    ) -> None:
        self.layers, self.tolerance = len(seconds), tolerance
        self.wanted = wanted
        self.mask = (2 << wanted[-1]) - 1
        self.ends = list(accumulate(seconds, initial=0.0))
        self.starts = _starts_of_parts(self.layers, fits) if even else _starts(self.layers, fits)
        """First layers of the packs that fit, by their last layer; the nearest first."""
        self.earliest = self._earliest()
        """Earliest first layer of the packs that fit, by their last layer, where all between fit
        too and it never comes back; empty where memory is less even."""
        import numpy as np  # not by all who import this, options of methods among them

        ends = np.array(self.ends)
        sums = [ends[stop] - ends[starts] for stop, starts in enumerate(self.starts, 1) if starts]
        self.limits = np.unique(np.concatenate(sums)).tolist() if sums else []

    def _earliest(self) -> list[int]:
        earliest = [starts[-1] if starts else stop for stop, starts in enumerate(self.starts, 1)]
        even = all(
            len(starts) == stop - first
            for stop, (starts, first) in enumerate(zip(self.starts, earliest, strict=True), 1)
        )
        return earliest if even and all(a <= b for a, b in pairwise(earliest)) else []

    def partitions(self) -> dict[int, Packs]:
        if not self.limits:
            return {}
        widest = len(self.limits) - 1
        possible = self.counts(self.limits[-1])[-1]
        high = {count: widest for count in self.wanted if possible >> count & 1}
        low = {count: self._least(count) for count in high}
        while open_counts := [count for count in high if self._apart(low[count], high[count])]:
            # The widest interval is halved; the answer says something of the others too.
            count = max(open_counts, key=lambda count: high[count] - low[count])
            middle = (low[count] + high[count]) // 2
            met = self.counts(self.limits[middle])[-1]
            for other in open_counts:
                if met >> other & 1:
                    high[other] = min(high[other], middle)
                else:
                    low[other] = max(low[other], middle + 1)
        return {count: self._packs(self.limits[high[count]], count) for count in high}

    def counts(self, limit: float) -> list[int]:
        """Per j: the numbers of packs, as bits, into which the layers before j can be cut."""
        return self._by_window(limit) if self.earliest else self._by_starts(limit)

    def _by_window(self, limit: float) -> list[int]:
        """The last packs begin in a window that only moves on: its sets are in two stacks, so that
        each is added up twice at the most."""
        ends, mask = self.ends, self.mask
        counts = [1]
        first = 0
        front: list[int] = []  # sums of the older part of the window: from its first on, last
        back = 0  # the sum of the newer one
        for stop, earliest in enumerate(self.earliest, 1):
            back |= counts[-1]
            end = ends[stop]
            while first < stop and (first < earliest or end - ends[first] > limit):
                if not front:
                    back = 0
                    for one in reversed(counts[first:stop]):
                        back |= one
                        front.append(back)
                    back = 0
                front.pop()
                first += 1
            reached = back | front[-1] if front else back
            counts.append(reached << 1 & mask)
        return counts

    def _by_starts(self, limit: float) -> list[int]:
        ends = self.ends
        counts = [1]
        for stop, starts in enumerate(self.starts, 1):
            earliest = ends[stop]
            reached = 0
            for first in starts:
                if earliest - ends[first] > limit:
                    break
                reached |= counts[first]
            counts.append(reached << 1 & self.mask)
        return counts

    def _apart(self, low: int, high: int) -> bool:
        """Whether it still matters which of two limits it is."""
        return low < high and self.limits[low] < self.limits[high] * (1 - self.tolerance)

    def _least(self, count: int) -> int:
        """The mean pack is a lower bound, but for the last bits of sums."""
        return min(
            bisect_left(self.limits, self.ends[-1] / count * (1 - 1e-9)), len(self.limits) - 1
        )

    def _packs(self, limit: float, count: int) -> Packs:
        counts = self.counts(limit)
        packs: list[range] = []
        stop = self.layers
        for left in range(count - 1, -1, -1):
            # The longest last pack: what is left for the packs before it is then least.
            quick = reversed(self._quick(stop, limit))
            first = next(first for first in quick if counts[first] >> left & 1)
            packs.append(range(first, stop))
            stop = first
        return tuple(reversed(packs))

    def _quick(self, stop: int, limit: float) -> Sequence[int]:
        """Where packs that fit and take no longer than that begin; the nearest first."""
        starts, end = self.starts[stop - 1], self.ends[stop]
        slow = bisect_left(self.ends, True, hi=stop, key=lambda start: end - start <= limit)
        return starts[: bisect_right(starts, -slow, key=neg)]


def _starts(layers: int, fits: Fits) -> list[Sequence[int]]:
    return [
        [first for first in range(stop - 1, -1, -1) if fits(first, stop - 1)]
        for stop in range(1, layers + 1)
    ]


def _starts_of_parts(layers: int, fits: Fits) -> list[Sequence[int]]:
    """`_starts` where the earliest start only moves on."""
    found: list[Sequence[int]] = []
    earliest = 0
    for stop in range(1, layers + 1):
        while earliest < stop and not fits(earliest, stop - 1):
            earliest += 1
        found.append(range(stop - 1, earliest - 1, -1))
    return found
