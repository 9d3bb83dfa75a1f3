"""Sums over the ranks that name them, which need not be all, and over their replicas; and what all
ranks do as one.

Replicas of one stage of a pipeline add up their gradients, and no other stage's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import Schedule

PATIENCE = timedelta(hours=12)
"""Sums wait as long as compute takes; who hangs is told by the board, not by a timeout."""


class Groups:
    """A process group for each set of ranks; the world's, where that is all of them."""

    def __init__(self, schedule: Schedule) -> None:
        """On every rank before the first step: torch makes a group with all, in one order."""
        mesh = schedule.mesh
        self._ranks: dict[tuple, list[int]] = defaultdict(list)
        for action in sorted(schedule.actions, key=lambda action: action.rank):
            if action.kind is Kind.REDUCE:
                self._ranks[action.meeting] += mesh.peers(action.rank)
        self._made = {
            ranks: dist.new_group([*ranks], timeout=PATIENCE)
            for ranks in sorted({*map(tuple, self._ranks.values())})
            if len(ranks) < mesh.processes
        }

    def add_up(self, values: Tensor, action: Action) -> int:
        """Make a rank's values the sum of all that take part; returns the first of these."""
        ranks = self._ranks[action.meeting]
        dist.all_reduce(values, group=self._made.get((*ranks,)))
        return ranks[0]


def as_one(do: Callable[[], Any], group: dist.ProcessGroup | None) -> list[Any]:
    """Have every rank of a group do something; returns what all of them found, by rank. None is
    this process alone.

    Raises, on every rank, the ValueError or OSError of the first one that has one.
    """
    if group is None:
        return [do()]
    told: list[Any] = [None] * dist.get_world_size(group)
    try:
        mine = do(), None
    except (OSError, ValueError, SafetensorError) as error:
        mine = None, (ValueError if isinstance(error, ValueError) else OSError)(str(error))
    dist.all_gather_object(told, mine, group=group)
    for _, error in told:
        if error is not None:
            raise error
    return [found for found, _ in told]
