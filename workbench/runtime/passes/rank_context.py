"""The surroundings that all parts of a rank share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.model.text import Batches
from workbench.runtime.executor.board import Board
from workbench.runtime.memory.device_budget import DeviceMeter
from workbench.runtime.memory.shared import SharedHost
from workbench.runtime.memory.visits import VisitLayout
from workbench.schedule.action import Action
from workbench.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """A rank's work and its means."""

    model: LayeredModel
    schedule: Schedule
    """Of the rank's replica."""
    spec: RunSpec
    batches: Batches
    host: SharedHost
    board: Board
    meter: DeviceMeter
    layouts: list[VisitLayout]
    """How each unit's weights lie on the device."""
    device: torch.device
    dtype: torch.dtype
    """Of passes."""

    @property
    def actions(self) -> list[Action]:
        """The rank's, in the order of the schedule."""
        return [each for each in self.schedule.actions if each.rank == self.board.position]
