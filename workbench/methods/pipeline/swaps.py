"""Units that visit the device of their position from the host, and inputs that wait on the host.

A unit comes before a pass that needs it, where its place holds another one; loads run ahead of
compute as far as places are free. A sum of gradients that lacks micro-batches goes to the host with
its unit and comes back; a complete one goes there once, where positions have all units after a sum
over them and each a share. The host updates what is there: one copy of the weights for the
machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from workbench.core.division import share_bytes
from workbench.methods.pipeline.definition import AHEAD
from workbench.methods.pipeline.orders import B, F, I, R, W
from workbench.methods.pipeline.places import Visit
from workbench.methods.pipeline.step_draft import ActionDraft, StepDraft
from workbench.profile.unit_costs import borrowed_bytes, host_weights
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, D2H, H2D, HOST, NET_OUT, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.inbox import FETCHES


def stash(step: StepDraft, position: int, drafts: list[ActionDraft]) -> list[ActionDraft]:
    """Add to a position's passes what takes inputs to the host after the forward pass, and what
    brings them back before it is repeated: few are on the device at once."""
    line, found = step.line, []
    gone: list[str] = []
    """Actions that take away inputs which this position has made."""
    used: list[str] = []
    """Passes over inputs that came back."""
    for draft in drafts:
        unit, micro = draft.unit, draft.micro
        if name.activation(unit + 1, micro) in draft.makes and line.stashes(unit + 1):
            draft.after += gone[-AHEAD : 1 - AHEAD]
            if unit + 1 not in line.starts:  # else the next stage reads it first, maybe much later
                gone.append(act(Kind.STASH, unit + 1, micro, rank=position))
        stashed = line.stashes(unit)
        if stashed and draft.kind is F:
            out = _of_input(step, Kind.STASH, D2H, draft)
            out.after, out.reads = [draft.name], [name.activation(unit, micro)]
            found += [draft, out]
            continue
        if stashed and draft.kind is R:
            back = _of_input(step, Kind.FETCH, FETCHES, draft)
            back.after = [act(Kind.STASH, unit, micro, rank=position), *used[-AHEAD : 1 - AHEAD]]
            step.make(back, name.activation(unit, micro, 1), back.nbytes)
            draft.after.append(back.name)
            found.append(back)
        elif stashed and draft.kind in (B, I):
            used.append(draft.name)
        found.append(draft)
    return found


def _of_input(step: StepDraft, kind: Kind, lane: str, draft: ActionDraft) -> ActionDraft:
    """A transfer of a pass's input to its place on the host, or from there."""
    unit, micro, position = draft.unit, draft.micro, draft.position
    label, (first, end) = name.on_rank(position, name.host_inputs(unit)), step.line.share(position)
    nbytes, replicas = step.sizes.input_bytes(unit, end - first), step.line.replicas
    return ActionDraft(
        kind=kind, unit=unit, micro=micro, position=position, lane=lane, number=draft.number,
        nbytes=step.input_bytes(unit, position, micro),
        host=[step.lay_host(label, nbytes, replicas)],
    )  # fmt: skip


def write(step: StepDraft) -> None:
    """Have all units visit, and the host update them."""
    for unit in range(step.line.head + 1):
        for position in step.line.homes_of(unit):
            step.lay_host(_host_gradients(step, position, unit), _share_bytes(step, unit))
    for position, drafts in enumerate(step.drafts):
        step.drafts[position] = Visits(step, position, drafts).added()
    _updates(step)


