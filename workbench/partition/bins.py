"""Bins of clusters: every device gets a part of each class of items (2dbin).

Items are clustered by their work; a cluster is cut, in the order of items, into as many groups as
there are devices. Items that are alike thus spread evenly, in work and in memory. The authors of
Mixed-pipe (Eliad et al., ATC 2021) tried this first and gave it up for blocks of any kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from workbench.partition.coarsen import Blocks
from workbench.partition.problem import Problem

Remainder = Literal["last", "min", "even"]
Policy = Literal["best_fit", "order", "reversed"]
ROUNDS = 100
"""Most rounds of clustering."""


def bins(
    problem: Problem,
    clusters: int = 2,
    *,
    remainder: Remainder = "last",
    policy: Policy = "best_fit",
    threshold: float = 0.0,
) -> list[int]:
    """The device of each item.

    Items of less than `threshold` milliseconds are first merged into a neighbour. The items of a
    cluster that are left over go to its last group, to its group of least work, or, `even`, one each
    to the first groups. Groups of the heaviest cluster go to the devices in order; those of later
    ones the heaviest to the device of least load, in order, or in reverse.
    """
    blocks = Blocks(problem)
    for block in range(len(problem.work)):
        if block in blocks.successors and blocks.work[block] < threshold:
            blocks.absorb(block)
    block_of = blocks.block_of()
    work = problem.coarse(block_of).work
    device_of, load = [0] * len(work), [0.0] * problem.devices
    for rank, cluster in enumerate(_clusters(work, min(clusters, len(work)))):
        groups = _groups(cluster, work, problem.devices, remainder)
        sums = [sum(work[block] for block in group) for group in groups]
        order = list(range(problem.devices))
        if rank and policy == "best_fit":
            order.sort(key=lambda group: -sums[group])
            targets = sorted(range(problem.devices), key=load.__getitem__)
        else:
            targets = order[::-1] if rank and policy == "reversed" else order
        for group, device in zip(order, targets, strict=True):
            load[device] += sums[group]
            for block in groups[group]:
                device_of[block] = device
    return [device_of[block] for block in block_of]


def _clusters(work: Sequence[float], count: int) -> list[list[int]]:
    """Cluster numbers by size (k-means from even quantiles); the cluster of most work first."""
    sizes = np.array(work)
    means = np.quantile(sizes, (np.arange(count) + 0.5) / count)
    nearest = np.zeros(len(work), dtype=int)
    for _ in range(ROUNDS):
        nearest = np.abs(sizes[:, None] - means[None, :]).argmin(axis=1)
        moved = np.array(
            [sizes[nearest == k].mean() if (nearest == k).any() else means[k] for k in range(count)]
        )
        if (moved == means).all():
            break
        means = moved
    found = [np.flatnonzero(nearest == k).tolist() for k in range(count)]
    return sorted(filter(None, found), key=lambda cluster: -sum(work[each] for each in cluster))


def _groups(
    cluster: list[int], work: Sequence[float], count: int, remainder: Remainder
) -> list[list[int]]:
    """Cut a cluster, in its order, into groups of as many blocks each."""
    each, left = divmod(len(cluster), count)
    counts = [each] * count
    if remainder == "even":
        counts = [each + (group < left) for group in range(count)]
    elif remainder == "last" or not each:
        counts[-1] += left
    else:
        ends = [each * group for group in range(count + 1)]
        sums = [sum(work[block] for block in cluster[a:b]) for a, b in pairwise(ends)]
        counts[sums.index(min(sums))] += left
    ends = [0, *accumulate(counts)]
    return [cluster[a:b] for a, b in pairwise(ends)]
