"""Changes tp and dp, and then the partition, from an operator of a stage on (Aceso, EuroSys'24
artifact: fine-tuning, which its scripts ask for Wide-ResNet alone)."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.methods.aceso.moves import DOUBLE, HALF
from workbench.methods.aceso.plan import Stage
from workbench.methods.aceso.space import Rated, Space


def fine_tuned(space: Space, rated: Rated) -> Rated:
    """The plan with each stage made faster, where a change of it alone does so and fits."""
    micro, stages = rated.plan.micro, list(rated.plan.stages)
    operators = space.costs.operators
    for index in range(len(stages)):
        first, behind = rated.plan.starts[index], len(stages) - 1 - index

        def cost_of(stage: Stage, first: int = first, behind: int = behind) -> tuple[Stage, float]:
            chosen = space.choose(stage, first, micro, behind)
            cost = space.costs.stage(chosen, first, micro, behind=behind)
            return chosen, cost.time if cost.memory <= space.cluster.memory else float("inf")

        best, time = cost_of(stages[index])
        places = [i for i in range(len(best.tp)) if operators.operators[first + i].tunable]
        base = best
        for place in places:
            for changed in _from(space, base, place, micro):
                made, its = cost_of(changed)
                if its < time:
                    best, time = made, its
        if operators.partitions > 1 and best.gpus > 1:
            for place in places:
                algo = bytearray(best.algo)
                algo[place] ^= 1
                made, its = cost_of(best._replace(algo=bytes(algo)))
                if its < time:
                    best, time = made, its
        stages[index] = best
    found = space.rated(micro, tuple(stages))
    return found if found.cost.time < rated.cost.time or not space.fits(rated.cost) else rated


def _from(space: Space, stage: Stage, place: int, micro: int) -> Iterator[Stage]:
    """The stage with twice the tp and half the dp, or the reverse, from an operator to its end, or
    back to its start; as far as samples and devices allow."""
    for more, less in (("tp", "dp"), ("dp", "tp")):
        up, down = getattr(stage, more), getattr(stage, less)
        for part in (range(place, len(up)), range(place, -1, -1)):
            reach = 0
            for at in part:
                if down[at] < 2:
                    break
                samples = micro // (stage.dp[at] // 2 if more == "tp" else stage.dp[at] * 2)
                wide = stage.tp[at] * 2 > space.most_tp if more == "tp" else micro % (up[at] * 2)
                if wide or samples not in space.micros:
                    break
                reach += 1
            if reach:
                ends = sorted((part[0], part[reach - 1]))
                span = slice(ends[0], ends[1] + 1)
                changed = {
                    name: held[: span.start] + held[span].translate(table) + held[span.stop :]
                    for name, held, table in ((more, up, DOUBLE), (less, down, HALF))
                }
                yield stage._replace(**changed)
