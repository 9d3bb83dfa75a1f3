"""Weights that several ranks have stay equal: all copies are updated, by the sum of all gradients.

A rank that loads a unit has the host's copy, which one rank updates or each its share. Any other
rank that computes it has a copy of its own, and updates that itself.
"""

from __future__ import annotations

from workbench.schedule import buffers
from workbench.schedule.action import COMPUTE, VISIT, Action, Kind, lane_kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.passes import COMPUTING, Passes
from workbench.schedule.proof import Proof
from workbench.schedule.schedule import DEVICE, HOST_TIER


def check_copies(proof: Proof) -> None:
    """Every copy of weights is updated: what a device keeps by a device update of its rank, the
    host's with all gradients that ranks bring there."""
    schedule, actions = proof.schedule, proof.schedule.actions
    for unit in range(schedule.num_units):
        updates = [actions[i] for i in proof.find(Kind.UPDATE, unit)]
        on_device = {a.rank for a in updates if lane_kind(a.lane) in (COMPUTE, VISIT)}
        loaded = {actions[i].rank for i in proof.find(Kind.LOAD, unit)}
        computed = {actions[i].rank for kind in COMPUTING for i in proof.find(kind, unit)}
        kept = {rank for rank in range(schedule.num_ranks) if _keeps(proof, unit, rank)}
        own = {a.rank for a in updates}
        for rank in sorted((kept - on_device) | (computed - loaded - own)):
            raise ScheduleError(
                f"rank {rank} keeps a copy of the weights of unit {unit}, which no update of that "
                "rank changes"
            )
        read = {label for a in updates for label in (*a.takes, *a.uses, *a.frees)}
        for i in () if on_device else proof.find(Kind.GRAD_OUT, unit):
            for label in (*actions[i].takes, *actions[i].uses):
                there = schedule.buffers.get(label)
                if there is not None and there.tier == HOST_TIER and label not in read:
                    raise ScheduleError(
                        f"{actions[i].name} brings gradients to {label!r}, and no update of unit "
                        f"{unit} uses them"
                    )


def _keeps(proof: Proof, unit: int, rank: int) -> bool:
    """Whether a unit's weights are on a rank's device for the whole run."""
    there = proof.schedule.buffers.get(buffers.on_rank(rank, buffers.weights(unit)))
    return there is not None and there.permanent and there.tier == DEVICE


def check_reduced(proof: Proof, passes: Passes) -> None:
    """Gradients that several ranks have a part of leave a device, update anything, or enter the
    norm after all of them have been added up, whole."""
    actions = proof.schedule.actions
    norms = [i for i, action in enumerate(actions) if action.kind is Kind.NORM]
    for unit in range(proof.schedule.num_units):
        parts = passes.weight_gradients(unit)
        ranks = {actions[i].rank for i in parts}
        if len(ranks) < 2:
            continue
        sums = _sums(proof, unit, ranks)
        for i in sums:
            for part in parts:
                proof.require(part, i, "it adds up gradients that may be incomplete")
        for reader in [*proof.find(Kind.GRAD_OUT, unit), *proof.find(Kind.UPDATE, unit), *norms]:
            where = actions[reader]
            own = [i for i in sums if actions[i].rank == where.rank]
            if where.kind is not Kind.GRAD_OUT and lane_kind(where.lane) not in (COMPUTE, VISIT):
                own = sums  # on the host are those of all ranks
            if not any(proof.before(i, reader) for i in own):
                others = [actions[i] for i in proof.find(Kind.REDUCE, unit) if i not in sums]
                why = f" ({others[0].name} is no sum of all of them)" if others else ""
                raise ScheduleError(
                    f"{where.name} may start before the gradients of all ranks are added up{why}"
                )


def _sums(proof: Proof, unit: int, ranks: set[int]) -> list[int]:
    """The actions that add up a unit's gradients over at least those ranks."""
    actions = proof.schedule.actions
    found = [i for i in proof.find(Kind.REDUCE, unit) if _adds_gradients(proof, actions[i])]
    groups: dict[tuple, set[int]] = {}
    for i in found:
        groups.setdefault(actions[i].meeting, set()).add(actions[i].rank)
    return [i for i in found if groups[actions[i].meeting] >= ranks]


def _adds_gradients(proof: Proof, action: Action) -> bool:
    """Whether a sum is of a buffer of its unit's gradients, and of all its bytes."""
    return any(
        buffers.holds_gradients(label, action.unit)
        and proof.schedule.buffers[label].nbytes == action.nbytes
        for label in (*action.takes, *action.uses, *action.frees)
        if label in proof.schedule.buffers
    )
