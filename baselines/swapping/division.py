"""Who runs what, in which order, when devices swap: plain data parallelism, or a 1F1B pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from baselines.swapping.places import Places, Visit
from workbench.schedule.build.division import DP, MODES, PP, Samples, divide, even_share


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One micro-batch through all layers of a rank, forward or backward."""

    forward: bool
    micro: int


@dataclass(frozen=True, kw_only=True)
class Division:
    """What each rank has to do in a step."""

    mode: str
    """``dp`` or ``pp``."""
    minibatch: int
    """Samples of a step, over all ranks."""
    size: int
    """Samples of a micro-batch; the last one may be smaller."""
    stages: tuple[range, ...]
    """The units of each rank; in DP mode all ranks have all."""
    own: tuple[int, ...]
    """How many units of each rank have a place of their own on its device."""
    shared: int = 2
    """Places for all others of a rank."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is unknown; modes are {', '.join(MODES)}")
        if self.minibatch < (self.ranks if self.mode == DP else 1) or self.size < 1:
            raise ValueError(
                f"a minibatch of {self.minibatch} samples in micro-batches of {self.size} leaves "
                f"some of {self.ranks} ranks without any"
            )
        begins = [stage.start for stage in self.stages]
        ends = [0, *(stage.stop for stage in self.stages[:-1])]
        if self.mode == PP and (begins != ends or not all(self.stages)):
            raise ValueError(f"stages {self.stages} must follow one another and not be empty")

    @property
    def ranks(self) -> int:
        return len(self.stages)

    @property
    def num_units(self) -> int:
        return self.stages[-1].stop

    @property
    def head(self) -> int:
        return self.num_units - 1

    def share(self, rank: int) -> Samples:
        """The samples that pass a rank: in DP mode the first ranks get what does not divide."""
        if self.mode == PP:
            return 0, self.minibatch
        return even_share(self.minibatch, rank, self.ranks)

    def micros(self, rank: int) -> list[Samples]:
        """A rank's micro-batches."""
        return divide(self.share(rank), self.size)

    def passes(self, rank: int) -> list[Pass]:
        """In DP mode forward and backward in turn; in PP mode as many forward passes first as
        there are stages after this one (1F1B)."""
        count = len(self.micros(rank))
        ahead = 1 if self.mode == DP else min(count, self.ranks - rank)
        order = [Pass(forward=True, micro=micro) for micro in range(ahead)]
        for micro in range(count):
            order.append(Pass(forward=False, micro=micro))
            if micro + ahead < count:
                order.append(Pass(forward=True, micro=micro + ahead))
        return order

    def units_of(self, rank: int, each: Pass) -> range:
        """The units of a pass in its order. The head's forward pass is part of its backward one."""
        stage = self.stages[rank]
        if not each.forward:
            return stage[::-1]
        return range(stage.start, min(stage.stop, self.head))

    def places(self, rank: int) -> Places:
        """Where a rank's units lie."""
        return Places(units=self.stages[rank], own=self.own[rank], shared=self.shared)


class Visits:
    """When the weights of a rank's layers, and their gradients, are on its device."""

    def __init__(self, division: Division, rank: int) -> None:
        places, passes = division.places(rank), division.passes(rank)
        uses = [(n, unit) for n, p in enumerate(passes) for unit in division.units_of(rank, p)]
        self._weights = places.visits(uses)
        backward = [use for use in uses if not passes[use[0]].forward]
        self._gradients = places.visits(backward)
        self._last = {use[1]: use for use in backward}

    def weights(self, use: tuple[int, int]) -> Visit:
        """The visit of weights that serves (a pass, a unit)."""
        return self._weights[use]

    def gradients(self, use: tuple[int, int]) -> Visit:
        """The visit of gradients that serves it."""
        return self._gradients[use]

    def complete(self, visit: Visit) -> bool:
        """Whether a unit's gradients are complete when this visit of them ends."""
        return self._last[visit.unit] == visit.last
