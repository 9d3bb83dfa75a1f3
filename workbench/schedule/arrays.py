"""A schedule for the simulator alone, as arrays: nodes, lanes and edges of one step.

A search that compares hundreds of pipelines, or one of ten thousand micro-batches, needs when
passes end and no names, buffers or proofs. A builder that writes arrays takes a hundredth of the
time of one that writes actions (methods/pipeline/quick.py); the loop that runs them is the
simulator's (event_loop.py). numpy is imported by the first graph: commands, guards and sweeps start
without it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from workbench.schedule.turns import Turns

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class ArrayGraph:
    """One step. Nodes are numbered from 0; a lane runs its nodes by their `place`."""

    lane_keys: list[tuple[int, str]]
    """Lane number -> (rank, lane)."""
    lane_of: np.ndarray
    """[nodes]: the lane number of each node."""
    edges: np.ndarray
    """[edges, 2]: (node, one that waits for it), those that follow on a lane among them."""
    turns: Turns | None = None
    """Lanes that share devices, where some do."""

    @property
    def num_actions(self) -> int:
        """Nodes of a step."""
        return len(self.lane_of)

    num_nodes = num_actions

    @cached_property
    def flat_followers(self) -> tuple[array, array]:
        """Where the followers of each node begin, and the last ones end; and the distances."""
        import numpy as np

        order = np.argsort(self.edges[:, 0], kind="stable")
        sources, targets = self.edges[order].T
        first = np.searchsorted(sources, np.arange(self.num_nodes + 1))
        return _numbers(first), _numbers(targets - sources)

    def missing(self) -> list[int]:
        """Node -> how many it waits for."""
        import numpy as np

        return np.bincount(self.edges[:, 1], minlength=self.num_nodes).tolist()

    def release(self, node: int, missing: list[int]) -> list[int]:
        """Nodes that waited for this one last; `missing` is brought up to date."""
        first, distances = self.flat_followers
        ready = []
        for distance in distances[first[node] : first[node + 1]]:
            missing[node + distance] -= 1
            if not missing[node + distance]:
                ready.append(node + distance)
        return ready


def _numbers(values: np.ndarray) -> array:
    import numpy as np

    return array("q", np.ascontiguousarray(values, dtype=np.int64).tobytes())
