"""Bins of clusters: every device gets a part of each class of items (2dbin).

Items are clustered by their work; a cluster is cut, in the order of items, into as many groups as
there are devices. Items that are alike thus spread evenly, in work and in memory. The authors of
Mixed-pipe (Eliad et al., ATC 2021) tried this first and gave it up for blocks of any kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from workbench.partition.coarsen import Blocks
from workbench.partition.problem import Problem

ROUNDS = 100
"""Most rounds of clustering."""


@dataclass(frozen=True, kw_only=True)
class Bins:
    """Settings of the method."""

    n_clusters: int = 2
    """Clusters of items by their work."""
    reminder_policy: Literal["last", "min", "even"] = "last"
    """Items of a cluster that are left over go to its last group, to its group of least work, or
    one each to the first groups."""
    second_and_on_cluster_policy: Literal["best_fit", "order", "reversed"] = "best_fit"
    """Groups of the heaviest cluster go to the devices in order; those of later ones the heaviest
    to the device of least load, in order, or in reverse."""
    THRESHOLD: float = 0.0
    """Items of fewer milliseconds are merged into a neighbour first."""


def bins(problem: Problem, settings: Bins) -> list[int]:
    """The device of each item."""
    blocks = Blocks(problem)
    for block in range(len(problem.work)):
        if block in blocks.successors and blocks.work[block] < settings.THRESHOLD:
            blocks.absorb(block)
    block_of = blocks.block_of()
    work = problem.coarse(block_of).work
    device_of, load = [0] * len(work), [0.0] * problem.devices
    for rank, cluster in enumerate(_clusters(work, min(settings.n_clusters, len(work)))):
        groups = _groups(cluster, work, problem.devices, settings.reminder_policy)
        sums = [sum(work[block] for block in group) for group in groups]
        order = list(range(problem.devices))
        policy = settings.second_and_on_cluster_policy if rank else "order"
        if policy == "best_fit":
            order.sort(key=lambda group: -sums[group])
            targets = sorted(range(problem.devices), key=load.__getitem__)
        else:
            targets = order[::-1] if policy == "reversed" else order
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
    cluster: list[int], work: Sequence[float], count: int, remainder: str
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