class Visits:
    """Visits of a position's units around its passes."""

    def __init__(self, step: StepDraft, position: int, drafts: list[ActionDraft]) -> None:
        self.step, self.position, self.drafts = step, position, drafts
        places = step.line.places[position]
        passes = [(draft.name, draft.unit) for draft in drafts if draft.lane == COMPUTE]
        adding = [(draft.name, draft.unit) for draft in drafts if draft.kind in (B, W)]
        self.weights, self.gradients = places.visits(passes), places.visits(adding)
        self.last = {unit: each for each, unit in adding}
        """Unit -> the pass that completes its gradients."""
        self.nbytes = [step.sizes.visit_bytes(unit) for unit in range(step.line.head + 1)]
        """Bytes of each unit's weights, and of its gradients."""
        self.offsets = places.offsets(self.nbytes)

    def added(self) -> list[ActionDraft]:
        """The passes, with what brings weights and sums of gradients, and what takes sums away."""
        found: list[ActionDraft] = []
        for draft in self.drafts:
            visit, sums = self.weights.get(draft.name), self.gradients.get(draft.name)
            if visit is not None:
                found += self._load(draft, visit)
            if sums is not None:
                found += self._add(draft, sums)
            found.append(draft)
            if sums is not None and sums.last == draft.name:
                found += self._away(draft, sums)
        return found

    def _load(self, draft: ActionDraft, visit: Visit) -> list[ActionDraft]:
        """The load of the weights that a pass reads, where they are not there yet."""
        line, sizes = self.step.line, self.step.sizes
        label = self._read(draft, name.weights, visit)
        if visit.first != draft.name:
            return []
        load = self._transfer(Kind.LOAD, draft, H2D, visit.turn)
        load.after += [
            act(Kind.UPDATE, owner, rank=position, step=-1)
            for owner in sorted({visit.unit, sizes.owner(visit.unit)})
            for position in line.homes_of(owner)
        ]
        load.after += _ended(visit, lambda one: one.last)
        load.host = host_weights(sizes, visit.unit)
        self._place(load, label, "weights")
        draft.after.append(load.name)
        return [load]

    def _add(self, draft: ActionDraft, visit: Visit) -> list[ActionDraft]:
        """The return of the sum that a pass adds to, where it went to the host; the first pass of a
        step begins it."""
        label, found = self._read(draft, name.gradients, visit), []
        if visit.first != draft.name:
            return found
        taker = draft
        if visit.turn:
            taker = self._transfer(Kind.SUM_IN, draft, H2D, visit.turn)
            went = act(Kind.SUM_OUT, visit.unit, turn=visit.turn - 1, rank=self.position)
            taker.after.append(went)
            taker.host = [self._host_sums(draft)]
            draft.after.append(taker.name)
            found.append(taker)
        taker.after += _ended(visit, self._gone)
        self._place(taker, label, "gradients")
        return found

    def _read(self, draft: ActionDraft, text: Callable[..., str], visit: Visit) -> str:
        """Have a pass read what came with a visit; returns its buffer."""
        label = text(visit.unit, visit.turn)
        draft.reads[draft.reads.index(text(visit.unit))] = label
        return label

    def _place(self, draft: ActionDraft, label: str, slot: str) -> None:
        """Have an action take the place of its unit."""
        unit = draft.unit
        self.step.make(draft, label, self.nbytes[unit], slot=slot, offset=self.offsets[unit])

    def _complete(self, visit: Visit) -> bool:
        return visit.last == self.last[visit.unit]

    def _gone(self, visit: Visit) -> str:
        """The action that takes gradients to the host at the end of a visit."""
        if self._complete(visit):
            return act(Kind.GRAD_OUT, visit.unit, rank=self.position)
        return act(Kind.SUM_OUT, visit.unit, turn=visit.turn, rank=self.position)

    def _away(self, draft: ActionDraft, visit: Visit) -> list[ActionDraft]:
        """The way of gradients to the host after a pass: the sum so far, or all of it, or where
        other positions add to it a share."""
        label = name.gradients(visit.unit, visit.turn)
        if not self._complete(visit):
            out = self._transfer(Kind.SUM_OUT, draft, D2H, visit.turn)
            out.host.append(self._host_sums(draft))
        else:
            out = self._transfer(Kind.GRAD_OUT, draft, D2H)
            out.host.append(_host_gradients(self.step, self.position, visit.unit))
        out.after, out.reads = [draft.name], [label]
        if out.kind is Kind.SUM_OUT or not self.step.line.apart:
            return [out]
        added = self._transfer(Kind.REDUCE, draft, NET_OUT)
        added.after, added.reads = out.after, [label]
        out.after, out.nbytes = [added.name], _share_bytes(self.step, visit.unit)
        return [added, out]

    def _transfer(self, kind: Kind, draft: ActionDraft, lane: str, turn: int = 0) -> ActionDraft:
        """A transfer of a pass's weights or gradients."""
        unit, at, nbytes = draft.unit, self.position, self.nbytes[draft.unit]
        return ActionDraft(kind=kind, unit=unit, position=at, lane=lane, turn=turn, nbytes=nbytes)

    def _host_sums(self, draft: ActionDraft) -> str:
        label = name.on_rank(self.position, name.host_sums(draft.unit))
        return self.step.lay_host(label, self.nbytes[draft.unit])


def _host_gradients(step: StepDraft, position: int, unit: int) -> str:
    return name.on_rank(position if step.line.apart else 0, name.host_gradients(unit))


def _share_bytes(step: StepDraft, unit: int) -> int:
    """A position's share of a unit's gradients: all of them, where no other has the unit."""
    nbytes = step.sizes.visit_bytes(unit)
    return share_bytes(nbytes, step.line.depth) if step.line.apart else nbytes


def _updates(step: StepDraft) -> None:
    """Update each unit: as its gradients arrive, or after the norm of all of them in the order of
    the next step's loads."""
    line, sizes, units = step.line, step.sizes, range(step.line.head + 1)
    gone: dict[int, dict[int, str]] = defaultdict(dict)
    """Unit -> position -> the action that brings its complete gradients."""
    for drafts in step.drafts:
        for draft in drafts:
            if draft.kind is Kind.GRAD_OUT:
                gone[draft.unit][draft.position] = draft.name
    norm = ActionDraft(kind=Kind.NORM, unit=0, position=0, lane=HOST)
    if line.clipped:
        norm.after = [each for unit in units for each in gone[unit].values()]
        norm.nbytes = borrowed_bytes(sizes, units)
        step.write(norm)
    for unit in units if line.clipped else reversed(units):
        lent = [u for u in units if sizes.owner(u) == unit and u != unit]
        for position, mine in gone[unit].items():
            draft = ActionDraft(kind=Kind.UPDATE, unit=unit, position=position, lane=HOST)
            others = [each for borrower in lent for each in gone[borrower].values()]
            draft.after = [norm.name] if line.clipped else [mine, *others]
            gradients = _host_gradients(step, position, unit)
            draft.host = [name.host_weights(unit), name.host_states(unit), gradients]
            step.write(draft)


def _ended(visit: Visit, ends: Callable[[Visit], str]) -> list[str]:
    """The end of the visit that had a place before."""
    if visit.behind is None:
        return []
    step, before = visit.behind
    return [ends(before) + (f"@{step}" if step else "")]
