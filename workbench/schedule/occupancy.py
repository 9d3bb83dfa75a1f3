"""Buffers are where actions expect them: occupied while used, free when taken, one in a slot."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import itemgetter

from workbench.schedule.action import RECEIVES, Action
from workbench.schedule.graph import ScheduleError
from workbench.schedule.proof import Proof
from workbench.schedule.schedule import DEVICE, Buffer, Schedule


def check_buffers(proof: Proof) -> None:
    """Raises ScheduleError naming the action and the buffer at fault."""
    schedule = proof.schedule
    takes, frees = _ends(schedule)
    for name, taken in takes.items():
        freed = frees[name]
        if taken != freed:
            proof.require(taken, freed, f"it frees buffer {name!r}")
        copies = schedule.buffers[name].copies
        proof.require(freed, taken, f"it takes buffer {name!r}", steps=copies)
        if schedule.buffers[name].slot is not None and schedule.actions[freed].lag:
            raise ScheduleError(
                f"{schedule.actions[freed].name} frees {name!r} of an earlier step, in a slot"
            )
    for i, action in enumerate(schedule.actions):
        for name in action.uses:
            if _buffer(schedule, action, name).permanent:
                continue
            if name not in takes:
                raise ScheduleError(f"{action.name} uses buffer {name!r}, which nobody takes")
            if takes[name] != i:
                proof.require(takes[name], i, f"it uses buffer {name!r}")
            if frees[name] != i:
                proof.require(i, frees[name], f"it frees buffer {name!r} in use")
    _check_slots(proof, takes, frees)


def _buffer(schedule: Schedule, action: Action, name: str):
    """The buffer an action refers to."""
    buffer = schedule.buffers.get(name)
    if buffer is None:
        raise ScheduleError(f"{action.name} refers to buffer {name!r}, which is not declared")
    if buffer.tier == DEVICE and buffer.rank != action.rank:
        raise ScheduleError(
            f"{action.name} on rank {action.rank} refers to buffer {name!r} "
            f"on the device of rank {buffer.rank}"
        )
    return buffer


def _ends(schedule: Schedule) -> tuple[dict[str, int], dict[str, int]]:
    """Buffer -> the action that takes it, and the one that frees it."""
    takes: dict[str, int] = {}
    frees: dict[str, int] = {}
    for i, action in enumerate(schedule.actions):
        for names, table, verb in ((action.takes, takes, "takes"), (action.frees, frees, "frees")):
            for name in names:
                if _buffer(schedule, action, name).permanent:
                    raise ScheduleError(f"{action.name} {verb} {name!r}, a permanent buffer")
                if name in table:
                    raise ScheduleError(
                        f"{action.name} {verb} buffer {name!r}, "
                        f"as {schedule.actions[table[name]].name} does in the same step"
                    )
                table[name] = i
    for name in [*takes, *frees]:
        if name not in frees:
            raise ScheduleError(
                f"{schedule.actions[takes[name]].name} takes buffer {name!r}, which nobody frees"
            )
        if name not in takes:
            raise ScheduleError(
                f"{schedule.actions[frees[name]].name} frees buffer {name!r}, which nobody takes"
            )
    return takes, frees


def _check_slots(proof: Proof, takes: dict[str, int], frees: dict[str, int]) -> None:
    """Buffers of one slot whose bytes overlap follow one another, within a step and from step to
    step.

    Where all begin together, neighbours in one possible order suffice: what is surely before a
    neighbour is before all later ones.
    """
    rank_of = {node: place for place, node in enumerate(proof.order.topological)}
    users: dict[tuple, list[str]] = defaultdict(list)
    for name in takes:
        buffer = proof.schedule.buffers[name]
        if buffer.slot is not None and buffer.nbytes:
            users[buffer.tier, buffer.rank, buffer.slot].append(name)
    for (_, _, slot), names in users.items():
        names.sort(key=lambda name: rank_of[takes[name]])
        why = f"both use slot {slot!r}"
        if any(proof.schedule.buffers[name].offset for name in names):
            _check_side_by_side(proof, names, takes, frees, why)
            continue
        for name, following in zip(names, names[1:], strict=False):
            _require_free(proof, frees[name], takes[following], why)
        _require_free(proof, frees[names[-1]], takes[names[0]], why, steps=1)


def _check_side_by_side(
    proof: Proof, names: list[str], takes: dict[str, int], frees: dict[str, int], why: str
) -> None:
    """Check buffers with places in a slot, each against those it overlaps.

    The users of one byte follow one another, so that each is asked for against those that had its
    bytes last, and in the next step the first of a byte against the last of it.
    """
    last: list[_Piece] = []
    for name in names:
        for before in _lay(last, proof.schedule.buffers[name], name):
            _require_free(proof, frees[before], takes[name], why)
    first: list[_Piece] = []
    for name in reversed(names):
        _lay(first, proof.schedule.buffers[name], name)
    for start, end, name in last:
        for *_, following in _under(first, start, end)[1]:
            _require_free(proof, frees[name], takes[following], why, steps=1)


def _require_free(proof: Proof, freed: int, taken: int, why: str, *, steps: int = 0) -> None:
    """Require that a place is free before the next buffer takes it. A message may come before its
    RECV begins, once all has ended that the RECV itself waits for: it does not wait for the
    messages before."""
    proof.require(freed, taken, why, steps=steps)
    receive, since = proof.schedule.actions[taken], -steps
    if receive.kind in RECEIVES and not any(
        (back, last) == (since, freed)
        or (back >= since and proof.before(freed, last, steps=int(back > since)))
        for back, last in proof.waits(receive)
    ):
        step = " of the step before" if steps else ""
        raise ScheduleError(
            f"{receive.name} must itself wait for {proof.name(freed)}{step}, which frees its place:"
            f" its sender does not wait for the messages before ({why})"
        )


_Piece = tuple[int, int, str]
"""From one byte of a slot up to another, and the buffer that has them. Pieces lie in order and do
not overlap."""


def _lay(pieces: list[_Piece], buffer: Buffer, name: str) -> list[str]:
    """Give a buffer its bytes; returns who had any of them."""
    start, end = buffer.offset, buffer.offset + buffer.nbytes
    place, under = _under(pieces, start, end)
    left = [(first, start, other) for first, _, other in under[:1] if first < start]
    right = [(end, stop, other) for _, stop, other in under[-1:] if stop > end]
    pieces[place] = [*left, (start, end, name), *right]
    return [other for *_, other in under]


def _under(pieces: list[_Piece], start: int, end: int) -> tuple[slice, list[_Piece]]:
    """Where pieces have bytes from `start` to `end`, and which those are."""
    low = bisect_right(pieces, start, key=itemgetter(1))
    high = bisect_left(pieces, end, low, key=itemgetter(0))
    return slice(low, high), pieces[low:high]
