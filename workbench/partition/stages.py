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
    seconds: Sequence[float],
    count: int,
    fits: Callable[[int, range], bool],
    in_last: Sequence[float] | None = None,
) -> tuple[range, ...] | None:
    """Cut a chain of units into `count` stages whose slowest takes as few seconds as possible among
    the cuts where ``fits(stage, units)`` holds for all; None where there is none.

    `seconds` are those of each unit, `in_last` in the last stage, where they are fewer. A part of a
    stage that fits must fit, too. Later stages are filled first, since earlier ones keep more
    micro-batches. Raises ValueError where there are fewer units than stages.
    """
    if len(seconds) < count:
        raise ValueError(f"{count} stages need a unit each, and the model has {len(seconds)}")
    ends = [0.0, *accumulate(seconds)]
    last_ends = [0.0, *accumulate(in_last)] if in_last is not None else ends

    def cut(limit: float) -> tuple[range, ...] | None:
        stages, end = [], len(seconds)
        for stage in reversed(range(count)):
            first, so_far = end, last_ends if stage == count - 1 else ends
            while first > stage and so_far[end] - so_far[first - 1] <= limit * (1 + 1e-9):
                if not fits(stage, range(first - 1, end)):
                    break
                first -= 1
            if first == end:
                return None
            stages.append(range(first, end))
            end = first
        return None if end else tuple(reversed(stages))

    low, high = max(max(in_last or seconds), last_ends[-1] / count), ends[-1]
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
