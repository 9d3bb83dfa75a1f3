"""Receive buffers of a rank, taken in turn by the messages that it receives in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

from workbench.schedule.action import H2D, NET_IN, NET_OUT
from workbench.schedule.build.builder import ScheduleBuilder
from workbench.schedule.build.ring import aligned

AHEAD = 2
"""Inputs of so many micro-batches are on a device: the one in work and the next."""
PLACES = 4
"""Messages of so many micro-batches may be on a device. To tell the sender that a place is free and
to learn that it is filled takes hosts a tenth of a millisecond, and an input that goes to the host
leaves its place only when it is there: as long as two or three short passes."""
FETCHES = H2D + ".1"
"""Lane of inputs that come back from the host, beside the weights of later units."""
RETURNS = NET_OUT + ".1"
"""Lane of gradients to other ranks, beside outputs: not behind those that their receiver has no
place for yet."""
INBOX = "inbox"
"""Slot of the buffers that messages of other ranks come into."""


def held(lane: str) -> int:
    """How many buffers that are filled on a lane a device holds at once."""
    return PLACES if lane == NET_IN else AHEAD


def lay_inbox(builder: ScheduleBuilder, received: Sequence[int], freed_by: Sequence[str]) -> None:
    """Give a rank's messages their places, in turn: the first messages of a step wait for the last
    ones of the step before. `received` are indices of the rank's receiving actions among all
    actions, `freed_by` the actions that free each of them."""
    actions, buffers = builder.actions, builder.buffers
    size = max((aligned(actions[index].nbytes) for index in received), default=0)
    for number, index in enumerate(received):
        (label,) = actions[index].takes
        buffers[label] = replace(buffers[label], offset=number % PLACES * size)
        if number < PLACES:
            last = max(n for n in range(len(received)) if n % PLACES == number)
            after = (*actions[index].after, f"{freed_by[last]}@-1")
            actions[index] = replace(actions[index], after=after)


def taken_from(
    used: Sequence[int], freed: Sequence[int], ahead: int, most: int | None = None
) -> list[int]:
    """Whose place each message takes: the number of a message before it, or -1 for a new place.

    `used` are the numbers of the passes that need the messages, in their order, `freed` those that
    read them last. A message comes `ahead` passes before it is needed; who is gone by then leaves
    its place. Once there are `most` places, it may come as late as right before that pass.

    >>> taken_from([0, 1, 2, 6], [3, 5, 7, 9], ahead=2)
    [-1, -1, -1, 0]
    >>> taken_from([0, 1, 2, 6], [0, 1, 2, 6], ahead=2, most=2)
    [-1, -1, 0, 1]
    """
    found: list[int] = []
    free: list[tuple[int, int]] = []
    for number, (first, last) in enumerate(zip(used, freed, strict=True)):
        late = most is not None and len(free) >= most
        gone = free and free[0][0] < first - (0 if late else ahead)
        found.append(heappop(free)[1] if gone else -1)
        heappush(free, (last, number))
    return found
