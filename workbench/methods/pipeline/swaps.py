"""Units that visit the device of their rank from the host, and inputs that wait on the host.

A unit comes before a pass that needs it, where its place holds another one; loads run ahead of
compute as far as places are free. A sum of gradients that lacks micro-batches goes to the host with
its unit and comes back; a complete one goes there once, where ranks have all units after a sum over
them and each a share. The host updates what is there: one copy of the weights for the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from workbench.core.division import share_bytes
from workbench.methods.pipeline.draft import AHEAD, Draft
from workbench.methods.pipeline.orders import B, F, I, R, W
from workbench.methods.pipeline.places import Visit
from workbench.methods.pipeline.sheet import Sheet
from workbench.profile.unit_costs import borrowed_bytes, host_weights
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, D2H, H2D, HOST, NET_OUT, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.inbox import FETCHES


def stash(sheet: Sheet, rank: int, drafts: list[Draft]) -> list[Draft]:
    """Add to a rank's passes what takes inputs to the host after the forward pass, and what brings
    them back before it is repeated: few are on the device at once."""
    line, found = sheet.line, []
    gone: list[str] = []
    """Actions that take away inputs which this rank has made."""
    used: list[str] = []
    """Passes over inputs that came back."""
    for draft in drafts:
        unit, micro = draft.unit, draft.micro
        if name.activation(unit + 1, micro) in draft.makes and line.stashes(unit + 1):
            draft.after += gone[-AHEAD : 1 - AHEAD]
            if unit + 1 not in line.starts:  # else the next stage reads it first, maybe much later
                gone.append(act(Kind.STASH, unit + 1, micro, rank=rank))
        stashed = line.stashes(unit)
        if stashed and draft.kind is F:
            out = _of_input(sheet, Kind.STASH, D2H, draft)
            out.after, out.reads = [draft.name], [name.activation(unit, micro)]
            found += [draft, out]
            continue
        if stashed and draft.kind is R:
            back = _of_input(sheet, Kind.FETCH, FETCHES, draft)
            back.after = [act(Kind.STASH, unit, micro, rank=rank), *used[-AHEAD : 1 - AHEAD]]
            sheet.make(back, name.activation(unit, micro, 1), back.nbytes)
            draft.after.append(back.name)
            found.append(back)
        elif stashed and draft.kind in (B, I):
            used.append(draft.name)
        found.append(draft)
    return found


def _of_input(sheet: Sheet, kind: Kind, lane: str, draft: Draft) -> Draft:
    """A transfer of a pass's input to its place on the host, or from there."""
    unit, micro, rank = draft.unit, draft.micro, draft.rank
    label, (first, end) = name.on_rank(rank, name.host_inputs(unit)), sheet.line.share(rank)
    return Draft(
        kind=kind, unit=unit, micro=micro, rank=rank, lane=lane, number=draft.number,
        nbytes=sheet.input_bytes(unit, rank, micro),
        host=[sheet.lay_host(label, sheet.sizes.input_bytes(unit, end - first))],
    )  # fmt: skip


