"""A pipeline before its program is written: passes, stages and sizes of one step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from workbench.core.division import Samples, micro_span
from workbench.methods.pipeline.orders import I, Pass, R, held, in_flight, positions_of
from workbench.methods.pipeline.places import Places
from workbench.profile.unit_costs import Sizes, longest_forward_s
from workbench.profile.units import RECORDED_CHECKPOINT
from workbench.schedule.action import NET_IN, NET_OUT, Kind
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


def room(own: Iterable[int], stages: int) -> int:
    """Places for the inputs of a position's own stages, of so many stages in all, where its passes
    take turns: of each, those of the micro-batches that its list has in flight, and three a stage
    for forward passes that go first while a gradient is late. With those of the list alone, steps
    under jitter are 5 to 13 % longer."""
    return sum(3 * (stages - 1 - stage) + 3 * stages for stage in own)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One step of a pipeline."""

    method: str
    passes: Sequence[Sequence[Pass]]
    """Passes of each position, in order."""
    stages: Sequence[range]
    """Units of each stage. Where every position has all units (`apart`), it has samples of its own.
    """
    positions: Sequence[int] = ()
    """Position of each stage; by default stages are dealt to the positions in turn."""
    micro_size: int
    """Samples in a micro-batch, at most."""
    samples: int = 0
    """Samples of a step that pass every position of the largest replica, in micro-batches that
    differ by at most one; where none are given, micro-batches are full, but for the last of a
    share."""
    shares: Sequence[Samples] = ()
    """Samples that pass each position, where they divide a step."""
    replicas: int = 1
    activations: Literal["keep", "recompute", "checkpoint", "stash"] = "keep"
    """Treatment of the blocks' activations: kept for the backward pass; computed again before it;
    or in it, as far as it needs them (`checkpoint`); or computed again from inputs that wait on
    the host (`stash`). The head's are kept always, the embedding's too but with `stash`. Where
    lists have recomputations, those of their stages are computed again, and all others kept."""
    places: Sequence[Places] = ()
    """Where the units of each position lie while they visit its device from the host, which updates
    them; none where they stay there with their states."""
    replay: bool = False
    """Whether passes of blocks are recordings (runtime/passes/replay.py)."""
    clipped: bool = True
    stash: int | None = None
    """Micro-batches of which a stage may hold the input; None for any number."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", self.positions or positions_of(self.passes))

    # -- positions ------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Number of positions."""
        return len(self.passes)

    @cached_property
    def held(self) -> list[list[int]]:
        """Stages of each position, the numbers of which its passes name (`Pass.chunk`)."""
        return held(self.positions)

    @cached_property
    def home_of(self) -> dict[int, int]:
        """Unit -> the position whose device has it."""
        each = zip(self.positions, self.stages, strict=True)
        return {unit: position for position, units in each for unit in units}

    def homes_of(self, unit: int) -> list[int]:
        """The positions that have a unit."""
        each = zip(self.positions, self.stages, strict=True)
        return [position for position, units in each if unit in units]

    @property
    def head(self) -> int:
        """The last unit."""
        return self.stages[-1].stop - 1

    @cached_property
    def starts(self) -> frozenset[int]:
        """First units of stages, but for the first one's."""
        return frozenset(stage.start for stage in self.stages) - {0}

    @cached_property
    def boundaries(self) -> frozenset[int]:
        """Units whose inputs come from another position."""
        of = self.home_of
        return frozenset(unit for unit in self.starts if of[unit] != of[unit - 1])

    @property
    def apart(self) -> bool:
        """Whether every position has all units, and they divide samples and gradients."""
        return self.depth > 1 and not self.boundaries

    # -- passes ---------------------------------------------------------------------------------

    @cached_property
    def micros(self) -> int:
        """Micro-batches of a replica in a step."""
        return 1 + max(each.micro for each in self.passes[0])

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """Kinds of the passes in the lists."""
        return frozenset(each.kind for own in self.passes for each in own)

    def in_flight(self, stage: int) -> int:
        """The most micro-batches whose activations a stage keeps at once."""
        at = self.positions[stage]
        return in_flight(self.passes[at], self.held[at].index(stage))

    # -- samples --------------------------------------------------------------------------------

    def share(self, position: int) -> Samples:
        """The samples of a step that pass a position."""
        every = 0, self.samples or self.micro_size * self.micros
        return self.shares[position] if self.shares else every

    def span(self, position: int, micro: int) -> Samples:
        """The samples of a position's micro-batch."""
        if self.samples:
            return micro_span(self.samples, micro, self.micros)
        first, end = self.share(position)
        first += micro * self.micro_size
        return first, min(first + self.micro_size, end)

    # -- activations ----------------------------------------------------------------------------

    @cached_property
    def treated(self) -> Collection[int]:
        """Units to which `activations` applies."""
        return range(int(self.activations != "stash"), self.head)

    @cached_property
    def listed(self) -> frozenset[int]:
        """Units of the stages whose recomputations are in the lists of passes."""
        stages = {
            self.held[position][each.chunk]
            for position, own in enumerate(self.passes)
            for each in own
            if each.kind is R
        }
        return frozenset(unit for stage in stages for unit in self.stages[stage])

    def recomputes(self, unit: int) -> bool:
        """Whether a unit's forward pass is repeated by a pass of its own."""
        if self.listed:
            return unit in self.listed
        return self.activations in ("recompute", "stash") and unit in self.treated

    def repeats(self, unit: int) -> bool:
        """Whether a recomputation of a stage makes a unit's input again."""
        return unit in self.listed and unit not in self.starts

    def stashes(self, unit: int) -> bool:
        """Whether a unit's inputs wait on the host for its backward passes."""
        return self.activations == "stash" and unit > 0 and unit in self.treated

    def checkpoints(self, unit: int) -> bool:
        """Whether a unit's backward pass begins at a checkpoint."""
        return self.activations == "checkpoint" and unit in self.treated

    # -- recordings -----------------------------------------------------------------------------

    @property
    def recordable(self) -> bool:
        """Whether passes of blocks can be recordings, of which there is one for a place in memory:
        each backward pass begins at a checkpoint, or a position keeps activations of one
        micro-batch at a time."""
        if self.places or I in self.kinds:
            return False
        if self.activations == "checkpoint":
            return True
        kept = (own for own in self.passes if all(each.kind is not R for each in own))
        return not self.alone and all(in_flight(own) == 1 and not own[-1].chunk for own in kept)

    @property
    def alone(self) -> bool:
        """Whether the backward pass of each block has its recomputation with it."""
        return self.activations != "keep" and R not in self.kinds

    def replays(self, unit: int) -> bool:
        """Whether a unit's passes are recordings, which work in memory of their own."""
        return self.replay and 0 < unit < self.head

    def chained(self, unit: int) -> bool:
        """Whether a unit's passes and those of the unit behind it, in its stage, are recordings of
        one chain: nothing between the two leaves the memory of the recordings."""
        within = self.replays(unit) and self.replays(unit + 1)
        return within and not self.alone and unit + 1 not in self.starts


def as_recorded(line: Pipeline, sizes: Sizes, units: int, below_s: float) -> Pipeline:
    """The pipeline with recordings, where it can have them and the longest forward pass of a block
    takes less than so many seconds: it may take longer to launch than to run."""
    short = longest_forward_s(sizes, units, line.micro_size) < below_s
    seen = line.activations != "checkpoint" or all(
        sizes.cost(unit, line.micro_size).variant(RECORDED_CHECKPOINT)
        for unit in range(1, units - 1)
    )
    return replace(line, replay=short and seen and line.recordable)
