"""Sums over the ranks that name them, which need not be all, and over their replicas; and what all
ranks do as one.

Replicas of one stage of a pipeline add up their gradients, and no other stage's.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from workbench.runtime import loopback
from workbench.runtime.tiers import OutOfMemory
from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import Schedule

PATIENCE = timedelta(hours=12)
"""Sums wait as long as compute takes; who hangs is told by the board, not by a timeout."""


class Groups:
    """A process group for each set of ranks; the world's, where that is all of them."""

    def __init__(self, schedule: Schedule, everybody: dist.ProcessGroup | None = None) -> None:
        """On every rank before the first step: torch makes a group with all, in one order.
        `everybody` is that of all ranks, the world's by default."""
        self._everybody = everybody
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
        dist.all_reduce(values, group=self._made.get((*ranks,), self._everybody))
        return ranks[0]


def device_of(device: int | str | torch.device, local_rank: int) -> torch.device:
    """A process's device; -1 is its GPU, where there is one. Raises ValueError for one that is not
    there."""
    if device == -1:
        number = max(0, local_rank)
        device = number if torch.cuda.is_available() else "cpu"
    found = torch.device(device) if not isinstance(device, int) else torch.device("cuda", device)
    if found.type == "cuda":
        if (found.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device is {found}; there are {torch.cuda.device_count()} GPUs")
        torch.cuda.set_device(found)
    return found


def join(device: torch.device) -> bool:
    """Join the world that the environment names, unless the script has; without one, that of this
    process alone, which listens on loopback only. Returns whether to leave it in the end: several
    processes could not join a second time, theirs stays."""
    if dist.is_initialized():
        return False
    if "RANK" in os.environ:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
    else:
        loopback.join(device, patience=PATIENCE)
    return dist.get_world_size() == 1


def as_one(do: Callable[[], Any], group: dist.ProcessGroup | None) -> list[Any]:
    """Have every rank of a group do something; returns what all of them found, by rank. None is
    this process alone.

    Raises, on every rank, the ValueError, OSError or OutOfMemory of the first one that has one; one
    of somebody else's class, which others may not know, as ValueError or OSError. It has an
    attribute `of_all`.
    """
    if group is None:
        return [do()]
    told: list[Any] = [None] * dist.get_world_size(group)
    try:
        mine = do(), None
    except (OSError, ValueError, SafetensorError, OutOfMemory) as error:
        kind, args, fields = type(error), error.args, vars(error)
        if not kind.__module__.startswith("workbench."):
            kind = ValueError if isinstance(error, ValueError) else OSError
            args, fields = (str(error),), {}
        mine = None, (kind, args, fields)
    dist.all_gather_object(told, mine, group=group)
    for _, failed in told:
        if failed is not None:
            kind, args, fields = failed
            error = kind.__new__(kind, *args)  # how it was initialized, its fields tell
            vars(error).update(fields, of_all=True)
            raise error
    return [found for found, _ in told]
