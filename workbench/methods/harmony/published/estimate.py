"""What the published scheduler says of a task graph: time, idleness, memory, bytes."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.harmony.published.memory import device_bytes
from workbench.methods.harmony.published.profiles import ModelProfile
from workbench.methods.harmony.published.tasks import TaskGraph
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
    def max_idle(self) -> float:
        return max(self.idle)

    @property
    def mean_idle(self) -> float:
        return sum(self.idle) / len(self.idle)

    @property
    def compute_share(self) -> float:
        """Computing time over the iteration, mean of the GPUs."""
        return sum(self.compute_seconds) / len(self.compute_seconds) / self.seconds

    @property
    def peak_memory_bytes(self) -> float:
        return max(self.memory_bytes)


def estimate(
    graph: TaskGraph, profile: ModelProfile, server: Server, *, prefetch: bool = False
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
