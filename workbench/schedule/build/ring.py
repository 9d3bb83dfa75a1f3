"""Places for buffers of many sizes in one piece of memory, decided before anything runs.

Weights come and go in the order of a rank's tasks, so a ring serves: each buffer lies behind the
last one, and where a pack does not fit before the end it begins at the start again. Before a buffer
is filled, those that overlap it must be free, and that is what it waits for. Published Harmony
allocates and deletes instead, a fixed 40 ms a task; places that are known beforehand cost nothing,
and their bytes can be proved.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

ALIGNMENT = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class RingPlace:
    """Where a buffer lies, and which ones must be free before it is filled."""

    offset: int
    """Bytes from the start."""
    behind: tuple[tuple[int, int], ...]
    """(step, buffer): 0 for this step's, -1 for those of the step before."""


def aligned(nbytes: int) -> int:
    """Bytes rounded up, so that every place begins where all element types may."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def ring(groups: list[list[int]], capacity: int) -> list[RingPlace]:
    """Places for buffers that are filled in this order in every step, those of a group next to each
    other. Numbers are bytes.

    Raises ValueError for a group that is larger than the ring.

    >>> places = ring([[512, 1024], [512]], 1536)
    >>> [place.offset for place in places], places[2].behind
    ([0, 512, 0], ((0, 0),))
    """
    sizes, offsets, at = [nbytes for group in groups for nbytes in group], [], 0
    for group in groups:
        total = sum(map(aligned, group))
        if total > capacity:
            raise ValueError(f"{total} bytes that are needed at once do not fit into {capacity}")
        if at + total > capacity:
            at = 0
        for nbytes in group:
            offsets.append(at)
            at += aligned(nbytes)
    starts: list[int] = []  # of those that lie in the ring, none over another, by their places
    there: list[tuple[int, int]] = []  # (step, buffer) of each of them
    places: list[RingPlace] = []
    for step in (-1, 0):
        for buffer, (offset, nbytes) in enumerate(zip(offsets, sizes, strict=True)):
            behind: list[tuple[int, int]] = []
            if nbytes:
                end = offset + aligned(nbytes)
                first, last = bisect_right(starts, offset), bisect_left(starts, end)
                if first and offset < starts[first - 1] + aligned(sizes[there[first - 1][1]]):
                    first -= 1
                behind = sorted(there[first:last])
                starts[first:last], there[first:last] = [offset], [(step, buffer)]
            if step == 0:
                places.append(RingPlace(offset=offset, behind=tuple(behind)))
    return places
