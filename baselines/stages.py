"""Parts of the ranks: consecutive units of the model in a pipeline, samples in data parallelism.

A pipeline's slowest stage sets its pace, so that stage's floating-point operations are made as few
as a cut into so many contiguous stages allows; among the cuts that reach this, the one whose
largest stage has the fewest parameters is taken. Imports no torch: planner and runtime ask alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from workbench.core.division import packs_of
from workbench.core.spec import RunSpec
from workbench.model import units_of
from workbench.partition.chain import min_max_partition

BACKWARD = 2
"""A backward pass in forward passes."""
MARGIN = 1e-9
"""Sums of the same numbers in another order are as large."""


def cut(
    flops: Sequence[float], parameters: Sequence[int], count: int, *, recompute: bool
) -> tuple[range, ...]:
    """The units of each of `count` stages.

    `flops` (of a forward pass) and `parameters` are those of each unit: embedding, blocks, head.
    `recompute`: blocks run forward once more before their backward pass. Every stage has a block.
    Raises ValueError where there are fewer blocks than stages.

    >>> cut([0, 4, 4, 4, 4, 8], [9, 1, 1, 1, 1, 0], 2, recompute=False)
    (range(0, 4), range(4, 6))
    """
    head = len(flops) - 1
    blocks = head - 1
    check_blocks(count, blocks)
    work = [
        value * (1 + BACKWARD + (recompute and 0 < unit < head)) for unit, value in enumerate(flops)
    ]
    ends = list(accumulate(work, initial=0.0))

    def has_block(first: int, last: int) -> bool:
        return max(first, 1) <= min(last, blocks)

    fastest = min_max_partition(work, count, has_block)
    assert fastest is not None
    limit = max(ends[stage.stop] - ends[stage.start] for stage in fastest) * (1 + MARGIN)

    def fits(first: int, last: int) -> bool:
        return has_block(first, last) and ends[last + 1] - ends[first] <= limit

    smallest = min_max_partition([float(number) for number in parameters], count, fits)
    assert smallest is not None
    return smallest


def stages_for(
    spec: RunSpec, flops: Sequence[float], parameters: Sequence[int]
) -> tuple[range, ...]:
    """The stages that a run of torch's pipelines names, or those of `cut`."""
    if given := getattr(spec.options, "given_stages", []):
        return packs_of(given)
    count = spec.ranks * getattr(spec.options, "chunks", 1)
    return cut(flops, parameters, count, recompute=spec.activations != "keep")


def check_blocks(stages: int, blocks: int) -> None:
    """Raise ValueError for more stages than blocks."""
    if not 1 <= stages <= blocks:
        raise ValueError(
            f"{stages} stages need a block each, and the model has {blocks}; use 1 to {blocks} "
            "ranks"
        )


def check_stages(spec: RunSpec, stages: int) -> None:
    """Raise ValueError for given ones that are not so many or not of the model's units, and where
    none are given for more than `cut` finds."""
    given, units = spec.options.given_stages, units_of(spec.model)
    if given and (len(given), sum(given)) != (stages, units):
        raise ValueError(
            f"stages {spec.options.stages!r} are {len(given)} of {sum(given)} units; the ranks "
            f"have {stages} stages and the model {units} units"
        )
    if not given:
        check_blocks(stages, units - 2)


def share_of(samples: int, rank: int, ranks: int) -> range:
    """Samples of a rank among `samples`.

    >>> [share_of(5, rank, 2) for rank in range(2)]
    [range(0, 2), range(2, 5)]
    """
    return range(rank * samples // ranks, (rank + 1) * samples // ranks)


def check_shares(samples: int, ranks: int) -> None:
    """Raise ValueError where a rank would have none of so many samples of a micro-batch."""
    if samples < ranks:
        raise ValueError(
            f"a micro-batch of {samples} samples leaves some of {ranks} ranks without any; use "
            "fewer ranks or micro-batches, or a larger batch"
        )
