"""Question of a search for packs: the ranks, the minibatch, the limits, and what is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatchSizes:
    """Samples of a micro-batch in one direction."""

    asked: int | None = None
    """The size that the user asks for; None for the search to choose."""
    largest: int | None = None
    """The largest that the device has room for, as far as was tried."""


@dataclass(frozen=True, kw_only=True)
class PackingProblem:
    """What packs are searched for."""

    mode: str
    ranks: int
    minibatch: int
    device_bytes: int
    host_bytes: int
    clipping: Literal["wait", "auto", "speculate"] | None = "wait"
    """When updates on the host may be made: after the norm, or before it as guesses, of which the
    user may be sure that they stand. None where gradients are not clipped."""
    recorded_below_s: float = 0.0
    """Blocks are recorded where their forward passes take less than so many seconds."""
    forward: MicroBatchSizes = MicroBatchSizes()
    backward: MicroBatchSizes = MicroBatchSizes()
    smallest: int = 1
    """Samples of the smallest micro-batch that the model runs with."""
    alike: bool = False
    """Whether both passes divide the minibatch alike, where samples depend on their micro-batch."""
