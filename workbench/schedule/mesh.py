"""The processes below a schedule: so many replicas of every rank.

A rank of a schedule is a pipeline position. Where the schedule has D replicas, D processes walk
the lanes of that position, each on rows of its own: process ``position * D + replica``. Replicas of
a position are neighbours, so that they lie on one host where hosts have several devices.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.division import Samples, even_share


@dataclass(frozen=True, slots=True)
class Mesh:
    """P positions times D replicas.

    >>> mesh = Mesh(3, 2)
    >>> mesh.process(2, 1), mesh.position(5), mesh.replica(5), [*mesh.peers(2)]
    (5, 2, 1, [4, 5])
    """

    positions: int
    replicas: int = 1

    @property
    def processes(self) -> int:
        """Number of all processes."""
        return self.positions * self.replicas

    def process(self, position: int, replica: int) -> int:
        """Number of one replica's process at a position."""
        return position * self.replicas + replica

    def position(self, process: int) -> int:
        """Rank of the schedule that a process works for."""
        return process // self.replicas

    def replica(self, process: int) -> int:
        """Number of a process among those of its position."""
        return process % self.replicas

    def share(self, batch: int, replica: int) -> Samples:
        """The samples of a step that are a replica's; the first replicas have one more."""
        return even_share(batch, replica, self.replicas)

    def peers(self, position: int) -> range:
        """Processes of a position."""
        return range(self.process(position, 0), self.process(position + 1, 0))
