"""How a step is divided: samples and gradients among ranks, samples into micro-batches, units into
packs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise

DP, PP = "dp", "pp"
"""Ranks divide the samples of a step, or the units of the model."""
MODES = (DP, PP)
SHARE_ALIGNMENT = 64
"""Bytes that a share of gradients is a multiple of: whole elements of any type."""
Samples = tuple[int, int]
"""First sample, and the one after the last."""


def even_share(samples: int, rank: int, ranks: int) -> Samples:
    """A rank's part of so many samples; the first ranks get what does not divide.

    >>> [even_share(5, rank, 2) for rank in range(2)]
    [(0, 3), (3, 5)]
    """
    each, more = divmod(samples, ranks)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


def micro_span(samples: int, micro: int, micros: int) -> Samples:
    """One of so many micro-batches of a replica's samples, which differ by at most one sample. An
    empty one, of micro-batches of one sample, repeats the last, and counts for nothing.

    >>> [micro_span(5, micro, 3) for micro in range(3)], micro_span(2, 2, 3)
    ([(0, 2), (2, 4), (4, 5)], (1, 2))
    """
    first, end = even_share(samples, micro, micros)
    return (first, end) if first < end else (samples - 1, samples)


def divide(span: Samples, size: int) -> list[Samples]:
    """Micro-batches of a size; the last one may be smaller.

    >>> divide((4, 9), 2)
    [(4, 6), (6, 8), (8, 9)]
    """
    first, end = span
    return [(at, min(at + size, end)) for at in range(first, end, size)]


def micro_batches(batch: int, parts: int, *, least: int = 1, most: int | None = None) -> list[int]:
    """Sizes worth trying where each of so many parts of a batch is divided into micro-batches:
    powers of two up to the largest part, or to `most`, and that one. A model that needs at least so
    many samples has them in every micro-batch, also the last; raises ValueError where it cannot."""
    shares = {batch // parts, -(-batch // parts)}
    end = min(max(shares), most or batch)

    def enough(size: int) -> bool:
        return size >= least and all(n % size == 0 or n % size >= least for n in shares)

    powers = sorted({min(1 << k, end) for k in range(end.bit_length() + 1)})
    found = [*filter(enough, powers)] or [*filter(enough, range(least, end + 1))]
    if not found:
        raise ValueError(
            f"the model needs micro-batches of at least {least} samples; {batch} samples in "
            f"{parts} parts, at most {end} at once, do not give them: use another batch"
        )
    return found


def packs_of(sizes: Iterable[int]) -> tuple[range, ...]:
    """Packs of so many consecutive units, from the first one.

    >>> packs_of([2, 1])
    (range(0, 2), range(2, 3))
    """
    return tuple(range(a, b) for a, b in pairwise(accumulate(sizes, initial=0)))


def share_bytes(nbytes: int, ranks: int) -> int:
    """Bytes of one rank's share of some gradients; the last share may end in padding."""
    return -(-nbytes // (SHARE_ALIGNMENT * ranks)) * SHARE_ALIGNMENT
