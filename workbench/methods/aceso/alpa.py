"""The best plan of whole layers, one recomputation switch for all: an Alpa-like comparator.

Alpa (OSDI'22) cuts a model into layers, gives each stage a mesh of devices, and minimizes the
iteration by dynamic programming; recomputation is on or off. Here its stages cost what the cost
model of all plans says, with one tp and one dp a stage.
"""

from __future__ import annotations

from math import inf

from workbench.methods.aceso.costs import NS_OF_MS
from workbench.methods.aceso.database import BACKWARD, FORWARD
from workbench.methods.aceso.exact import splits
from workbench.methods.aceso.plan import Stage
from workbench.methods.aceso.search import Found, Step
from workbench.methods.aceso.searches import Outcome
from workbench.methods.aceso.space import Rated, Space, uniform
from workbench.methods.aceso.suffixes import Suffixes


def layered(space: Space, counts: range) -> Outcome:
    """The best plan of each number of stages."""
    outcome = Outcome(space=space)
    for count in counts:
        found = None
        for micro in reversed(space.micros):
            for again in (0, 1):
                limit = found.best.cost.time if found is not None else inf
                rated = _Layers(space, micro, again, limit).best(count)
                if rated is None:
                    continue
                found = found or Found(best=rated)
                found.explored += 1
                if rated.cost.time <= found.best.cost.time:
                    found.best = rated
                    found.curve.append(Step(found.explored, rated.cost.time))
        if found is not None:
            outcome.found[count] = found
    outcome.whole = True
    return outcome


class _Layers:
    """Stages of one micro-batch, all recomputed or none, of plans that are below `limit` ms."""

    def __init__(self, space: Space, micro: int, again: int, limit: float) -> None:
        self.space, self.micro = space, micro
        operators = space.costs.operators
        self.cuts = [0, *operators.layers[1:], len(operators)]
        self.flags = bytes(again and o.kind not in ("embedding", "head")
                           for o in operators.operators)  # fmt: skip
        self.batches = space.subject.batch // micro
        self.limit = limit / self.batches if self.batches else 0.0
        self.work = {}
        for tp, dp in splits(space, micro):
            _, sums = space.costs.table(micro // dp, tp, 0)
            self.work[tp, dp] = (sums[FORWARD] + sums[BACKWARD]) / NS_OF_MS

    def best(self, count: int) -> Rated | None:
        """The fastest plan of so many stages that fits."""
        found = Suffixes(self.space, self.cuts, self._time).best(count, self.batches)
        if found is None:
            return None
        rated = self.space.rated(self.micro, tuple(self._stage(*s)[1] for s in found.spans))
        return rated if self.space.fits(rated.cost) else None

    def _time(self, first: int, last: int, gpus: int, behind: int) -> float:
        return self._stage(first, last, gpus, behind)[0]

    def _stage(self, first: int, last: int, gpus: int, behind: int) -> tuple[float, Stage | None]:
        """The fastest stage that fits, and its milliseconds."""
        best: tuple[float, Stage | None] = inf, None
        for (tp, dp), work in self.work.items():
            if tp * dp != gpus or work[last] - work[first] > self.limit:
                continue
            stage = uniform(last - first, tp, dp)._replace(recompute=self.flags[first:last])
            cost = self.space.costs.stage(stage, first, self.micro, behind=behind)
            if cost.memory <= self.space.cluster.memory and cost.time < best[0]:
                best = cost.time, stage
        return best
