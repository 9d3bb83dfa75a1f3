"""The best plan of whole layers, one recomputation switch for all: an Alpa-like comparator.

Alpa (OSDI'22) cuts a model into layers, gives each stage a mesh of devices, and minimizes the
iteration by dynamic programming; recomputation is on or off. Here its stages cost what the cost
model of all plans says, with one tp and one dp a stage.
"""

from __future__ import annotations

from math import inf

from workbench.methods.aceso.costs import Share
from workbench.methods.aceso.exact import Uniform
from workbench.methods.aceso.plan import Stage
from workbench.methods.aceso.search import Found, Step
from workbench.methods.aceso.searches import Outcome
from workbench.methods.aceso.space import Rated, Space, uniform
from workbench.methods.aceso.suffixes import Suffixes

MOST_RATED = 8
"""Plans that are rated as a whole, where no other one beats them by parts."""


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


class _Layers(Uniform):
    """Stages of one micro-batch, all recomputed or none, of plans that are below `limit` ms."""

    def __init__(self, space: Space, micro: int, again: int, limit: float) -> None:
        super().__init__(space, micro)
        operators = space.costs.operators
        self.layers = [0, *operators.layers[1:], len(operators)]
        self.flags = bytes(again and o.kind not in ("embedding", "head")
                           for o in operators.operators)  # fmt: skip
        self.limit = limit

    def best(self, count: int) -> Rated | None:
        """The fastest plan of so many stages that fits."""
        found = Suffixes(
            self.space, self.layers, self.batches, lambda *span: self.shares(*span, self.limit)
        ).best(count)  # fmt: skip
        if not found or self.batches < 1:
            return None
        plans = [
            self.space.rated(self.micro, tuple(self.stage(*s, k) for s, k in each.choices))
            for each in found[:MOST_RATED]
        ]
        fit = [rated for rated in plans if self.space.fits(rated.cost)]
        return min(fit, key=lambda rated: rated.cost.time, default=None)

    def _shaped(self, stage: Stage, first: int, last: int, behind: int) -> Share | None:
        stage = stage._replace(recompute=self.flags[first:last])
        cost = self.costs.stage(stage, first, self.micro, behind=behind)
        fits = cost.memory <= self.space.cluster.memory
        return self.costs.share(cost, behind, self.batches) if fits else None

    def stage(
        self, first: int, last: int, gpus: int, behind: int, shape: int | None = None
    ) -> Stage:
        """As `Uniform.stage`, all recomputed or none."""
        made = uniform(last - first, *self.shapes[gpus][shape or 0])
        return made._replace(recompute=self.flags[first:last])
