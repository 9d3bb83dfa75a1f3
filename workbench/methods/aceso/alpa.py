"""The best plan of whole layers, one recomputation switch for all: an Alpa-like comparator.

Alpa (OSDI'22) cuts a model into layers, gives each stage a mesh of devices, and minimizes the
iteration by dynamic programming; recomputation is on or off. Here its stages cost what the cost
model of all plans says, with one tp and one dp a stage. For each suffix of layers and devices the
programme keeps every pair of slowest stage and sum of stages that no other one beats.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from workbench.methods.aceso.database import BACKWARD, FORWARD
from workbench.methods.aceso.exact import splits
from workbench.methods.aceso.plan import Stage
from workbench.methods.aceso.search import Found, Step
from workbench.methods.aceso.searches import Outcome
from workbench.methods.aceso.space import MOST_OF_STAGE, Rated, Space, uniform


@dataclass(frozen=True, slots=True)
class Suffix:
    """The last stages of a plan."""

    slowest: float
    total: float
    stages: tuple[Stage, ...]


def layered(space: Space, counts: range) -> Outcome:
    """The best plan of each number of stages."""
    outcome = Outcome(space=space)
    best = inf
    for micro in reversed(space.micros):
        for again in (0, 1):
            made = _Layers(space, micro, again)
            for count in counts:
                rated = made.best(count, best)
                found = outcome.found.get(count)
                if rated is None:
                    continue
                if found is None:
                    found = outcome.found[count] = Found(best=rated)
                found.explored += 1
                if rated.cost.time <= found.best.cost.time:
                    found.best = rated
                    found.curve.append(Step(found.explored, rated.cost.time))
                best = min(best, rated.cost.time)
    outcome.whole = True
    return outcome


class _Layers:
    """Stages of one micro-batch, all recomputed or none."""

    def __init__(self, space: Space, micro: int, again: int) -> None:
        self.space, self.micro, self.again = space, micro, again
        operators = space.costs.operators
        self.cuts = [0, *operators.layers[1:], len(operators)]
        self.flags = bytes(again and o.kind not in ("embedding", "head")
                           for o in operators.operators)  # fmt: skip
        self.shapes = splits(space, micro)
        self.work = {}
        for tp, dp in self.shapes:
            _, sums = space.costs.table(micro // dp, tp, 0)
            self.work[tp, dp] = (sums[FORWARD] + sums[BACKWARD]) / 1e6
        self.sizes = [2**k for k in range(MOST_OF_STAGE.bit_length())]
        self.known: dict[tuple[int, int, int], list[Suffix]] = {}
        self.limit = inf

    def best(self, count: int, limit: float) -> Rated | None:
        """The fastest plan that fits, where it is below `limit` ms."""
        batches = self.space.subject.batch // self.micro
        if limit / batches < self.limit:
            self.limit = limit / batches
        ends = self._suffixes(0, count, self.space.cluster.gpus)
        rated = [self.space.rated(self.micro, end.stages) for end in ends]
        rated = [each for each in rated if self.space.fits(each.cost)]
        return min(rated, key=lambda each: each.cost.time, default=None)

    def _suffixes(self, layer: int, count: int, gpus: int) -> list[Suffix]:
        """Of the layers from `layer` on, in `count` stages of `gpus` devices in all."""
        key = (layer, count, gpus)
        if key in self.known:
            return self.known[key]
        last, found = len(self.cuts) - 1, []
        per_node = self.space.cluster.per_node
        start = self.space.cluster.gpus - gpus
        for size in self.sizes if count else ():
            if size > gpus or start // per_node != (start + size - 1) // per_node:
                continue
            for end in (last,) if count == 1 else range(layer + 1, last - count + 2):
                if count == 1 and size != gpus:
                    continue
                time, stage = self._stage(layer, end, size, count - 1)
                if stage is None:
                    break  # a longer one is slower, and larger
                if count == 1:
                    found.append(Suffix(time, time, (stage,)))
                for rest in self._suffixes(end, count - 1, gpus - size) if count > 1 else ():
                    found.append(Suffix(
                        max(time, rest.slowest), time + rest.total, (stage, *rest.stages)
                    ))  # fmt: skip
        self.known[key] = found = _unbeaten(found)
        return found

    def _stage(self, first: int, last: int, gpus: int, behind: int) -> tuple[float, Stage | None]:
        """The fastest stage that fits, and its milliseconds."""
        a, b = self.cuts[first], self.cuts[last]
        best: tuple[float, Stage | None] = inf, None
        for tp, dp in self.shapes:
            work = self.work[tp, dp]
            if tp * dp != gpus or work[b] - work[a] > self.limit:
                continue
            stage = uniform(b - a, tp, dp)._replace(recompute=self.flags[a:b])
            cost = self.space.costs.stage(stage, a, self.micro, behind=behind)
            if cost.memory <= self.space.cluster.memory and cost.time < best[0]:
                best = cost.time, stage
        return best


def _unbeaten(found: list[Suffix]) -> list[Suffix]:
    kept: list[Suffix] = []
    for each in sorted(found, key=lambda s: (s.slowest, s.total)):
        if not kept or each.total < kept[-1].total:
            kept.append(each)
    return kept
