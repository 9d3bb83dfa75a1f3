"""When units are updated: as gradients arrive, or in the order of the next forward pass.

A step's host updates have two stretches of time to hide in. During the backward pass an update may
follow its gradients; after it, those that are left run in the order in which the next forward pass
needs the units, beside that pass. A host that cannot keep up with the backward pass should not
take gradients in the order of their arrival: the last ones to arrive are needed first. So the
planner chooses which units are **eager** (`eager_units`), and the rest wait for their turn.

Exact global clipping needs every gradient before any update is final. Eager updates then are done
as if nothing were clipped, and settled once the norm is known: an update stands if nothing is
clipped, else it is taken back and done again in one pass. The engine stops speculating as soon as
the norm of the gradients it has seen exceeds the limit, which bounds both the wasted work and the
rounding error of taking back (runtime/updates/optimizer.py).

Units whose states are on the device wait for the norm: there an update takes a hundredth of the
time. States may also live on the host and visit the device through a ring of slots, which lends the
host's work to the link. Such a visit may be eager too. Then the schedule has two of them, one for
the guess and one for the verdict, of which one moves nothing where the guess was right: where the
step before was clipped nothing is guessed, and where the guess stands there is nothing to do.
States on the disk come through a ring of staging slots, read ahead and written behind.
"""

from __future__ import annotations

from workbench.methods.offload.draft import Draft
from workbench.profile.profile import Profile
from workbench.schedule import buffers as name
from workbench.schedule.action import (
    COMPUTE,
    D2H,
    DISK_IN,
    DISK_OUT,
    GUESS,
    H2D,
    HOST,
    VERDICT,
    VISIT,
    Kind,
)
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import DEVICE, HOST_TIER


def norm(draft: Draft) -> None:
    last = act(Kind.BACKWARD, 0, draft.last_micro)
    draft.add(Kind.NORM, 0, COMPUTE, after=[last])


def finish(draft: Draft) -> None:
    """Add the updates that the backward pass left undone, in the order of the next forward pass:
    units needed soonest come first."""
    for unit in range(draft.num_units):
        if draft.settled(unit):
            _settle(draft, unit)
        elif not draft.eager(unit):
            update(draft, unit)


def final(draft: Draft, unit: int, step: int = 0) -> str:
    """The action after which a unit's weights are those of the next step."""
    return act(Kind.SETTLE if draft.settled(unit) else Kind.UPDATE, unit, step=step)


def eager_units(profile: Profile, streamed: list[int], recomputed: set[int]) -> frozenset[int]:
    """The streamed units to update during the backward pass, if the host is to lose no time.

    A list schedule of that pass: whenever the host is free it takes, of the gradients that are
    there, those of the unit needed soonest. What it has not begun when the pass ends is left for
    the order of the next forward pass.
    """
    units, rate = profile.units, profile.hardware.host_adam_params_per_s
    arrival, now = {}, units[-1].backward_s
    for unit in reversed(range(len(units) - 1)):
        cost = units[unit]
        now += cost.backward_s + cost.gradient_s + (cost.recompute_s if unit in recomputed else 0.0)
        arrival[unit] = now
    end, free, eager, waiting = now, 0.0, set(), sorted(streamed, reverse=True)
    while waiting and free < end:
        here = [unit for unit in waiting if arrival[unit] <= free]
        if not here:
            free = arrival[waiting[0]]
            continue
        eager.add(min(here))
        waiting.remove(min(here))
        free += units[min(here)].parameters / rate
    return frozenset(eager)


def update(draft: Draft, unit: int) -> None:
    layout, eager, settled = draft.layout, draft.eager(unit), draft.settled(unit)
    after = [act(Kind.NORM, 0)] if layout.clipped and not eager else []
    if unit not in draft.index:
        after.append(act(Kind.BACKWARD, unit, draft.last_micro))
        if unit in layout.pulled:
            _visit(draft, unit, Kind.UPDATE, after, GUESS if settled else 0)
            return
        uses, frees, takes = [name.weights(unit), name.states(unit)], [], []
        (frees if draft.fresh_gradients(unit) else uses).append(name.gradients(unit))
        if draft.joins_gradients(unit):
            takes.append(draft.scratch(act(Kind.UPDATE, unit), draft.weight_bytes(unit)))
        draft.add(Kind.UPDATE, unit, COMPUTE, after=after, takes=takes, uses=uses, frees=frees)
        return
    after.append(act(Kind.GRAD_OUT, unit))
    uses, on_disk = [name.host_weights(unit), name.host_states(unit)], unit in layout.on_disk
    if on_disk:
        _read(draft, unit)
        after.append(act(Kind.READ, unit))
    gradients = [name.host_gradients(unit)]
    draft.add(
        Kind.UPDATE,
        unit,
        _lane(draft, unit),
        after=after,
        uses=uses + gradients if settled else uses,
        frees=[] if settled else gradients,
    )
    if on_disk:
        draft.add(
            Kind.SPILL,
            unit,
            DISK_OUT,
            after=[act(Kind.UPDATE, unit)],
            nbytes=draft.state_bytes(unit),
            frees=[name.host_states(unit)],
        )


