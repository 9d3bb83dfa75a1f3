"""Layers whose weights and optimizer states stay on one rank's device, and are updated there."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from workbench.runtime.host_updates import HostUpdates
from workbench.runtime.storage import States
from workbench.schedule.action import Action, Kind


class Residents:
    """Those of one rank. The host keeps a place for each, where runs begin and checkpoints end."""

    def __init__(
        self, states: dict[int, States], actions: Iterable[Action], updates: HostUpdates
    ) -> None:
        """`states` by unit, on the device; `actions` are the rank's, in their order."""
        self._states, self._updates = states, updates
        last = {
            action.unit: action.name
            for action in actions
            if action.kind is Kind.BACKWARD and action.unit in states
        }
        self._last = set(last.values())

    def __contains__(self, unit: int) -> bool:
        return unit in self._states

    def bring(self) -> None:
        """From the host to the device."""
        for unit, here in self._states.items():
            here.copy_(self._updates.states(unit))

    def give_back(self) -> None:
        """From the device to the host."""
        for unit, here in self._states.items():
            self._updates.states(unit).copy_(here)

    def complete(self, action: Action) -> bool:
        """Whether an action completes the gradients of a layer that stays."""
        return action.name in self._last

    def update(self, unit: int, step: int, gradients: Tensor) -> None:
        """On the device, unless the step is skipped."""
        self._updates.update_here(unit, step, self._states[unit], gradients)
