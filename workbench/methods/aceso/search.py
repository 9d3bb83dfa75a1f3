"""Searches plans by relieving the bottleneck, hop after hop (Aceso, EuroSys'24 artifact).

A trial starts at a plan and moves on, depth first, until a plan is faster than the best one and
fits; the next trial starts there, or else at the best plan that was met and not yet left. Plans
are counted, and a limit of their number ends a search at one place on any machine; a limit of
seconds may end it earlier.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from workbench.methods.aceso.bottleneck import Move, groups, worst_first
from workbench.methods.aceso.finetune import fine_tuned
from workbench.methods.aceso.moves import Stages, moved
from workbench.methods.aceso.space import Rated, Space

NEAR = 1.2
"""Times the best plan's time, up to which a plan may start a later trial."""
GAIN = 1e-5
"""Part of its time by which a plan must be faster to count as better: profiles tell no less."""
AGAIN = 5
"""Times that a plan may be left by a stage that it was left by before."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Limits of a search of one number of stages."""

    hops: int = 7
    trials: int = 100
    plans: int = 4000
    """Plans that are rated."""
    seconds: float = 200.0


class Step(NamedTuple):
    """A point of a search's curve."""

    explored: int
    time: float
    """Milliseconds of an iteration of the best plan that fits."""


@dataclass(kw_only=True)
class Found:
    """A search's outcome, so far."""

    best: Rated
    explored: int = 0
    curve: list[Step] = field(default_factory=list)
    trials: int = 0
    hops: Counter[int] = field(default_factory=Counter)
    """Trials that improved, by the hops that they took."""
    targets: Counter[int] = field(default_factory=Counter)
    """Trials that improved, by the number of bottlenecks that they tried."""
    trend: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the search began and milliseconds of a trial's plan, at the end of each."""


class Search:
    """A search of plans of one number of stages."""

    def __init__(
        self, space: Space, effort: Effort, *, finetunes: bool = False,
        watch: Callable[[Found], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        order: Callable[[Space, Rated, int], list[list[Move]]] = groups,
    ) -> None:  # fmt: skip
        """`order` says in which groups moves for a stage are tried, one group after the other."""
        self.space, self.effort, self.finetunes = space, effort, finetunes
        self.ordered = order
        self.watch, self.clock = watch, clock
        self.visited: set[tuple[int, Stages]] = set()
        self.left: dict[tuple[int, Stages], set[int]] = {}
        self.pool: list[tuple[float, int, Rated]] = []
        self.done: list[tuple[float, int, Rated]] = []
        self.reopened: Counter[tuple[int, Stages]] = Counter()
        self.order = count()
        self.seen: Rated | None = None

    def run(self, first: Rated) -> Found:
        """Search from a plan, which is also the outcome where nothing is better."""
        begun = self.clock()
        self.end = begun + self.effort.seconds
        self.found = found = Found(best=first)
        self.visited.add(_key(first))
        self._take(first)
        start: Rated | None = first
        while start is not None and found.trials < self.effort.trials and not self._over():
            found.trials += 1
            result = self._trial(start)
            if self.finetunes and result is not None:
                result = fine_tuned(self.space, result)
                self.visited.add(_key(result))
            if result is not None:
                found.trend.append((self.clock() - begun, result.cost.time))
            if result is not None and self._accepts(result):
                self._take(result)
                start = result
            else:
                start = self._next()
        return found

    def _take(self, rated: Rated) -> None:
        found = self.found
        found.best = rated
        if self.space.fits(rated.cost):
            found.curve.append(Step(found.explored, rated.cost.time))
        if self.watch:
            self.watch(found)

    def _accepts(self, rated: Rated) -> bool:
        best = self.found.best
        if not self.space.fits(best.cost):
            return rated.cost.memory < best.cost.memory
        return self._beats(rated)

    def _over(self) -> bool:
        return self.found.explored >= self.effort.plans or self.clock() > self.end

    def _trial(self, start: Rated) -> Rated | None:
        """A better plan, or the best of what was met."""
        self.seen = None
        for target, _ in enumerate(start.plan.stages, 1):
            if (better := self._hop(start, 0)) is not None:
                self.found.targets[target] += 1
                return better
            if self._over():
                break
        return self.seen

    def _hop(self, rated: Rated, hops: int) -> Rated | None:
        """Depth first: a plan that is faster than the best and fits, or None."""
        if hops == self.effort.hops or self._over():
            return None
        left = self.left.setdefault(_key(rated), set())
        index = next((i for i in worst_first(self.space, rated.cost) if i not in left), None)
        if index is None:
            return None
        if not left:
            heapq.heappush(self.done, (rated.cost.time, next(self.order), rated))
        left.add(index)
        for group in self.ordered(self.space, rated, index):
            made = list(self._made(rated, index, group))
            good = [each for each in made if self._beats(each)]
            if good:
                self.found.hops[hops + 1] += 1
                return min(good, key=lambda each: each.cost.time)
            made.sort(key=lambda each: max(stage.time for stage in each.cost.stages))
            for each in made:
                if (better := self._hop(each, hops + 1)) is not None:
                    return better
        return None

    def _beats(self, rated: Rated) -> bool:
        best = self.found.best
        known = best.cost.time if self.space.fits(best.cost) else float("inf")
        return self.space.fits(rated.cost) and rated.cost.time < known * (1 - GAIN)

    def _made(self, rated: Rated, index: int, group: list) -> Iterator[Rated]:
        """New plans of a group of moves."""
        skip = self.reopened[_key(rated)]
        for move in group:
            made = moved(self.space, rated, index, move, skip)
            if made is None or _key(made) in self.visited or self._over():
                continue
            self.visited.add(_key(made))
            self.found.explored += 1
            best = self.found.best
            if not self.space.fits(best.cost) or made.cost.time < NEAR * best.cost.time:
                heapq.heappush(self.pool, (made.cost.time, next(self.order), made))
            if self.seen is None or self.space.rank(made) < self.space.rank(self.seen):
                self.seen = made
            yield made

    def _next(self) -> Rated | None:
        """The best plan that was met and not left; then plans that may be left again."""
        while self.pool:
            _, _, rated = heapq.heappop(self.pool)
            if not self.left.get(_key(rated)):
                return rated
        while self.done:
            rated = heapq.heappop(self.done)[-1]
            if self.reopened[_key(rated)] < AGAIN:
                self.reopened[_key(rated)] += 1
                del self.left[_key(rated)]
                return rated
        return None


def _key(rated: Rated) -> tuple[int, Stages]:
    return rated.plan.micro, rated.plan.stages