def _visit(draft: Draft, unit: int, kind: Kind, after: list[str], turn: int) -> None:
    """States come to the device, are updated there, and go back."""
    states, gradients = name.states(unit, turn), [name.gradients(unit)]
    last = turn != GUESS
    _pull(draft, unit, turn)
    draft.add(
        kind,
        unit,
        VISIT,
        after=[*after, act(Kind.PULL, unit, turn=turn)],
        uses=[name.weights(unit), states] + ([] if last else gradients),
        frees=gradients if last else [],
    )
    draft.add(
        Kind.PUSH,
        unit,
        D2H,
        turn=turn,
        after=[act(kind, unit)],
        nbytes=draft.state_bytes(unit),
        frees=[states],
    )


def _settle(draft: Draft, unit: int) -> None:
    if unit in draft.layout.pulled:
        _visit(draft, unit, Kind.SETTLE, [act(Kind.UPDATE, unit)], VERDICT)
        return
    draft.add(
        Kind.SETTLE,
        unit,
        _lane(draft, unit),
        after=[act(Kind.NORM, 0), act(Kind.UPDATE, unit)],
        uses=[name.host_weights(unit), name.host_states(unit)],
        frees=[name.host_gradients(unit)],
    )


def _lane(draft: Draft, unit: int) -> str:
    """The host worker that a unit belongs to."""
    worker = draft.index[unit] % draft.layout.host_workers
    return HOST + (f".{worker}" if worker else "")


def _read(draft: Draft, unit: int) -> None:
    """States from the disk into a staging slot, in the order of the updates: eager ones from the
    last unit to the first, then the others from the first to the last.
    """
    on_disk = sorted(draft.layout.on_disk)
    early = [u for u in reversed(on_disk) if draft.eager(u)]
    order = [(u, 0) for u in early + [u for u in on_disk if not draft.eager(u)]]
    slot, after = _slot_of((unit, 0), order, draft.layout.staging_slots, Kind.SPILL)
    label, nbytes = name.host_states(unit), draft.state_bytes(unit)
    draft.buffer(label, HOST_TIER, nbytes, slot=f"staging {slot}")
    draft.add(Kind.READ, unit, DISK_IN, after=after, nbytes=nbytes, takes=[label])


def _pull(draft: Draft, unit: int, turn: int) -> None:
    """States from the host into a slot on the device, in the order of the updates."""
    order = [(u, VERDICT if draft.settled(u) else 0) for u in draft.pulled]
    order = [(u, GUESS) for u in reversed(draft.pulled) if draft.settled(u)] + order
    slot, after = _slot_of((unit, turn), order, draft.layout.state_slots, Kind.PUSH)
    if turn == GUESS:  # not before it is known whether the step before was clipped
        after.append(act(Kind.FORWARD, 0, 0))
    elif turn == VERDICT:  # not before it is known whether there is anything to do
        after += [act(Kind.NORM, 0), act(Kind.PUSH, unit, turn=GUESS)]
    label, nbytes = name.states(unit, turn), draft.state_bytes(unit)
    draft.buffer(label, DEVICE, nbytes, slot=f"states {slot}")
    draft.add(Kind.PULL, unit, H2D, turn=turn, after=after, nbytes=nbytes, takes=[label])


def _slot_of(
    visit: tuple[int, int], order: list[tuple[int, int]], slots: int, leaving: Kind
) -> tuple[int, list[str]]:
    """The slot of a visit (unit, turn), when those in `order` take turns; and what its arrival
    waits for: the way back of its own states from their last visit, and of the states that had the
    slot last.
    """
    place, unit = order.index(visit), visit[0]
    own = max(other for other in order if other[0] == unit)
    after = [act(leaving, unit, turn=own[1], step=-1)]
    if place >= slots:
        before, step = order[place - slots], 0
    else:
        before, step = order[place + (len(order) - 1 - place) // slots * slots], -1
    after.append(act(leaving, before[0], turn=before[1], step=step))
    return place % slots, after
