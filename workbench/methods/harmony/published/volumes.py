"""Bytes that a task graph moves in one iteration, summed over all GPUs.

These are what the graph needs, by the media of its flows, so weights that stay on a GPU between two
tasks are not counted (the time estimate charges them all the same). Harmony-PP brings in about
twice the weights whatever the number of GPUs, Harmony-DP about that on every GPU, and neither
depends on the number of micro-batches, since a task runs all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.harmony.published.profiles import PublishedProfile
from workbench.methods.harmony.published.tasks import (
    Flow,
    Medium,
    Mode,
    Task,
    TaskGraph,
    TaskKind,
    What,
)

HOST_LINK = (Medium.DATA, Medium.SWAP, Medium.MESSAGE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Volumes:
    """Bytes per iteration over all GPUs."""

    weights_in: int
    """Weights and buffers from the host."""
    gradients_out: int
    """Gradients and buffers to the host; in data parallel the first GPU's, which holds the sum."""
    activations_in: int
    """Data, targets, stashes, and what is swapped, from the host."""
    activations_out: int
    p2p: int
    all_reduced: int
    """Size of what takes part in all-reduces, of every GPU; not what the algorithm then moves."""


def volumes(graph: TaskGraph, profile: PublishedProfile) -> Volumes:
    moved = dict.fromkeys(Volumes.__dataclass_fields__, 0)
    reduced = graph.mode is Mode.DP and graph.gpus > 1
    for task in graph.tasks:
        if task.kind is TaskKind.UPDATE:
            continue
        for flow in task.inputs:
            if flow.what is What.WEIGHTS and flow.medium is Medium.SHARED:
                moved["weights_in"] += profile.swapped_bytes(flow.layers)
            elif flow.medium in HOST_LINK:
                moved["activations_in"] += _activation_bytes(flow, task, profile)
        for flow in task.outputs:
            if flow.what is What.GRADIENTS:
                size = profile.swapped_bytes(flow.layers)
                moved["gradients_out"] += size if task.rank == 0 or not reduced else 0
                moved["all_reduced"] += size if reduced else 0
            elif flow.medium is Medium.P2P:
                moved["p2p"] += _activation_bytes(flow, task, profile)
            elif flow.medium in HOST_LINK:
                moved["activations_out"] += _activation_bytes(flow, task, profile)
    return Volumes(**moved)


def _activation_bytes(flow: Flow, task: Task, profile: PublishedProfile) -> int:
    targets = flow.what is What.TARGET
    each = profile.target_bytes if targets else profile.boundary_bytes(flow.layers.start)
    return each * sum(task.microbatches)
