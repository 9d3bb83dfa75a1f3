"""The processes of stages of different widths, and their groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate

import torch.distributed as dist

from workbench.runtime.transport.collectives import Columns, Group


class StageGroups:
    """The groups of one process: its stage's, and those of each grid of the stage's operators.
    Stages have consecutive processes, rows of a grid too; columns are a row apart."""

    def __init__(
        self, grids: Sequence[Collection[int]], widths: Sequence[int], rank: int,
        new: Callable[[Sequence[int]], dist.ProcessGroup | None],
    ) -> None:  # fmt: skip
        """`grids`: of each stage the numbers of columns that its operators have; `widths` its
        processes. `new` makes a group; every process of the world makes all, in one order."""
        self.starts = [0, *accumulate(widths)]
        self.stage = bisect_right(self.starts, rank) - 1
        self.process = rank - self.starts[self.stage]
        """Number of the process in its stage."""
        self.width = widths[self.stage]
        self.all: Group = None
        """The stage's processes."""
        self._rows: dict[int, Group] = {}
        self._sums: dict[int, Group] = {}
        made: dict[tuple[int, ...], Group] = {}

        def group(ranks: Sequence[int]) -> Group:
            key = tuple(ranks)
            if len(key) > 1 and key not in made:
                made[key] = new(key)
            return made.get(key) if rank in key else None

        for stage, (columns, width) in enumerate(zip(grids, widths, strict=True)):
            ranks = range(self.starts[stage], self.starts[stage] + width)
            whole = group(ranks)
            self.all = self.all or whole
            for tp in sorted(columns):
                rows = [group(ranks[first : first + tp]) for first in range(0, width, tp)]
                sums = [group(ranks[first::tp]) for first in range(tp)]
                if stage == self.stage:
                    self._rows[tp] = rows[self.process // tp]
                    self._sums[tp] = sums[self.process % tp]

    def ranks(self, stage: int) -> range:
        """A stage's processes in the world."""
        return range(self.starts[stage], self.starts[stage + 1])

    def columns(self, tp: int) -> Columns:
        """This process's row of a grid."""
        return Columns(self._rows[tp])

    def replicas(self, tp: int) -> Group:
        """The processes that have the shards that this one has, in a grid."""
        return self._sums[tp]
