"""Better plans in seconds: the published search, the fastest uniform stages, and then shifts.

The published search moves operators one bottleneck at a time and recomputes the largest ones. Here
uniform stages are searched for directly (exact.py) with recomputation chosen freely (fronts.py).
The better plan of both is refined: where tp and dp change inside stages, too, recomputation is
chosen anew and cuts are shifted, as long as the iteration gets faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product

from workbench.methods.aceso.exact import SHIFTS, Uniform
from workbench.methods.aceso.finetune import fine_tuned
from workbench.methods.aceso.fronts import Fronts
from workbench.methods.aceso.moves import Stages, handed_over
from workbench.methods.aceso.plan import Stage
from workbench.methods.aceso.search import Effort, Found, Step
from workbench.methods.aceso.searches import Outcome, Watch, search
from workbench.methods.aceso.space import Rated, Space

PUBLISHED_PLANS = 400
"""Plans that the published search rates first; it ends before, or gets little better."""


def search_ours(
    outcome: Outcome, counts: Iterable[int], effort: Effort, *, finetunes: bool = False,
    watch: Watch | None = None, clock: Callable[[], float] = time.monotonic, **start: object,
) -> None:  # fmt: skip
    """Search each number of stages into `outcome`, for the seconds of `effort` each: the published
    search has half of them at most."""
    space, begun = outcome.space, time.process_time()
    uniform = {micro: Uniform(space, micro) for micro in reversed(space.micros)}
    first = replace(effort, plans=min(effort.plans, PUBLISHED_PLANS), seconds=effort.seconds / 2)
    try:
        for count in counts:
            end = clock() + effort.seconds
            search(outcome, (count,), first, finetunes=finetunes, watch=watch, **start)
            outcome.whole = False
            for made in uniform.values():
                if clock() > end:
                    break
                found = outcome.found.get(count)
                fits = found is not None and space.fits(found.best.cost)
                rated = made.best(count, found.best.cost.time if fits else float("inf"))
                _take(outcome, count, rated, made.rated_stages(), watch)
                if rated is not None and finetunes:
                    _take(outcome, count, fine_tuned(space, rated), 0, watch)
            if (found := outcome.found.get(count)) is not None:
                alike = uniform[found.best.plan.micro]
                refined, more = _refined(space, found.best, alike, lambda end=end: clock() > end)
                _take(outcome, count, refined, more, watch)
        outcome.whole = True
    finally:
        outcome.cpu_seconds = time.process_time() - begun


def _take(
    outcome: Outcome, count: int, rated: Rated | None, explored: int, watch: Watch | None
) -> None:
    space, found = outcome.space, outcome.found.get(count)
    if rated is not None and found is None:
        found = outcome.found[count] = Found(best=rated)
    if found is None:
        return
    found.explored += explored
    if rated is None or not space.fits(rated.cost):
        return
    if not space.fits(found.best.cost) or rated.cost.time < found.best.cost.time or (
        rated is found.best
    ):  # fmt: skip
        found.best = rated
        found.curve.append(Step(found.explored, rated.cost.time))
        if watch:
            watch(count, found)


def _refined(
    space: Space, rated: Rated, alike: Uniform, over: Callable[[], bool]
) -> tuple[Rated, int]:
    """The plan with free recomputation and shifted cuts, and how many plans were rated."""
    chosen: dict[tuple[Stage, int, int], Stage] = {}
    explored, micro = 0, rated.plan.micro

    def with_free_choice(stages: Stages) -> Rated:
        first, made = 0, []
        for index, stage in enumerate(stages):
            key = (stage, first, len(stages) - 1 - index)
            if key not in chosen:
                chosen[key] = _freed(space, alike, *key)
            made.append(chosen[key])
            first += len(stage.tp)
        return space.rated(micro, tuple(made))

    best = min(rated, with_free_choice(rated.plan.stages), key=lambda r: _rank(space, r))
    better = True
    while better:
        better = False
        for place, shift in product(range(len(best.plan.stages) - 1), SHIFTS):
            if over():
                return best, explored
            stages = handed_over(best.plan.stages, place, shift)
            if stages is None:
                continue
            explored += 1
            found = with_free_choice(stages)
            if _rank(space, found) < _rank(space, best):
                best, better = found, True
    return best, explored


def _rank(space: Space, rated: Rated) -> tuple[bool, float]:
    return not space.fits(rated.cost), rated.cost.time


def _freed(space: Space, alike: Uniform, stage: Stage, first: int, behind: int) -> Stage:
    """The stage with the better one of the published choice of recomputation and the free one."""
    costs, limit, micro = space.costs, space.cluster.memory, alike.micro
    published = space.choose(stage, first, micro, behind)
    bare = stage._replace(recompute=bytes(len(stage.tp)))
    excess = costs.excess(costs.stage(bare, first, micro, behind=behind), limit)
    if excess <= 0:
        return bare
    if not alike.free:
        return published
    if stage.uniform and not stage.algo[0]:
        fronts = alike.fronts_of(stage.tp[0], stage.dp[0])
    else:
        fronts = Fronts.of_stage(costs, stage, first, micro)
    flags = fronts.flags(first, first + len(stage.tp), excess, costs.turns(behind, micro))
    free = stage._replace(recompute=flags)

    def rank(each: Stage) -> tuple[bool, float]:
        cost = costs.stage(each, first, micro, behind=behind)
        return cost.memory > limit, cost.time

    return min(published, free, stage, key=rank)
