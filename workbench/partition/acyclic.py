"""One stage a device by local search: from cuts of random topological orders, items move to any
stage that no edge forbids (after Moreira, Popp, Schulz, "Graph partitioning with acyclicity
constraints", SEA 2017)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Literal

from workbench.core.bytesize import format_bytes
from workbench.partition.pipedream import contiguous
from workbench.partition.placement import Placement, better
from workbench.partition.problem import SAME, Problem
from workbench.partition.refine import refine


@dataclass(frozen=True, kw_only=True)
class Acyclic:
    """Settings of the method."""

    epsilon: float = 0.1
    """Share by which a stage may be over the mean."""
    rounds: int = 10
    """Random orders to start from."""
    objective: Literal["stage_time", "edge_cut"] = "stage_time"
    """The slowest stage, or bytes between stages, a tensor once a stage that reads it."""
    constraint: Literal["time", "memory"] = "time"
    """What epsilon bounds: a stage's milliseconds or its bytes."""
    maximum_constraint_value: float | None = None
    """The bound itself, in milliseconds or bytes, instead of epsilon."""


def acyclic(problem: Problem, settings: Acyclic, random: Random) -> Placement:
    """The best placement found with exactly one stage a device. Raises ValueError where none fits
    in memory, or under the given bound."""
    by_time, by_speed = settings.constraint == "time", settings.objective == "stage_time"
    cost = problem.work if by_time else problem.needs
    given = settings.maximum_constraint_value
    most = max((1 + settings.epsilon) * sum(cost) / problem.devices, max(cost))
    most = (most if given is None else given) * (1 + SAME)

    def key(placement: Placement) -> tuple[float, ...]:
        costs = placement.load if by_time else placement.held
        over = sum(max(0.0, each - most) for each in costs)
        beyond, slowest, squares, cut = placement.key()
        return beyond, over, *((slowest, cut) if by_speed else (cut, slowest)), squares

    starts = [_cut(problem, random) for _ in range(settings.rounds)]
    with suppress(ValueError):
        starts.append(contiguous(problem))
    best = None
    for start in starts:
        found = refine(start, key, between=True, empties=False, slower=not by_speed)
        if best is None or better(key(found), key(best)):
            best = found
    if best is None or best.over():
        raise ValueError(f"no {problem.devices} stages were found that fit in memory")
    if given is not None and (over := key(best)[1]):
        told = f"{over:.6g} ms" if by_time else format_bytes(over)
        raise ValueError(f"stages are {told} over the maximum_constraint_value of {given:.6g}")
    return best


def _cut(problem: Problem, random: Random) -> Placement:
    """Cut a random topological order into stages of about the mean work."""
    order = _random_order(problem, random)
    ends = [*accumulate(problem.work[item] for item in order)]
    stages, items = problem.devices, len(order)
    starts: list[int] = [0]
    for stage in range(1, stages):
        start = bisect_right(ends, ends[-1] * stage / stages) + random.randrange(2)
        starts.append(min(max(start, starts[-1] + 1), items - stages + stage))
    stage_of = [0] * items
    for place, item in enumerate(order):
        stage_of[item] = bisect_right(starts, place) - 1
    return Placement(problem, stage_of, range(stages))


def _random_order(problem: Problem, random: Random) -> Sequence[int]:
    waits = [len(before) for before in problem.predecessors]
    ready = [item for item, count in enumerate(waits) if not count]
    order = []
    while ready:
        at = random.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        order.append(item := ready.pop())
        for other in problem.successors[item]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return order
