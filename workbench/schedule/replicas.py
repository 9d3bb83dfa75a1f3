"""Weights that several ranks have stay equal: all copies are updated, by the sum of all gradients.

A rank that loads a unit has the host's copy, which one rank updates or each its share. Any other
rank that computes it has a copy of its own, and updates that itself. Where the schedule has
replicas, every process has copies like that, and a sum over a rank is one over its processes; and
all of them walk the lanes at once, so that each needs host memory of its own to write to.
"""

from __future__ import annotations

from collections import defaultdict

from workbench.schedule.action import COMPUTE, D2H, HOST, VISIT, Kind, lane_kind
from workbench.schedule.buffers import gradients, on_rank, weights
from workbench.schedule.graph import ScheduleError
from workbench.schedule.passes import COMPUTING, Passes
from workbench.schedule.proof import Proof
from workbench.schedule.schedule import DEVICE, HOST_TIER, Schedule

ON_DEVICE = (COMPUTE, VISIT)


def check_apart(schedule: Schedule) -> None:
    """Replicas write to parts of their own of the host's memory, which is one for all of them."""
    for action in schedule.actions:
        if lane_kind(action.lane) not in (D2H, HOST) or schedule.replicas == 1:
            continue
        for label in (*action.takes, *action.uses, *action.frees):
            buffer = schedule.buffers.get(label)
            if buffer and buffer.tier == HOST_TIER and buffer.parts != schedule.replicas:
                raise ScheduleError(
                    f"{action.name} writes to {label!r}, which {schedule.replicas} replicas share "
                    f"in {buffer.parts} parts: each needs its own, or it overwrites the others'"
                )


def check_copies(proof: Proof) -> None:
    """Every copy of weights is updated: one that a device keeps by an update there, the host's with
    all gradients that ranks bring there."""
    schedule, buffers = proof.schedule, proof.schedule.buffers
    for unit in range(schedule.num_units):
        of = {
            kind: [schedule.actions[i] for i in proof.find(kind, unit)]
            for kind in (*COMPUTING, Kind.LOAD, Kind.UPDATE, Kind.GRAD_OUT)
        }
        kept = {
            rank
            for rank in range(schedule.num_ranks)
            if (there := buffers.get(on_rank(rank, weights(unit))))
            and (there.tier, there.permanent) == (DEVICE, True)
        }
        updated = {a.rank for a in of[Kind.UPDATE]}
        on_device = {a.rank for a in of[Kind.UPDATE] if lane_kind(a.lane) in ON_DEVICE}
        computed = {a.rank for kind in COMPUTING for a in of[kind]}
        loaded = {a.rank for a in of[Kind.LOAD]}
        if updated and (stale := (kept - on_device) | (computed - loaded - updated)):
            raise ScheduleError(
                f"rank {min(stale)} keeps a copy of the weights of unit {unit}, which no update of "
                "that rank changes"
            )
        used = {label for a in of[Kind.UPDATE] for label in (*a.takes, *a.uses, *a.frees)}
        for a in of[Kind.GRAD_OUT] if updated and not on_device else ():
            for label in {*a.takes, *a.uses} - used:
                if label in buffers and buffers[label].tier == HOST_TIER:
                    raise ScheduleError(
                        f"{a.name} brings gradients to {label!r}, which no update of them uses"
                    )


def check_reduced(proof: Proof, passes: Passes) -> None:
    """Gradients that several ranks, or replicas, have a part of leave a device, update anything, or
    enter the norm after all of them have been added up, whole."""
    actions = proof.schedule.actions
    norms = [i for i, action in enumerate(actions) if action.kind is Kind.NORM]
    for unit in range(proof.schedule.num_units):
        parts = passes.weight_gradients(unit)
        ranks = {actions[i].rank for i in parts}
        if len(ranks) < 2 and proof.schedule.replicas == 1:
            continue
        sums = _sums(proof, unit, ranks)
        for i in sums:
            for part in parts:
                proof.require(part, i, "it adds up gradients that may be incomplete")
        for reader in [*proof.find(Kind.GRAD_OUT, unit), *proof.find(Kind.UPDATE, unit), *norms]:
            action, own = actions[reader], sums  # on the host are those of all ranks
            if action.kind is Kind.GRAD_OUT or lane_kind(action.lane) in ON_DEVICE:
                own = [i for i in sums if actions[i].rank == action.rank]
            if not any(proof.before(i, reader) for i in own):
                others = [proof.name(i) for i in proof.find(Kind.REDUCE, unit) if i not in sums]
                why = f" ({others[0]} is no sum of all of them)" if others else ""
                raise ScheduleError(
                    f"{action.name} may start before the gradients of all ranks are added up{why}"
                )


def _sums(proof: Proof, unit: int, ranks: set[int]) -> list[int]:
    """The actions that add up a unit's gradients, all bytes of their buffer, over these ranks."""
    actions, buffers = proof.schedule.actions, proof.schedule.buffers
    groups: dict[tuple, list[int]] = defaultdict(list)
    for i in proof.find(Kind.REDUCE, unit):
        action = actions[i]
        for label in {*action.takes, *action.uses, *action.frees} & buffers.keys():
            what = label.rpartition(":")[2].partition("+")[0]
            if what == gradients(unit) and buffers[label].nbytes == action.nbytes:
                groups[action.meeting].append(i)
    return [
        i for those in groups.values() if {actions[i].rank for i in those} >= ranks for i in those
    ]
