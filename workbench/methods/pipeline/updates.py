"""Updates of units that stay on devices of a pipeline: sums over replicas, the norm, and weights
that two ranks share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from workbench.methods.pipeline.draft import Draft
from workbench.methods.pipeline.orders import B, F, W
from workbench.methods.pipeline.sheet import Sheet
from workbench.schedule import buffers as name
from workbench.schedule.action import HOST, NET_OUT, VISIT, Kind
from workbench.schedule.action import format_name as act

SUMS = NET_OUT + ".2"
"""Sums over replicas, beside the backward passes that follow."""


def write(sheet: Sheet) -> None:
    """Gradients are added up over replicas as soon as they are complete, those of borrowed
    weights go to the owner; the norm of all is taken; then each rank updates its own units."""
    line, sizes = sheet.line, sheet.sizes
    for unit, rank in line.rank_of.items():
        sheet.lay(rank, name.weights(unit), sizes.visit_bytes(unit), permanent=True)
        sheet.lay(rank, name.states(unit), sizes.state_bytes(unit), permanent=True)
    complete: dict[int, str] = {}
    """Unit -> what completes its gradients, in the order in which they are."""
    first: dict[int, Draft] = {}
    """Unit -> the first pass of the next step, which reads its new weights."""
    for drafts in sheet.drafts:
        for draft in drafts:
            if draft.kind is F:
                first.setdefault(draft.unit, draft)
            elif draft.kind in (B, W):
                if complete.pop(draft.unit, None) is None:
                    text = name.gradients(draft.unit)
                    sheet.make(draft, text, sizes.visit_bytes(draft.unit), slot=text)
                complete[draft.unit] = draft.name
    if line.replicas > 1:
        for unit, last in complete.items():
            draft = Draft(kind=Kind.REDUCE, unit=unit, rank=line.rank_of[unit], lane=SUMS)
            draft.after, draft.nbytes = [last], sizes.visit_bytes(unit)
            draft.reads.append(name.gradients(unit))
            sheet.write(draft)
            complete[unit] = draft.name
    borrowers = {u: sizes.owner(u) for u in complete if sizes.owner(u) != u}
    apart = {u: o for u, o in borrowers.items() if line.rank_of[u] != line.rank_of[o]}
    turns = _turns(apart)
    for unit, owner in apart.items():
        complete[owner] = _lend(
            sheet, unit, owner, turns[unit], Kind.SEND_GRAD, complete[unit], complete[owner]
        )
    ready = [*complete.values()]
    if line.clipped:
        norm = Draft(kind=Kind.NORM, unit=0, rank=0, lane=HOST, after=ready)
        sheet.write(norm)
    for unit in sorted(complete, key=lambda unit: (unit in borrowers, unit)):
        rank, owner = line.rank_of[unit], borrowers.get(unit)
        draft = Draft(kind=Kind.UPDATE, unit=unit, rank=rank, lane=VISIT)
        draft.after.append(norm.name if line.clipped else complete[unit])
        draft.reads += [name.weights(unit), name.states(unit), name.gradients(unit)]
        if unit in apart:  # its gradients are on their way until then
            draft.after.append(act(Kind.SEND_GRAD, owner, turn=turns[unit], rank=rank))
        elif owner is not None:  # whose weights it copies
            draft.after.append(act(Kind.UPDATE, owner, rank=rank))
            draft.reads.append(name.weights(owner))
        draft.after += [
            act(Kind.SEND, unit, turn=turns[borrower], rank=rank, step=-1)
            for borrower, lender in apart.items()
            if lender == unit
        ]
        sheet.write(draft)
        first[unit].after.insert(0, f"{draft.name}@-1")
    for unit, owner in apart.items():
        updated = act(Kind.UPDATE, owner, rank=line.rank_of[owner])
        there = act(Kind.UPDATE, unit, rank=line.rank_of[unit])
        came = _lend(sheet, unit, owner, turns[unit], Kind.SEND, updated, there)
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
    sheet: Sheet, borrower: int, owner: int, turn: int, send: Kind, sent: str, there: str
) -> str:
    """Have weights go to a borrower on another rank, or their gradients to the owner, where
    they are added when its own are there; returns what takes them in."""
    line, gradients = sheet.line, send is Kind.SEND_GRAD
    receive = Kind.RECV_GRAD if gradients else Kind.RECV
    units = (borrower, owner) if gradients else (owner, borrower)
    text = name.lent_gradients if gradients else name.lent_weights
    nbytes = sheet.sizes.visit_bytes(borrower) - sheet.sizes.weight_bytes(borrower)
    what = name.gradients if gradients else name.weights
    out, into = (
        sheet.message(kind, owner, None, line.rank_of[unit])
        for kind, unit in zip((send, receive), units, strict=True)
    )
    out.turn = into.turn = turn
    out.nbytes = into.nbytes = nbytes
    out.after.append(sent)
    out.reads.append(what(units[0]))
    into.after += [there, f"{into.name}@-1"]
    into.makes.append(text(owner, borrower))
    into.reads.append(what(units[1]))
    sheet.write(out)
    sheet.write(into)
    return into.name
