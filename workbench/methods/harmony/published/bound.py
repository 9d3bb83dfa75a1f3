"""A time that no estimate of a configuration can be below, at a thousandth of the estimate's cost.

Each GPU computes its tasks one after another, and between two of them its compute stream waits for
gradients to be taken out and for what was held to be deleted. The GPU with the longest such sum
bounds the iteration, with and without prefetching. A search that goes by this bound finds the same
best candidates and simulates few of the others.
"""

from __future__ import annotations

from collections import Counter

from workbench.methods.harmony.published.profiles import Direction, PublishedProfile
from workbench.methods.harmony.published.tasks import Configuration, Mode, TaskKind
from workbench.methods.harmony.published.timing import Server


def least_seconds(configuration: Configuration, profile: PublishedProfile, server: Server) -> float:
    """Seconds of an iteration, from below."""
    replicated = configuration.mode is Mode.DP
    gpus = configuration.gpus
    tasks = [
        *((TaskKind.FORWARD, pack) for pack in configuration.forward),
        *((TaskKind.BACKWARD, pack) for pack in reversed(configuration.backward)),
    ]
    used = gpus if replicated else min(gpus, len(tasks))
    samples = configuration.shares()[0]  # the first replica has no fewer than any other
    busy = [0.0] * used
    for position, (kind, pack) in enumerate(tasks):
        forward = kind is TaskKind.FORWARD
        direction = Direction.FORWARD if forward else Direction.BACKWARD
        sizes = Counter(configuration.microbatches(kind, samples))
        seconds = server.delete_seconds + sum(
            number * profile.at(direction, size).time(pack) for size, number in sizes.items()
        )
        if not forward:
            swapped = profile.swapped_bytes(pack)
            seconds += swapped * used / server.swap_bytes_per_s
            if replicated:
                seconds += 2 * (gpus - 1) / gpus * swapped / server.p2p_bytes_per_s
        busy[0 if replicated else position % used] += seconds
    return max(busy)
