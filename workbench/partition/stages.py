"""Cuts of a chain of units into stages whose slowest one is the fastest possible, where each stage
has memory of its own.

For packs that all have the same memory see chain.py. In a pipeline an earlier stage keeps more
micro-batches, so whether units fit depends on the stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

ROUNDS = 60
"""Halvings of the interval in which the slowest stage's time lies."""


def min_max_stages(
    seconds: Sequence[float], count: int, fits: Callable[[int, range], bool]
) -> tuple[range, ...] | None:
    """Cut a chain of units into `count` stages whose slowest takes as few seconds as possible among
    the cuts where ``fits(stage, units)`` holds for all; None where there is none.

    A part of a stage that fits must fit, too. Later stages are filled first, since earlier ones
    keep more micro-batches. Raises ValueError where there are fewer units than stages.
    """
    if len(seconds) < count:
        raise ValueError(f"{count} stages need a unit each, and the model has {len(seconds)}")
    ends = [0.0, *accumulate(seconds)]

    def cut(limit: float) -> tuple[range, ...] | None:
        stages, end = [], len(seconds)
        for stage in reversed(range(count)):
            first = end
            while first > stage and ends[end] - ends[first - 1] <= limit * (1 + 1e-9):
                if not fits(stage, range(first - 1, end)):
                    break
                first -= 1
            if first == end:
                return None
            stages.append(range(first, end))
            end = first
        return None if end else tuple(reversed(stages))

    low, high = max(max(seconds), ends[-1] / count), ends[-1]
    found = cut(low)
    if found is not None:
        return found
    found = cut(high)
    for _ in range(ROUNDS if found is not None else 0):
        middle = (low + high) / 2
        if (better := cut(middle)) is None:
            low = middle
        else:
            found, high = better, middle
    return found
