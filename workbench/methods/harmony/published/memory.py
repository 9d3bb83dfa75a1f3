"""How much of each GPU's memory a task graph needs, by the published equation.

(The published artifact, commit 5fd838f.)

A forward task holds its pack, its input and output once more (they are double-buffered), and the
stashes it sends; a backward task its pack, its stash twice more, the gradient it takes and the one
it gives. The published scheduler only reports this; it rejects nothing for it, and its best plans
exceed the capacity that its packing rules were given.
"""

from __future__ import annotations

from workbench.methods.harmony.published.profiles import Direction, ModelProfile
from workbench.methods.harmony.published.tasks import Task, TaskGraph, TaskKind, What


def device_bytes(graph: TaskGraph, profile: ModelProfile) -> tuple[float, ...]:
    """Per GPU: the largest need of its tasks, 0 where it has none."""
    peaks = [0.0] * graph.gpus
    for task in graph.tasks:
        if task.kind is not TaskKind.UPDATE:
            peaks[task.rank] = max(peaks[task.rank], task_bytes(task, profile))
    return tuple(peaks)


def task_bytes(task: Task, profile: ModelProfile) -> float:
    """Bytes of one forward or backward task, at its largest micro-batch."""
    size = max(task.microbatches)
    forward = task.kind is TaskKind.FORWARD
    direction = Direction.FORWARD if forward else Direction.BACKWARD
    entering = profile.boundary_bytes(task.pack.start)
    leaving = [flow for flow in task.outputs if flow.what in (What.X, What.DX)]
    taken = task.flows_in(What.DX)
    crossing = sum(profile.boundary_bytes(flow.layers.start) for flow in [*leaving, *taken])
    held = crossing + (entering if forward else 2 * entering)
    return profile.at(direction, size).memory(task.pack) + held * size
