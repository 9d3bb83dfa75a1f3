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
rounding error of taking back (runtime/optimizer.py).

Units updated on the device wait for the norm: there an update takes a hundredth of the time. Their
states are there, or visit it through a ring of slots, which lends the host's work to the link.
States on the disk come through such a ring of staging slots too, read ahead and written behind.
"""

from __future__ import annotations

from workbench.methods.draft import Draft
from workbench.profile.profile import Profile
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST, VISIT, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER


def norm(draft: Draft) -> None:
    last = act(Kind.BACKWARD, 0, draft.last_micro)
    draft.add(Kind.NORM, 0, COMPUTE, after=[last])


def finish(draft: Draft) -> None:
    """What the backward pass left undone, in the order of the next forward pass: whoever is needed
    soonest comes first.
    """
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
        uses, frees = [name.weights(unit), name.states(unit)], []
        (frees if draft.fresh_gradients(unit) else uses).append(name.gradients(unit))
        lane = COMPUTE
        if unit in layout.pulled:
            lane = VISIT
            _pull(draft, unit)
            after.append(act(Kind.PULL, unit))
        draft.add(Kind.UPDATE, unit, lane, after=after, uses=uses, frees=frees)
        if unit in layout.pulled:
            draft.add(
                Kind.PUSH,
                unit,
                D2H,
                after=[act(Kind.UPDATE, unit)],
                nbytes=draft.state_bytes(unit),
                frees=[name.states(unit)],
            )
        return
    after.append(act(Kind.GRAD_OUT, unit))
    uses, on_disk = [name.host_weights(unit), name.host_states(unit)], layout.optimizer_tier == DISK
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


def _settle(draft: Draft, unit: int) -> None:
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
    early = [u for u in reversed(draft.streamed) if draft.eager(u)]
    order = early + [u for u in draft.streamed if not draft.eager(u)]
    slot, after = _turn(unit, order, draft.layout.staging_slots, Kind.SPILL)
    label, nbytes = name.host_states(unit), draft.state_bytes(unit)
    draft.buffer(label, HOST_TIER, nbytes, slot=f"staging {slot}")
    draft.add(Kind.READ, unit, DISK_IN, after=after, nbytes=nbytes, takes=[label])


def _pull(draft: Draft, unit: int) -> None:
    """States from the host into a slot on the device, in the order of the updates."""
    slot, after = _turn(unit, draft.pulled, draft.layout.state_slots, Kind.PUSH)
    label, nbytes = name.states(unit), draft.state_bytes(unit)
    draft.buffer(label, DEVICE, nbytes, slot=f"states {slot}")
    draft.add(Kind.PULL, unit, H2D, after=after, nbytes=nbytes, takes=[label])


def _turn(unit: int, order: list[int], slots: int, leaving: Kind) -> tuple[int, list[str]]:
    """The slot of a unit's states, when units take turns in `order`; and what its arrival waits
    for: its own states' way back in the step before, and whoever had the slot last.
    """
    place = order.index(unit)
    after = [act(leaving, unit, step=-1)]
    if place >= slots:
        after.append(act(leaving, order[place - slots]))
    else:
        last = place + (len(order) - 1 - place) // slots * slots
        after.append(act(leaving, order[last], step=-1))
    return place % slots, after
