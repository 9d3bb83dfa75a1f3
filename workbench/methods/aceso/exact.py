"""The fastest uniform stages: cuts by operator, tp and dp by stage, recomputation chosen freely.

For a time that no stage may exceed, each stage in turn takes as many operators as it can, for each
number of devices that it and those before it may have; the least time for which stages take all
operators is found by halving. Then cuts are shifted while an iteration gets faster. Each way to
deal devices is tried so by itself, too, if it may be faster than the best plan so far. Stages that
would cost more than that are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, product

import numpy as np

from workbench.methods.aceso.costs import NS_OF_MS, Share
from workbench.methods.aceso.database import BACKWARD, FORWARD, OUTPUT
from workbench.methods.aceso.fronts import LONG, Fronts
from workbench.methods.aceso.plan import Stage
from workbench.methods.aceso.space import MOST_OF_STAGE, SIZES, Rated, Space, uniform
from workbench.methods.aceso.suffixes import END, Span, Suffixes, joined

FINE = 2e-5
"""Part of a time to which it is found."""
AHEAD = 8
"""Cuts beyond the last one that fits which are looked at, too: the next message may be smaller."""
SHIFTS = (1, -1, 2, -2, 3, -3, 5, -5, 8, -8, 13, -13)
"""Operators by which a cut is shifted."""
LARGE = 4
"""Times the message of a layer, above which none is sent."""
SMALL = 64
"""Operators of a model whose cuts are all tried."""


class Uniform:
    """Stages of one micro-batch, whose devices are all used alike."""

    def __init__(self, space: Space, micro: int, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called often, and raises where a search is to end."""
        self.space, self.costs, self.micro = space, space.costs, micro
        self.total = len(space.costs.operators)
        self.fronts: dict[tuple[int, int], Fronts] = {}
        self.batches = self.costs.batches(space.subject.batch, micro)
        self.known: dict[tuple[int, int, int, int, int], Share | None] = {}
        self._told, self._check = 0, check
        self.cuts = self._cheap_cuts()
        self.work: dict[tuple[int, int], list[float]] = {}
        """Running sums of milliseconds, by tp and dp."""
        self.shapes: dict[int, list[tuple[int, int]]] = {size: [] for size in SIZES}
        """Pairs of tp and dp of so many devices."""
        for tp, dp in splits(space, micro):
            _, sums = self.costs.table(micro // dp, tp, 0)
            self.work[tp, dp] = ((sums[FORWARD] + sums[BACKWARD]) / NS_OF_MS).tolist()
            self.shapes[tp * dp].append((tp, dp))
        self._best: dict[Span, tuple[Share | None, int]] = {}

    def _cheap_cuts(self) -> np.ndarray:
        made, _ = self.costs.table(self.space.micros[0], 1, 0)
        sizes = made[OUTPUT, :-1]
        if self.total <= SMALL:
            return np.arange(1, self.total + 1)
        layers = [i - 1 for i in self.costs.operators.layers if i > 0]
        least = max(1, int(np.median(sizes[layers])) if layers else int(np.median(sizes)))
        return np.append(np.flatnonzero(sizes <= LARGE * least) + 1, self.total)

    def time(self, first: int, last: int, gpus: int, behind: int, most: float) -> float:
        """Milliseconds of an iteration of which the fastest stage is the slowest, without those of
        one pass through all; infinite where none is up to `most`, or fits."""
        shares = self.shares(first, last, gpus, behind, most)
        return min((each.steady for each in shares if each is not None), default=float("inf"))

    def shares(
        self, first: int, last: int, gpus: int, behind: int, most: float = float("inf")
    ) -> list[Share | None]:
        """Of a stage in each of its shapes; None where it does not fit, or takes more."""
        least = max(0.0, self.batches - 1 - behind / 2)  # while the pipeline fills, half the work
        return [
            self.shaped(first, last, *shape, behind)
            if (self.work[shape][last] - self.work[shape][first]) * least <= most else None
            for shape in self.shapes[gpus]
        ]  # fmt: skip

    def _fastest(self, *span: int) -> tuple[Share | None, int]:
        """The shape whose stage takes least, were it the slowest and the first; and its number."""
        if span not in self._best:
            shares = self.shares(*span)
            times = [e.steady + e.once + e.sums if e is not None else float("inf") for e in shares]
            place = min(range(len(times)), key=times.__getitem__, default=0)
            self._best[span] = (shares[place] if shares else None, place)
        return self._best[span]

    def shaped(self, first: int, last: int, tp: int, dp: int, behind: int) -> Share | None:
        """A stage of this tp and dp; None where it does not fit."""
        key = (first, last, tp, dp, behind)
        if key not in self.known:
            self._check()
            self.known[key] = self._shaped(uniform(last - first, tp, dp), first, last, behind)
        return self.known[key]

    def _shaped(self, stage: Stage, first: int, last: int, behind: int) -> Share | None:
        cost = self.costs.stage(stage, first, self.micro, behind=behind)
        excess = self.costs.excess(cost, self.space.cluster.memory)
        if excess > 0:
            fronts, turns = self.fronts_of(*shape_of(stage)), self.costs.turns(behind, self.micro)
            again, _ = fronts.least(first, last, excess, turns)
            if again >= LONG:
                return None
            cost = cost._replace(recompute=again / NS_OF_MS)
        return self.costs.share(cost, behind, self.batches)

    def rated_stages(self) -> int:
        """Stages that were rated since this was asked last."""
        new = len(self.known) - self._told
        self._told += new
        return new

    def fronts_of(self, tp: int, dp: int) -> Fronts:
        """Of operators that are all split so."""
        if (tp, dp) not in self.fronts:
            self.fronts[tp, dp] = Fronts.uniform(self.costs, self.micro // dp, tp)
        return self.fronts[tp, dp]

    def stage(
        self, first: int, last: int, gpus: int, behind: int, shape: int | None = None
    ) -> Stage:
        """The fastest stage, or that of a shape, with its choice of recomputation."""
        if shape is None:
            _, shape = self._fastest(first, last, gpus, behind)
        stage = uniform(last - first, *self.shapes[gpus][shape])
        cost = self.costs.stage(stage, first, self.micro, behind=behind)
        excess = self.costs.excess(cost, self.space.cluster.memory)
        if excess <= 0:
            return stage
        turns = self.costs.turns(behind, self.micro)
        flags = self.fronts_of(*shape_of(stage)).flags(first, last, excess, turns)
        return stage._replace(recompute=flags)

    def filled(
        self, dealt: Sequence[Sequence[int]], most: float
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Cuts and devices of stages that each take as many operators as they can in `most`
        milliseconds; None where operators are left. `dealt`: devices that each stage may have."""
        reached = {0: ((0,), ())}  # by devices of the stages so far
        for behind, sizes in zip(reversed(range(len(dealt))), dealt, strict=True):
            before, reached = reached, {}
            for (used, (cuts, gpus)), size in product(before.items(), sizes):
                if self.space.may_have(used, size, behind):
                    last = self._reach(cuts[-1], size, behind, most)
                    known = reached.get(used + size)
                    if last > cuts[-1] and (known is None or last > known[0][-1]):
                        reached[used + size] = (*cuts, last), (*gpus, size)
        return reached.get(self.space.cluster.gpus)

    def _reach(self, first: int, gpus: int, behind: int, most: float) -> int:
        """The operator after the last one that a stage takes in `most` milliseconds, or -1."""
        if behind == 0:
            return self.total if self.time(first, self.total, gpus, 0, most) <= most else -1
        places = self.cuts[(self.cuts > first) & (self.cuts <= self.total - behind)].tolist()
        low, high = -1, len(places)
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.time(first, places[middle], gpus, behind, most) <= most
            low, high = (middle, high) if fits else (low, middle)
        for place in range(min(low + AHEAD, len(places) - 1), low, -1):
            if self.time(first, places[place], gpus, behind, most) <= most:
                return places[place]
        return places[low] if low >= 0 else -1

    def fastest(self, dealt: Sequence[Sequence[int]], limit: float) -> Rated | None:
        """The best plan of stages of such devices whose iteration is below `limit`, in ms."""
        self._check()
        high = limit - self._least_work({size for sizes in dealt for size in sizes})
        found = self.filled(dealt, high)
        if found is None:
            return None
        if high == float("inf"):
            high = max(self.time(*span, high) for span in _spans(*found))
        low = 0.0
        while high - low > FINE * high:
            middle = (low + high) / 2
            better = self.filled(dealt, middle)
            found, low, high = (found, middle, high) if better is None else (better, low, middle)
        stages = tuple(self.stage(*span) for span in _spans(*self._shifted(*found)))
        return self.space.rated(self.micro, stages)

    def plans(self, count: int, limit: float, most: int) -> Iterator[Rated]:
        """Plans of `count` stages, of all cuts and up to `most` ways to deal devices, each better
        than the one before; the first one's iteration is below `limit`, in ms."""
        if not self.work or self.batches < 1:
            return
        if self.total > SMALL:
            each = (tuple((size,) for size in gpus) for gpus in dealings(self.space, count))
            for dealt in chain([(SIZES,) * count], islice(each, most)):
                rated = self.fastest(dealt, limit)
                if rated is not None and rated.cost.time < limit:
                    limit = rated.cost.time
                    yield rated
            return
        every = Suffixes(
            self.space, [0, *self.cuts], self.batches, lambda *span: self.shares(*span, limit)
        ).best(count)  # fmt: skip
        for ends in every:
            if ends.time >= limit:
                break
            stages = tuple(self.stage(*span, shape) for span, shape in ends.choices)
            rated = self.space.rated(self.micro, stages)
            if rated.cost.time <= limit:
                limit = rated.cost.time
                yield rated

    def _least_work(self, sizes: Iterable[int]) -> float:
        """Milliseconds of all operators, each split over so many devices as suits it best."""
        times = [np.diff(self.work[each]) for size in sizes for each in self.shapes[size]]
        return float(np.min(times, axis=0).sum()) if times else 0.0

    def _shifted(
        self, cuts: tuple[int, ...], gpus: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Cuts, shifted while the iteration gets faster, and the devices."""

        def iteration(cuts: tuple[int, ...]) -> float:
            made = END
            for span in reversed([*_spans(cuts, gpus)]):
                share, _ = self._fastest(*span)
                if share is None:
                    return float("inf")
                made = joined(share, made, self.batches)
            return made.time

        best, better = iteration(cuts), True
        while better:
            better = False
            for changed in self._neighbours(cuts):
                if (its := iteration(changed)) < best * (1 - 1e-9):
                    cuts, best, better = changed, its, True
        return cuts, gpus

    def _neighbours(self, cuts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for place, shift in product(range(1, len(cuts) - 1), SHIFTS):
            changed = cuts[place] + shift
            if cuts[place - 1] < changed < cuts[place + 1]:
                yield (*cuts[:place], changed, *cuts[place + 1 :])


def _spans(cuts: Sequence[int], gpus: Sequence[int]) -> Iterator[Span]:
    return zip(cuts, cuts[1:], gpus, reversed(range(len(gpus))), strict=False)


def shape_of(stage: Stage) -> tuple[int, int]:
    """Tp and dp of a uniform stage."""
    return stage.tp[0], stage.dp[0]


def splits(space: Space, micro: int) -> list[tuple[int, int]]:
    """Pairs of tp and dp of a stage, whose samples are profiled."""
    most = min(MOST_OF_STAGE, space.cluster.per_node)
    return [
        (tp, dp)
        for tp, dp in product(SIZES, SIZES)
        if tp * dp <= most and tp <= space.most_tp and micro % dp == 0
        and micro // dp in space.micros and (micro // dp, tp, 0) in space.costs.database.rows
    ]  # fmt: skip


def dealings(space: Space, count: int, used: int = 0) -> Iterator[tuple[int, ...]]:
    """Numbers of devices of `count` stages, in order, that the rules allow after `used` ones."""
    if count == 0:
        yield ()
    for size in SIZES if count else ():
        if space.may_have(used, size, count - 1):
            yield from ((size, *rest) for rest in dealings(space, count - 1, used + size))
