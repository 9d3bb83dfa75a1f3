"""Updates of units that stay on devices of a pipeline: sums over replicas, the norm, and weights
that two positions share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from workbench.methods.pipeline.orders import B, F, W
from workbench.methods.pipeline.step_draft import ActionDraft, StepDraft
from workbench.schedule import buffers as name
from workbench.schedule.action import HOST, NET_OUT, VISIT, Kind
from workbench.schedule.action import format_name as act

SUMS = NET_OUT + ".2"
"""Sums over replicas, beside the backward passes that follow."""


def write(step: StepDraft) -> None:
    """Gradients are added up over replicas as soon as they are complete, those of borrowed
    weights go to the owner; the norm of all is taken; then each position updates its own units."""
    line, sizes = step.line, step.sizes
    for unit, position in line.home_of.items():
        step.lay(position, name.weights(unit), sizes.visit_bytes(unit), permanent=True)
        step.lay(position, name.states(unit), sizes.state_bytes(unit), permanent=True)
    complete: dict[int, str] = {}
    """Unit -> what completes its gradients, in the order in which they are."""
    first: dict[int, ActionDraft] = {}
    """Unit -> the first pass of the next step, which reads its new weights."""
    for drafts in step.drafts:
        for draft in drafts:
            if draft.kind is F:
                first.setdefault(draft.unit, draft)
            elif draft.kind in (B, W):
                if complete.pop(draft.unit, None) is None:
                    text = name.gradients(draft.unit)
                    step.make(draft, text, sizes.visit_bytes(draft.unit), slot=text)
                complete[draft.unit] = draft.name
    if line.replicas > 1:
        for unit, last in complete.items():
            draft = ActionDraft(kind=Kind.REDUCE, unit=unit, position=line.home_of[unit], lane=SUMS)
            draft.after, draft.nbytes = [last], sizes.visit_bytes(unit)
            draft.reads.append(name.gradients(unit))
            step.write(draft)
            complete[unit] = draft.name
    borrowers = {u: sizes.owner(u) for u in complete if sizes.owner(u) != u}
    apart = {u: o for u, o in borrowers.items() if line.home_of[u] != line.home_of[o]}
    turns = _turns(apart)
    for unit, owner in apart.items():
        complete[owner] = _lend(
            step, unit, owner, turns[unit], Kind.SEND_GRAD, complete[unit], complete[owner]
        )
    ready = [*complete.values()]
    if line.clipped:
        norm = ActionDraft(kind=Kind.NORM, unit=0, position=0, lane=HOST, after=ready)
        step.write(norm)
    for unit in sorted(complete, key=lambda unit: (unit in borrowers, unit)):
        position, owner = line.home_of[unit], borrowers.get(unit)
        draft = ActionDraft(kind=Kind.UPDATE, unit=unit, position=position, lane=VISIT)
        draft.after.append(norm.name if line.clipped else complete[unit])
        draft.reads += [name.weights(unit), name.states(unit), name.gradients(unit)]
        if unit in apart:  # its gradients are on their way until then
            draft.after.append(act(Kind.SEND_GRAD, owner, turn=turns[unit], rank=position))
        elif owner is not None:  # whose weights it copies
            draft.after.append(act(Kind.UPDATE, owner, rank=position))
            draft.reads.append(name.weights(owner))
        draft.after += [
            act(Kind.SEND, unit, turn=turns[borrower], rank=position, step=-1)
            for borrower, lender in apart.items()
            if lender == unit
        ]
        step.write(draft)
        first[unit].after.insert(0, f"{draft.name}@-1")
    for unit, owner in apart.items():
        updated = act(Kind.UPDATE, owner, rank=line.home_of[owner])
        there = act(Kind.UPDATE, unit, rank=line.home_of[unit])
        came = _lend(step, unit, owner, turns[unit], Kind.SEND, updated, there)
        first[unit].after.append(f"{came}@-1")


def _turns(apart: Mapping[int, int]) -> dict[int, int]:
    """Borrower -> how many of its owner's come before it: their messages are named alike."""
    lent: Counter[int] = Counter()
    turns = {}
    for borrower, owner in sorted(apart.items()):
        turns[borrower] = lent[owner]
        lent[owner] += 1
    return turns


def _lend(
    step: StepDraft, borrower: int, owner: int, turn: int, send: Kind, sent: str, there: str
) -> str:
    """Have weights go to a borrower on another position, or their gradients to the owner, where
    they are added when its own are there; returns what takes them in."""
    line, gradients = step.line, send is Kind.SEND_GRAD
    receive = Kind.RECV_GRAD if gradients else Kind.RECV
    units = (borrower, owner) if gradients else (owner, borrower)
    text = name.lent_gradients if gradients else name.lent_weights
    nbytes = step.sizes.visit_bytes(borrower) - step.sizes.weight_bytes(borrower)
    what = name.gradients if gradients else name.weights
    out, into = (
        step.message(kind, owner, None, line.home_of[unit])
        for kind, unit in zip((send, receive), units, strict=True)
    )
    out.turn = into.turn = turn
    out.nbytes = into.nbytes = nbytes
    out.after.append(sent)
    out.reads.append(what(units[0]))
    into.after += [there, f"{into.name}@-1"]
    into.makes.append(text(owner, borrower))
    into.reads.append(what(units[1]))
    step.write(out)
    step.write(into)
    return into.name
