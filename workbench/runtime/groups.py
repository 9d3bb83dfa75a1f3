"""Who adds up what: a process group for each set of ranks that a schedule has add something up.

A sum is over the ranks that name it, which need not be all: replicas of one stage of a pipeline add
up their gradients, and no other stage's.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import Schedule

PATIENCE = timedelta(hours=12)
"""Sums wait as long as compute takes; who hangs is told by the board, not by a timeout."""


class Groups:
    """The groups of all ranks, as one of them sees them."""

    def __init__(self, schedule: Schedule) -> None:
        """Before the first step, on every rank: torch makes a group with all of them, in one order.
        All ranks together are the world's group."""
        found: dict[tuple, set[int]] = {}
        for action in schedule.actions:
            if action.kind is Kind.REDUCE:
                found.setdefault(action.meeting, set()).add(action.rank)
        self._ranks = {meeting: tuple(sorted(ranks)) for meeting, ranks in found.items()}
        self._made = {
            ranks: dist.new_group(list(ranks), timeout=PATIENCE)
            for ranks in sorted({*self._ranks.values()})
            if len(ranks) < schedule.num_ranks
        }

    def ranks(self, action: Action) -> tuple[int, ...]:
        """Who takes part in a sum."""
        return self._ranks[action.meeting]

    def add_up(self, values: Tensor, action: Action) -> None:
        """Make a rank's values the sum of those of all who take part."""
        dist.all_reduce(values, group=self._made.get(self.ranks(action)))
