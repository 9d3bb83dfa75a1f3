"""Where the pieces of tensors lie on the processes of a stage, and which of them travel where.

An operator runs on tp x dp processes of its stage (Aceso, EuroSys'24): process p is column p % tp
of row p // tp. A tensor between operators is split over the rows along its samples, and over the
columns of a row along a dimension `shard`, or not at all: then each column has a replica, or, where
it is `partial`, a term of the sum. So a process holds a box of the whole tensor, and whoever needs
another box gets it from the boxes that overlap: each element once, and where several have it, from
itself, or from them in turn. Splits that leave a rest are as good as others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from workbench.core.division import Samples, even_share

Shape = tuple[int, ...]
Box = tuple[Samples, ...]
"""First index, and the one after the last, of each dimension."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A tensor on the processes of a stage, its samples along dimension `dim`.

    >>> Spread(tp=2, dp=1, shard=1).box((4, 6), 1)
    ((0, 4), (3, 6))
    >>> Spread(tp=1, dp=2, dim=1, rows=5).box((4, 15), 0)
    ((0, 4), (0, 10))
    """

    tp: int
    dp: int
    shard: int | None = None
    """Dimension that the columns split; None where each holds all that its row has."""
    partial: bool = False
    """Whether columns hold terms of a sum."""
    dim: int | None = 0
    """Dimension of the samples; None for a tensor that each row has whole."""
    rows: int = 1
    """Entries of that dimension per sample."""

    @property
    def processes(self) -> int:
        """Number of the stage's processes."""
        return self.tp * self.dp

    def box(self, shape: Shape, process: int) -> Box:
        """The part of a tensor of a shape that one process holds."""
        found = [(0, size) for size in shape]
        if self.dim is not None:
            share = even_share(shape[self.dim] // self.rows, process // self.tp, self.dp)
            found[self.dim] = share[0] * self.rows, share[1] * self.rows
        if self.shard is not None:
            found[self.shard] = even_share(shape[self.shard], process % self.tp, self.tp)
        return tuple(found)

    def once(self, dimensions: int) -> Spread:
        """The spread of a tensor of so many dimensions on the wire, each element once: columns that
        have replicas take a share of the last dimension each."""
        return self if self.shard is not None else Spread(self.tp, self.dp, dimensions - 1)


class Move(NamedTuple):
    """A piece that one process gives to another, or to itself."""

    source: int
    target: int
    box: Box


Boxes = Sequence[Box | None]
"""Of each process what it holds or needs; None for nothing."""


def moves(have: Boxes, need: Boxes, *, partial: bool = False) -> list[Move]:
    """All pieces that make of what processes have what they need. With `partial` every process that
    has a box gives its term."""
    holders: dict[Box, list[int]] = {}
    for process, box in enumerate(have):
        if box is not None:
            holders.setdefault(box, []).append(process)
    found = []
    for target, wanted in enumerate(need):
        for box, those in holders.items():
            piece = None if wanted is None else overlap(box, wanted)
            if piece is None:
                continue
            if not partial:
                those = [target if target in those else those[target % len(those)]]
            found += [Move(source, target, piece) for source in those]
    return found


def overlap(one: Box, other: Box) -> Box | None:
    """The part that two boxes have in common; None for nothing."""
    pairs = zip(one, other, strict=True)
    found = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in pairs)
    return found if all(first < end for first, end in found) else None


@lru_cache(maxsize=4096)
def resharding(have: Spread, need: Spread, shape: Shape) -> tuple[Move, ...]:
    """Pieces that travel inside a stage where an operator needs another spread of a tensor than the
    one before it made."""
    boxes = [[each.box(shape, p) for p in range(each.processes)] for each in (have, need)]
    return tuple(moves(*boxes, partial=have.partial))


def sizes(box: Box) -> Shape:
    """Shape of a box."""
    return tuple(end - first for first, end in box)


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Indices of a box in the tensor that holds `outer`."""
    pairs = zip(box, outer, strict=True)
    return tuple(slice(first - at, end - at) for (first, end), (at, _) in pairs)
