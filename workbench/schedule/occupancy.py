"""Buffers are where actions expect them: occupied while used, free when taken, one in a slot."""

from __future__ import annotations

from collections import defaultdict

from workbench.schedule.action import Action
from workbench.schedule.graph import ScheduleError
from workbench.schedule.proof import Proof
from workbench.schedule.schedule import DEVICE, Schedule


def check_buffers(proof: Proof) -> None:
    """Raises ScheduleError naming the action and the buffer at fault."""
    schedule = proof.schedule
    takes, frees = _ends(schedule)
    for name, taken in takes.items():
        freed = frees[name]
        if taken != freed:
            proof.require(taken, freed, f"it frees buffer {name!r}")
        proof.require(freed, taken, f"it takes buffer {name!r}", next_step=True)
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
            proof.require(frees[name], takes[following], why)
        proof.require(frees[names[-1]], takes[names[0]], why, next_step=True)


def _check_side_by_side(
    proof: Proof, names: list[str], takes: dict[str, int], frees: dict[str, int], why: str
) -> None:
    """The same of buffers with places in a slot, each against those it overlaps."""
    ends = {
        name: (buffer.offset, buffer.offset + buffer.nbytes)
        for name in names
        for buffer in [proof.schedule.buffers[name]]
    }
    for place, name in enumerate(names):
        first, end = ends[name]
        for following in names[place + 1 :]:
            if first < ends[following][1] and ends[following][0] < end:
                proof.require(frees[name], takes[following], why)
                proof.require(frees[following], takes[name], why, next_step=True)
