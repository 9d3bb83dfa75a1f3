"""The published scheduler's estimates of a task graph: time, idleness, memory, bytes."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.harmony.published.profiles import Direction, PublishedProfile
from workbench.methods.harmony.published.tasks import Task, TaskGraph, TaskKind, What
from workbench.methods.harmony.published.timing import Server, simulate
from workbench.methods.harmony.published.volumes import Volumes, volumes


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Of one iteration. Shares are between 0 and 1."""

    seconds: float
    rank_ends: tuple[float, ...]
    """Seconds until the last event of each GPU; 0 for a GPU without tasks."""
    compute_seconds: tuple[float, ...]
    """Per GPU: forward, recomputation, backward."""
    memory_bytes: tuple[float, ...]
    """Per GPU, by the published equation."""
    volumes: Volumes

    @property
    def idle(self) -> tuple[float, ...]:
        """Per GPU: the share of the iteration behind its last event."""
        return tuple(1 - end / self.seconds for end in self.rank_ends)

    @property
    def compute_share(self) -> float:
        """Computing time over the iteration, mean of the GPUs."""
        return sum(self.compute_seconds) / len(self.compute_seconds) / self.seconds


def estimate(
    graph: TaskGraph, profile: PublishedProfile, server: Server, *, prefetch: bool = False
) -> Estimate:
    """All of it; ValueError where the graph is not of this model, Deadlock where it cannot run."""
    timing = simulate(graph, profile, server, prefetch=prefetch)
    return Estimate(
        seconds=timing.seconds,
        rank_ends=timing.rank_ends,
        compute_seconds=timing.compute_seconds,
        memory_bytes=device_bytes(graph, profile),
        volumes=volumes(graph, profile),
    )


def device_bytes(graph: TaskGraph, profile: PublishedProfile) -> tuple[float, ...]:
    """Per GPU: the largest need of its tasks by the published equation, 0 where it has none.

    A forward task holds its pack, its input and output once more (they are double-buffered), and
    the stashes it sends; a backward task its pack, its stash twice more, the gradient it takes and
    the one it gives. The published scheduler (artifact, commit 5fd838f) only reports this; it
    rejects nothing for it, and its best plans exceed the capacity that its packing rules were
    given.
    """
    peaks = [0.0] * graph.gpus
    for task in graph.tasks:
        if task.kind is not TaskKind.UPDATE:
            peaks[task.rank] = max(peaks[task.rank], task_bytes(task, profile))
    return tuple(peaks)


def task_bytes(task: Task, profile: PublishedProfile) -> float:
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