class Swaps:
    """Visits of all units, and their updates."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet, self.line, self.sizes = sheet, sheet.line, sheet.sizes
        self.nbytes = [self.sizes.visit_bytes(unit) for unit in range(self.line.head + 1)]
        """Bytes of each unit's weights, and of its gradients."""

    def write(self) -> None:
        """All of them, around the passes of the sheet."""
        for unit in range(self.line.head + 1):
            for rank in self.line.ranks_of(unit):
                self.sheet.lay_host(self._host_gradients(rank, unit), self._share_bytes(unit))
        for rank, drafts in enumerate(self.sheet.drafts):
            self.sheet.drafts[rank] = self._visits(rank, drafts)
        self._updates()

    # -- visits ---------------------------------------------------------------------------------

    def _visits(self, rank: int, drafts: list[Draft]) -> list[Draft]:
        """Add to a rank's passes what brings weights and sums of gradients, and takes sums away."""
        places, found = self.line.places[rank], []
        passes = [(draft.name, draft.unit) for draft in drafts if draft.lane == COMPUTE]
        adding = [(draft.name, draft.unit) for draft in drafts if draft.kind in (B, W)]
        weights, gradients = places.visits(passes), places.visits(adding)
        last = {unit: each for each, unit in adding}
        offsets = places.offsets(self.nbytes)

        def gone(visit: Visit) -> str:
            if visit.last == last[visit.unit]:
                return act(Kind.GRAD_OUT, visit.unit, rank=rank)
            return act(Kind.SUM_OUT, visit.unit, turn=visit.turn, rank=rank)

        for draft in drafts:
            visit, sums = weights.get(draft.name), gradients.get(draft.name)
            if visit is not None:
                found += self._load(draft, visit, offsets)
            if sums is not None:
                found += self._add(draft, sums, offsets, gone)
            found.append(draft)
            if sums is not None and sums.last == draft.name:
                found += self._away(draft, sums, complete=sums.last == last[draft.unit])
        return found

    def _load(self, draft: Draft, visit: Visit, offsets: dict[int, int]) -> list[Draft]:
        """The load of the weights that a pass reads, where they are not there yet."""
        label = self._read(draft, name.weights, visit)
        if visit.first != draft.name:
            return []
        load = self._transfer(Kind.LOAD, draft, H2D, visit.turn)
        load.after += [*self._updated(visit.unit), *_ended(visit, lambda one: one.last)]
        load.host = host_weights(self.sizes, visit.unit)
        self._place(load, label, "weights", offsets)
        draft.after.append(load.name)
        return [load]

    def _add(
        self, draft: Draft, visit: Visit, offsets: dict[int, int], gone: Callable[[Visit], str]
    ) -> list[Draft]:
        """The return of the sum that a pass adds to, where it went to the host; the first pass of a
        step begins it."""
        label, found = self._read(draft, name.gradients, visit), []
        if visit.first != draft.name:
            return found
        taker = draft
        if visit.turn:
            taker = self._transfer(Kind.SUM_IN, draft, H2D, visit.turn)
            went = act(Kind.SUM_OUT, visit.unit, turn=visit.turn - 1, rank=draft.rank)
            taker.after.append(went)
            taker.host = [self._host_sums(draft)]
            draft.after.append(taker.name)
            found.append(taker)
        taker.after += _ended(visit, gone)
        self._place(taker, label, "gradients", offsets)
        return found

    def _read(self, draft: Draft, text: Callable[..., str], visit: Visit) -> str:
        """Have a pass read what came with a visit; returns its buffer."""
        label = text(visit.unit, visit.turn)
        draft.reads[draft.reads.index(text(visit.unit))] = label
        return label

    def _place(self, draft: Draft, label: str, slot: str, offsets: dict[int, int]) -> None:
        """Have an action take the place of its unit."""
        unit = draft.unit
        self.sheet.make(draft, label, self.nbytes[unit], slot=slot, offset=offsets[unit])

    def _away(self, draft: Draft, visit: Visit, *, complete: bool) -> list[Draft]:
        """The way of gradients to the host after a pass: the sum so far, or all of it, or where
        other ranks add to it a share."""
        unit, rank, label = visit.unit, draft.rank, name.gradients(visit.unit, visit.turn)
        kind, turn = (Kind.GRAD_OUT, 0) if complete else (Kind.SUM_OUT, visit.turn)
        out = self._transfer(kind, draft, D2H, turn)
        out.after.append(draft.name)
        out.reads.append(label)
        if not complete:
            out.host.append(self._host_sums(draft))
            return [out]
        out.host.append(self._host_gradients(rank, unit))
        if not self.line.apart:
            return [out]
        added = self._transfer(Kind.REDUCE, draft, NET_OUT)
        added.after, added.reads = out.after, [label]
        out.after, out.nbytes = [added.name], self._share_bytes(unit)
        return [added, out]

    def _transfer(self, kind: Kind, draft: Draft, lane: str, turn: int = 0) -> Draft:
        """A transfer of a pass's weights or gradients."""
        unit, nbytes = draft.unit, self.nbytes[draft.unit]
        return Draft(kind=kind, unit=unit, rank=draft.rank, lane=lane, turn=turn, nbytes=nbytes)

    def _updated(self, unit: int) -> list[str]:
        """Updates that make a unit's weights those of this step, borrowed ones too."""
        return [
            act(Kind.UPDATE, owner, rank=rank, step=-1)
            for owner in sorted({unit, self.sizes.owner(unit)})
            for rank in self.line.ranks_of(owner)
        ]

    # -- the host -------------------------------------------------------------------------------

    def _host_sums(self, draft: Draft) -> str:
        label = name.on_rank(draft.rank, name.host_sums(draft.unit))
        return self.sheet.lay_host(label, self.nbytes[draft.unit])

    def _host_gradients(self, rank: int, unit: int) -> str:
        return name.on_rank(rank if self.line.apart else 0, name.host_gradients(unit))

    def _share_bytes(self, unit: int) -> int:
        """A rank's share of a unit's gradients: all of them, where no other has the unit."""
        nbytes = self.nbytes[unit]
        return share_bytes(nbytes, self.line.ranks) if self.line.apart else nbytes

    def _updates(self) -> None:
        """Update each unit: as its gradients arrive, or after the norm of all of them in the order
        of the next step's loads."""
        line, units = self.line, range(self.line.head + 1)
        gone: dict[int, dict[int, str]] = defaultdict(dict)
        """Unit -> rank -> the action that brings its complete gradients."""
        for drafts in self.sheet.drafts:
            for draft in drafts:
                if draft.kind is Kind.GRAD_OUT:
                    gone[draft.unit][draft.rank] = draft.name
        norm = Draft(kind=Kind.NORM, unit=0, rank=0, lane=HOST)
        if line.clipped:
            norm.after = [each for unit in units for each in gone[unit].values()]
            norm.nbytes = borrowed_bytes(self.sizes, units)
            self.sheet.write(norm)
        for unit in units if line.clipped else reversed(units):
            lent = [u for u in units if self.sizes.owner(u) == unit and u != unit]
            for rank, mine in gone[unit].items():
                draft = Draft(kind=Kind.UPDATE, unit=unit, rank=rank, lane=HOST)
                others = [each for borrower in lent for each in gone[borrower].values()]
                draft.after = [norm.name] if line.clipped else [mine, *others]
                draft.host = [
                    name.host_weights(unit), name.host_states(unit),
                    self._host_gradients(rank, unit),
                ]  # fmt: skip
                self.sheet.write(draft)


def _ended(visit: Visit, ends: Callable[[Visit], str]) -> list[str]:
    """The end of the visit that had a place before."""
    if visit.behind is None:
        return []
    step, before = visit.behind
    return [ends(before) + (f"@{step}" if step else "")]
