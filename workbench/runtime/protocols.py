"""Interfaces that the engine of a rank uses: a carrier of messages, an optimizer, and weights.

Between ranks of one host messages are copies into mapped memory (peer_transport.py), and the host
updates (host_updates.py). Another carrier, or an optimizer on the device alone, offers the methods
here, and the engine does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from workbench.runtime.memory.storage import States
from workbench.runtime.passes.bundle import Bundle
from workbench.schedule.action import Action


class Transport(Protocol):
    """Carries messages between the ranks of one replica, in the order of their lanes."""

    def send(self, action: Action, source: Bundle, step: int) -> None:
        """Send a bundle to the action's partner, when that has a place for it."""

    def receive(self, action: Action, step: int) -> Bundle:
        """The message, where it lies; on CUDA the current stream waits until it has come."""

    def announce(self, action: Action, step: int) -> None:
        """Tell the sender that there is a place for the message."""

    def borrower(self, action: Action) -> int:
        """The unit to which a message lends weights, or from which it brings their gradients."""

    def close(self) -> None:
        """Let go of all memory; no message is on its way."""


class StageUpdates(Protocol):
    """Whoever updates the weights of stages that stay on their device."""

    def begin(self, gradients: Tensor, step: int) -> None:
        """Prepare a step's gradients, flat, of all weights of this process."""

    def update(self, unit: int, step: int) -> None:
        """Update the weights of a stage, whose gradients are complete."""


class Loans(Protocol):
    """Weights that stages lend each other, by the units of owner and borrower."""

    def weights(self, pair: tuple[int, int]) -> Bundle:
        """The owner's weights, or the borrower's copies of them."""

    def gradients(self, pair: tuple[int, int]) -> Bundle:
        """Gradients of a borrower's copies."""

    def weights_came(self, pair: tuple[int, int], came: Bundle) -> None:
        """Take weights for the borrower's next update."""

    def gradients_came(self, pair: tuple[int, int], step: int, came: Bundle) -> None:
        """Take the gradients of a step, for the owner's update."""

    def leave(self, pair: tuple[int, int], step: int) -> None:
        """Take a borrower's gradients of a step for an owner in this process."""

    def forget(self) -> None:
        """Let go of what a step has left that failed."""


class OutsideUpdates:
    """Updates that the caller's own optimizer makes after the step. A `StageUpdates`."""

    def begin(self, gradients: Tensor, step: int) -> None:
        """Gradients of each step begin at zero."""
        gradients.zero_()

    def update(self, unit: int, step: int) -> None:
        """The optimizer comes later."""


class Versions(Protocol):
    """Versions of the weights of one stage."""

    def reading(self, action: Action, step: int) -> AbstractContextManager:
        """While a pass of a training step runs, its stage has the weights that the pass reads."""

    def renew(self, step: int) -> None:
        """Before the stage's update by a step's gradients."""


class Updates(Protocol):
    """The optimizer of a rank, and where its states are."""

    settled: Mapping[str, int]
    """Updates made before the norm was known, by what became of them."""

    def gradients(self, unit: int, rank: int) -> Tensor:
        """Where a rank's gradients of a unit arrive, flat: its share, or all of them."""

    def part_number(self, unit: int) -> int:
        """Number of the part of a unit that this rank updates."""

    def see(self, unit: int, gradients: Tensor) -> None:
        """Take the norm of gradients on their way to where they are used."""

    def see_here(self, unit: int, gradients: Tensor) -> None:
        """Take the norm of gradients that stay on the device, on the current stream."""

    def norm(self, step: int) -> None:
        """Decide the global norm of a step, for all ranks."""

    def guess(self, unit: int, step: int) -> None:
        """Update this rank's part of a unit before the norm is known, where that seems safe."""

    def settle(self, unit: int, step: int) -> None:
        """Make such an update what it must be."""

    def update(self, unit: int, step: int) -> None:
        """Update this rank's part of a unit, unless the step is skipped."""

    def update_here(self, unit: int, step: int, states: States, gradients: Tensor) -> None:
        """Update a unit that stays on the device, unless the step is skipped."""

    def check(self, step: int) -> None:
        """Raise Diverged where a step should have been skipped and could not be."""

    def forget(self) -> None:
        """No unit has been updated in a step that failed."""

    def states(self, unit: int) -> States:
        """Weights, moments and masters' rest of a unit, where checkpoints are made."""
