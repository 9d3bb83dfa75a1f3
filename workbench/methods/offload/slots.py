"""Slots: memory that things of one kind take in turn, and what must be gone before each comes.

Each function returns the name of a slot and the actions after which it is free. Streamed unit k has
weight slot k mod slots: the loads run ahead of compute by slots - 1 units in both directions, and
the last `slots` units stay from forward to backward pass.
"""

from __future__ import annotations

from workbench.methods.offload.step_builder import LayerStepBuilder
from workbench.schedule.action import GUESS, VERDICT, Kind
from workbench.schedule.action import format_name as act

F, B = Kind.FORWARD, Kind.BACKWARD
Slot = tuple[str, list[str]]


def weights(builder: LayerStepBuilder, unit: int, turn: int) -> Slot:
    """The slot of a unit's weights in the forward (0) or backward (1) pass: one of the slots of
    streamed units, or its own."""
    if unit in builder.hosted:
        return f"weights end {unit}", [act(B, unit, builder.last_micro, step=-1)]
    count, k, streamed = builder.placement.slots, builder.index[unit], builder.streamed
    if turn == 1:
        before = act(B, streamed[k + count], builder.last_micro)
    elif k >= count:
        before = act(F, streamed[k - count], builder.last_micro)
    else:  # the unit that held the slot last in the step before is this one itself
        before = act(B, unit, builder.last_micro, step=-1)
    return f"weights {k % count}", [before]


def gradients(builder: LayerStepBuilder, unit: int) -> Slot:
    """The slot of a streamed unit's gradients on the device, once the unit that had it has left for
    the host."""
    count = builder.placement.gradient_slots
    return _from_the_last(builder, unit, count, "gradients", Kind.GRAD_OUT)


def host_gradients(builder: LayerStepBuilder, unit: int) -> Slot:
    """The slot of a unit's gradients on the host; one each where they are not shared."""
    free = [act(Kind.MOMENTS, unit, step=-1)] if unit in builder.placement.moments_later else []
    if unit in builder.hosted:
        return f"host gradients end {unit}", free
    if count := builder.placement.host_gradient_slots:
        return _from_the_last(builder, unit, count, "host gradients", Kind.UPDATE)
    return f"host gradients {builder.index[unit]}", free


def _from_the_last(
    builder: LayerStepBuilder, unit: int, count: int, what: str, leaving: Kind
) -> Slot:
    """One of `count` slots that streamed units take from the last to the first."""
    k, streamed = builder.index[unit], builder.streamed
    if k + count < len(streamed):
        before = act(leaving, streamed[k + count])
    else:
        before = act(leaving, streamed[k % count], step=-1)
    return f"{what} {k % count}", [before]


def fetched(builder: LayerStepBuilder, unit: int, micro: int) -> Slot:
    """The slot of a stashed input that comes back, a whole unit ahead of compute."""
    count = len(builder.micros)
    later = range(unit + 2, builder.head, 2)
    before = next((other for other in later if builder.stashed(other)), None)
    after = [] if before is None else [act(B, before, micro)]
    return f"fetched {(unit * count + micro) % (2 * count)}", after


def before_input(builder: LayerStepBuilder, unit: int, micro: int) -> list[str]:
    """Actions before a unit's input is made: of stashed inputs few exist at once, so that depth
    costs nothing."""
    count = len(builder.micros)
    earlier, number = divmod(unit * count + micro - (2 * count + 1), count)
    waits = builder.stashed(unit) and earlier >= 1 and builder.stashed(earlier)
    return [act(Kind.STASH, earlier, number)] if waits else []


def staging(builder: LayerStepBuilder, unit: int) -> Slot:
    """The slot of states from the disk, in the order of the updates: eager ones from the last unit
    to the first, then the others from the first to the last."""
    on_disk = sorted(builder.placement.on_disk)
    early = [u for u in reversed(on_disk) if builder.eager(u)]
    order = [(u, 0) for u in early + [u for u in on_disk if not builder.eager(u)]]
    count = builder.placement.staging_slots
    return _in_order((unit, 0), order, count, "staging", Kind.SPILL)


def states(builder: LayerStepBuilder, unit: int, turn: int) -> Slot:
    """The slot of states that visit the device, in the order of the updates."""
    pulled = builder.pulled
    order = [(u, VERDICT if builder.settled(u) else 0) for u in pulled]
    order = [(u, GUESS) for u in reversed(pulled) if builder.settled(u)] + order
    count = builder.placement.state_slots
    return _in_order((unit, turn), order, count, "states", Kind.PUSH)


def _in_order(
    visit: tuple[int, int], order: list[tuple[int, int]], count: int, what: str, leaving: Kind
) -> Slot:
    """One of `count` slots that visits (unit, turn) take in their order. A visit waits for the way
    back of its own states from their last visit, and of the states that had the slot last."""
    place, unit = order.index(visit), visit[0]
    own = max(other for other in order if other[0] == unit)
    after = [act(leaving, unit, turn=own[1], step=-1)]
    if place >= count:
        before, step = order[place - count], 0
    else:
        before, step = order[place + (len(order) - 1 - place) // count * count], -1
    after.append(act(leaving, before[0], turn=before[1], step=step))
    return f"{what} {place % count}", after
