"""Better plans in seconds: the published search, the fastest uniform stages, and then shifts.

The published search moves operators one bottleneck at a time and recomputes the largest ones. Here
uniform stages are searched for directly (exact.py) with recomputation chosen freely (fronts.py).
The better plan of both is refined: where tp and dp change inside stages, too, recomputation is
chosen anew and cuts are shifted, as long as the iteration gets faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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


class TimeIsUp(Exception):
    """Ends the search of a number of stages, in which better plans were told of before."""


def search_ours(
    outcome: Outcome, counts: Iterable[int], effort: Effort, *, finetunes: bool = False,
    watch: Watch | None = None, clock: Callable[[], float] = time.monotonic, **start: object,
) -> None:  # fmt: skip
    """Search each number of stages into `outcome`, for the seconds of `effort` each: the published
    search has half of them at most. Without a limit of seconds all that is found follows from the
    number of plans, which is also that of ways to deal devices which are tried one by one."""
    space, begun, end = outcome.space, time.process_time(), float("inf")

    def check() -> None:
        if clock() > end:
            raise TimeIsUp

    uniform = {micro: Uniform(space, micro, check) for micro in reversed(space.micros)}
    first = replace(effort, plans=min(effort.plans, PUBLISHED_PLANS), seconds=effort.seconds / 2)
    try:
        for count in counts:
            end = clock() + effort.seconds
            search(outcome, (count,), first, finetunes=finetunes, watch=watch, **start)
            outcome.whole = False
            with suppress(TimeIsUp):
                for made in uniform.values():
                    found = outcome.found.get(count)
                    fits = found is not None and space.fits(found.best.cost)
                    limit = found.best.cost.time if fits else float("inf")
                    for rated in made.plans(count, limit, effort.plans):
                        tuned = fine_tuned(space, rated) if finetunes else rated
                        _take(outcome, count, tuned, made.rated_stages(), watch)
                if (found := outcome.found.get(count)) is not None:
                    found.explored += sum(made.rated_stages() for made in uniform.values())
                    for rated in _refined(space, found.best, uniform[found.best.plan.micro], check):
                        _take(outcome, count, rated, 1, watch)
        outcome.whole = True
    finally:
        outcome.cpu_seconds = time.process_time() - begun


def _take(outcome: Outcome, count: int, rated: Rated, explored: int, watch: Watch | None) -> None:
    """Keep a plan that is better."""
    known = outcome.found.get(count)
    found = outcome.found.setdefault(count, Found(best=rated))
    found.explored += explored
    if known is None or outcome.space.rank(rated) < outcome.space.rank(found.best):
        found.best = rated
        if outcome.space.fits(rated.cost):
            found.curve.append(Step(found.explored, rated.cost.time))
            if watch:
                watch(count, found)


def _refined(
    space: Space, rated: Rated, alike: Uniform, check: Callable[[], None]
) -> Iterator[Rated]:
    """Plans with free recomputation and shifted cuts, as they are rated: each shift starts from the
    best one so far."""
    chosen: dict[tuple[Stage, int, int], Stage] = {}

    def with_free_choice(stages: Stages) -> Rated:
        first, made = 0, []
        for index, stage in enumerate(stages):
            check()
            key = (stage, first, len(stages) - 1 - index)
            if key not in chosen:
                chosen[key] = _freed(space, alike, *key)
            made.append(chosen[key])
            first += len(stage.tp)
        return space.rated(rated.plan.micro, tuple(made))

    best = min(rated, with_free_choice(rated.plan.stages), key=space.rank)
    yield best
    better = True
    while better:
        better = False
        for place, shift in product(range(len(best.plan.stages) - 1), SHIFTS):
            stages = handed_over(best.plan.stages, place, shift)
            if stages is None:
                continue
            found = with_free_choice(stages)
            yield found
            if space.rank(found) < space.rank(best):
                best, better = found, True


def _freed(space: Space, alike: Uniform, stage: Stage, first: int, behind: int) -> Stage:
    """The stage with the better one of the published choice of recomputation and the free one."""
    costs, limit, micro = space.costs, space.cluster.memory, alike.micro
    published = space.choose(stage, first, micro, behind)
    bare = stage._replace(recompute=bytes(len(stage.tp)))
    excess = costs.excess(costs.stage(bare, first, micro, behind=behind), limit)
    if excess <= 0:
        return bare
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
