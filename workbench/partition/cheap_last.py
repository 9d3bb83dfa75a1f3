"""Partitions of a graph whose last stage is cheaper: it need not recompute its activations, since
its backward pass directly follows its forward pass (Eliad et al., ATC 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from workbench.partition.placement import Placement, better
from workbench.partition.problem import Problem

ROUNDS = 10
"""Times that the last stage is guessed again."""
MISTAKES = 2
"""Wrong guesses with which the rounds may end."""
SUFFIXES = 32
"""Most suffixes of the last stage that are tried after that."""


def with_cheap_last(
    problem: Problem,
    last_work: Sequence[float],
    find: Callable[[Problem], Placement],
    *,
    known: Placement | None = None,
) -> Placement:
    """The best placement, and its costs, where the items of the last stage take `last_work`.

    `find` partitions with the cheaper costs for a set of items; that its last stage holds is the
    next set, until they agree. Where they hardly do, suffixes of the last stage are tried, too. No
    placement is returned that is worse than a `known` one of this kind.
    """
    best = known

    def tried(assumed: set[int]) -> set[int]:
        """Partition for a set; returns the items of the last stage."""
        nonlocal best
        found = find(_priced(problem, last_work, assumed))
        real = _last(found)
        true = Placement(_priced(problem, last_work, real), found.stage_of, found.device_of)
        if best is None or better(true.key()[:2], best.key()[:2]):
            best = true
        return real

    assumed: set[int] = set()
    for _ in range(ROUNDS):
        real = tried(assumed)
        mistakes = len(real ^ assumed)
        if not mistakes:
            break
        assumed = real
    if mistakes > MISTAKES:
        items = sorted(assumed)
        for start in range(0, len(items), -(-len(items) // SUFFIXES)):
            tried(set(items[start:]))
    if known is not None:
        tried(_last(known))
    assert best is not None
    return best


def cheapest(problem: Problem, last_work: Sequence[float]) -> Problem:
    """The problem with the lesser of both costs of each item: no last stage makes it cheaper."""
    return replace(problem, work=tuple(map(min, problem.work, last_work)))


def _priced(problem: Problem, last_work: Sequence[float], last: set[int]) -> Problem:
    work = (last_work[i] if i in last else each for i, each in enumerate(problem.work))
    return replace(problem, work=tuple(work))


def _last(placement: Placement) -> set[int]:
    last = len(placement.device_of) - 1
    return {item for item, stage in enumerate(placement.stage_of) if stage == last}
