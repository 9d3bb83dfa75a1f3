"""What the pipeline program works on: the question, and actions that are being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from workbench.methods.pipeline.orders import Pass
from workbench.schedule.action import COMPUTE, NET_IN, NET_OUT, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.inbox import RETURNS

AHEAD = 2
"""Passes by which a message may come before its reader; outputs that may wait to be sent."""
LANES = {
    Kind.SEND: NET_OUT,
    Kind.RECV: NET_IN,
    Kind.SEND_GRAD: RETURNS,
    Kind.RECV_GRAD: NET_IN + ".1",
}
"""Activations and their gradients go on lanes of their own, so that neither waits for the other."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The question: passes, stages and sizes of one step."""

    method: str
    passes: Sequence[Sequence[Pass]]
    """Of each rank."""
    stages: Sequence[range]
    """Units of each stage; stage s lies on rank s % ranks."""
    micro: int
    """Samples in a micro-batch."""
    replicas: int = 1
    activations: Literal["keep", "recompute", "checkpoint"] = "keep"
    """What becomes of those of blocks: kept for the backward pass; computed again before it; or in
    it, as far as it needs them (`checkpoint`). The embedding's and the head's are kept always."""
    clipped: bool = True

    @property
    def ranks(self) -> int:
        """Pipeline positions."""
        return len(self.passes)

    @property
    def micros(self) -> int:
        """Micro-batches of a replica in a step."""
        return 1 + max(each.micro for each in self.passes[0])

    @property
    def head(self) -> int:
        """The last unit."""
        return self.stages[-1].stop - 1

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """Unit -> the rank whose device has it."""
        return {u: s % self.ranks for s, units in enumerate(self.stages) for u in units}

    def recomputes(self, unit: int) -> bool:
        """Whether a unit's forward pass is repeated by a pass of its own."""
        return self.activations == "recompute" and 0 < unit < self.head

    def checkpoints(self, unit: int) -> bool:
        """Whether a unit's backward pass begins at a checkpoint."""
        return self.activations == "checkpoint" and 0 < unit < self.head


@dataclass(kw_only=True)
class Draft:
    """An action that is being written. Buffers are named as on rank 0."""

    kind: Kind
    unit: int
    rank: int
    lane: str = COMPUTE
    turn: int = 0
    """Number of the pass through a stage, among those of its rank, that it belongs to."""
    micro: int | None = None
    after: list[str] = field(default_factory=list)
    makes: list[str] = field(default_factory=list)
    """Buffers that it takes."""
    reads: list[str] = field(default_factory=list)
    """Further buffers that must be there; permanent ones too."""
    frees: list[str] = field(default_factory=list)
    nbytes: int = 0

    @property
    def name(self) -> str:
        """Its name in the schedule."""
        return act(self.kind, self.unit, self.micro, rank=self.rank)
