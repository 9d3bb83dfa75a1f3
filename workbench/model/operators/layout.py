"""Where the pieces of a tensor lie on the devices of a stage.

An operator runs on tp x dp devices. A tensor between operators is split over the dp rows of
devices along `batch`, one of its dimensions, and, over the tp devices of a row, either along
`shard`, or not at all: then it has tp replicas. Aceso (EuroSys'24) writes a layout as replicas R,
partial values V and factors of three dimensions; `factors` gives them.

    >>> Layout(batch=1, shard=2).factors(tp=4, dp=2)
    Factors(replicas=1, partial=1, split=(1, 2, 4))
    >>> Layout(batch=0).factors(tp=4, dp=2)
    Factors(replicas=4, partial=1, split=(2, 1, 1))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Factors(NamedTuple):
    """A layout with its numbers: R replicas, V partial values, pieces of each dimension."""

    replicas: int
    partial: int
    split: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """Dimensions of a tensor along which rows of devices, and devices of a row, hold pieces."""

    batch: int
    """Dimension that the dp rows of devices split: it holds the samples."""
    shard: int | None = None
    """Dimension that the tp devices of a row split; None: each holds a replica."""

    def factors(self, tp: int, dp: int) -> Factors:
        """Numbers of replicas and pieces on tp x dp devices."""
        split = [1, 1, 1]
        split[self.batch] = dp
        if self.shard is not None:
            split[self.shard] = tp
        return Factors(tp if self.shard is None else 1, 1, tuple(split))


WHOLE = Layout(1)
"""[sequence, samples, hidden], which each device of a row has whole."""
SHARDED = Layout(1, 2)
"""[sequence, samples, hidden], whose hidden dimension a row of devices shares."""
SCORES = Layout(0, 1)
"""[samples, heads, ...], whose heads a row of devices shares."""
SAMPLES = Layout(0)
"""[samples, ...], which each device of a row has whole."""
