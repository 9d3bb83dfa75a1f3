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

A clipped step leaves the host idle in the backward pass, and the next forward pass waits for all
updates. There **moments follow weights** (`later_units`): once the norm is known, an update
computes the new moments but writes weights alone, in 18 of the 26 bytes of memory traffic that the
whole update of a bf16 parameter takes. Beside the next backward pass the moments are computed once
more, and written, before the unit's next gradients arrive. No bit of the result differs.

Units whose states are on the device wait for the norm: there an update takes a hundredth of the
time. States may also live on the host and visit the device through a ring of slots, which lends the
host's work to the link. Such a visit may be eager too. Then the schedule has two of them, one for
the guess and one for the verdict, of which one moves nothing where the guess was right: where the
step before was clipped nothing is guessed, and where the guess stands there is nothing to do.
States on the disk come through a ring of staging slots, read ahead and written behind.
"""

from __future__ import annotations

from workbench.methods.offload import slots
from workbench.methods.offload.step_builder import LayerStepBuilder
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


def norm(builder: LayerStepBuilder) -> None:
    """Add the norm of all gradients."""
    last = act(Kind.BACKWARD, 0, builder.last_micro)
    builder.add(Kind.NORM, 0, COMPUTE, after=[last])


def finish(builder: LayerStepBuilder) -> None:
    """Add the updates that the backward pass left undone, in the order of the next forward pass:
    units needed soonest come first."""
    for unit in range(builder.num_units):
        if builder.settled(unit):
            _settle(builder, unit)
        elif not builder.eager(unit):
            update(builder, unit)
    for unit in sorted(builder.placement.moments_later, reverse=True):
        _moments(builder, unit)


def final(builder: LayerStepBuilder, unit: int, step: int = 0) -> str:
    """The action after which a unit's weights are those of the next step."""
    return act(Kind.SETTLE if builder.settled(unit) else Kind.UPDATE, unit, step=step)


def eager_units(profile: Profile, streamed: list[int], recomputed: set[int]) -> frozenset[int]:
    """The streamed units to update during the backward pass, if the host is to lose no time.

    A list schedule of that pass: whenever the host is free it takes, of the gradients that are
    there, those of the unit needed soonest. What it has not begun when the pass ends is left for
    the order of the next forward pass.
    """
    units, rate = profile.units, profile.hardware.host_adam_params_per_s
    arrival = _arrivals(profile, recomputed)
    end, free, eager, waiting = arrival[0], 0.0, set(), sorted(streamed, reverse=True)
    while waiting and free < end:
        here = [unit for unit in waiting if arrival[unit] <= free]
        if not here:
            free = arrival[waiting[0]]
            continue
        eager.add(min(here))
        waiting.remove(min(here))
        free += units[min(here)].parameters / rate
    return frozenset(eager)


def later_units(
    profile: Profile, streamed: list[int], recomputed: set[int], workers: int
) -> frozenset[int]:
    """The streamed units whose moments can follow their weights: as many of the first ones as are
    done, from the last of them on, before their gradients arrive in the backward pass beside."""
    arrival, rate = _arrivals(profile, recomputed), profile.hardware.host_adam_params_per_s
    seconds = [unit.parameters * profile.apart / rate / workers for unit in profile.units]
    for count in range(len(streamed), 0, -1):
        first, ends = sorted(streamed)[:count], 0.0
        for unit in reversed(first):
            ends += seconds[unit]
            if ends > arrival[unit]:
                break
        else:
            return frozenset(first)
    return frozenset()


def _arrivals(profile: Profile, recomputed: set[int]) -> dict[int, float]:
    """Seconds from the beginning of the backward pass until the gradients of each unit are
    there."""
    units, arrival = profile.units, {}
    now = units[-1].backward_s
    for unit in reversed(range(len(units) - 1)):
        cost = units[unit]
        now += cost.backward_s + cost.gradient_s + (cost.recompute_s if unit in recomputed else 0.0)
        arrival[unit] = now
    return arrival


def update(builder: LayerStepBuilder, unit: int) -> None:
    """Add the update of a unit: on the device, on a visit to it, or on the host."""
    waits = builder.placement.clipped and not builder.eager(unit)
    after = [act(Kind.NORM, 0)] if waits else []
    if builder.comes(unit):
        _on_host(builder, unit, [*after, act(Kind.GRAD_OUT, unit)])
        return
    after.append(act(Kind.BACKWARD, unit, builder.last_micro))
    if unit in builder.placement.pulled:
        _visit(builder, unit, Kind.UPDATE, after, GUESS if builder.settled(unit) else 0)
        return
    uses, frees, takes = [name.weights(unit), name.states(unit)], [], []
    (frees if builder.fresh_gradients(unit) else uses).append(name.gradients(unit))
    if builder.joins_gradients(unit):
        takes.append(builder.scratch(act(Kind.UPDATE, unit), builder.weight_bytes(unit)))
    builder.add(Kind.UPDATE, unit, COMPUTE, after=after, takes=takes, uses=uses, frees=frees)


def _on_host(builder: LayerStepBuilder, unit: int, after: list[str]) -> None:
    """Update a unit on the host. Gradients of a guess stay until its verdict."""
    uses, frees = [name.host_weights(unit), name.host_states(unit)], []
    stay = builder.settled(unit) or builder.later(unit)
    (uses if stay else frees).append(name.host_gradients(unit))
    on_disk, nbytes = unit in builder.placement.on_disk, builder.state_bytes(unit)
    if on_disk:
        _read(builder, unit)
        after.append(act(Kind.READ, unit))
    builder.add(Kind.UPDATE, unit, _lane(builder, unit), after=after, uses=uses, frees=frees)
    if on_disk:
        after, frees = [act(Kind.UPDATE, unit)], [name.host_states(unit)]
        builder.add(Kind.SPILL, unit, DISK_OUT, after=after, nbytes=nbytes, frees=frees)


def _settle(builder: LayerStepBuilder, unit: int) -> None:
    """Add the verdict on a guess."""
    if unit in builder.placement.pulled:
        _visit(builder, unit, Kind.SETTLE, [act(Kind.UPDATE, unit)], VERDICT)
        return
    after = [act(Kind.NORM, 0), act(Kind.UPDATE, unit)]
    uses, frees = [name.host_weights(unit), name.host_states(unit)], []
    (uses if builder.later(unit) else frees).append(name.host_gradients(unit))
    builder.add(Kind.SETTLE, unit, _lane(builder, unit), after=after, uses=uses, frees=frees)


def _moments(builder: LayerStepBuilder, unit: int) -> None:
    """Add the update of moments that follows that of the weights."""
    after, uses = [final(builder, unit)], [name.host_states(unit)]
    frees = [name.host_gradients(unit)]
    builder.add(Kind.MOMENTS, unit, _lane(builder, unit), after=after, uses=uses, frees=frees)


def _visit(builder: LayerStepBuilder, unit: int, kind: Kind, after: list[str], turn: int) -> None:
    """States come to the device, are updated there, and go back."""
    states, nbytes = name.states(unit, turn), builder.state_bytes(unit)
    uses, frees = [name.weights(unit), states], []
    (uses if turn == GUESS else frees).append(name.gradients(unit))
    _pull(builder, unit, turn)
    after = [*after, act(Kind.PULL, unit, turn=turn)]
    builder.add(kind, unit, VISIT, after=after, uses=uses, frees=frees)
    after, frees = [act(kind, unit)], [states]
    builder.add(Kind.PUSH, unit, D2H, turn=turn, after=after, nbytes=nbytes, frees=frees)


def _lane(builder: LayerStepBuilder, unit: int) -> str:
    """The host worker that a unit belongs to."""
    worker = builder.index.get(unit, 0) % builder.placement.host_workers
    return HOST + (f".{worker}" if worker else "")


def _read(builder: LayerStepBuilder, unit: int) -> None:
    """Bring states from the disk into a staging slot on the host."""
    slot, after = slots.staging(builder, unit)
    label, nbytes = name.host_states(unit), builder.state_bytes(unit)
    builder.buffer(label, HOST_TIER, nbytes, slot=slot)
    builder.add(Kind.READ, unit, DISK_IN, after=after, nbytes=nbytes, takes=[label])


def _pull(builder: LayerStepBuilder, unit: int, turn: int) -> None:
    """Bring states from the host into a slot on the device."""
    slot, after = slots.states(builder, unit, turn)
    if turn == GUESS:  # not before it is known whether the step before was clipped
        after.append(act(Kind.FORWARD, 0, 0))
    elif turn == VERDICT:  # not before it is known whether there is anything to do
        after += [act(Kind.NORM, 0), act(Kind.PUSH, unit, turn=GUESS)]
    label, nbytes = name.states(unit, turn), builder.state_bytes(unit)
    builder.buffer(label, DEVICE, nbytes, slot=slot)
    builder.add(Kind.PULL, unit, H2D, turn=turn, after=after, nbytes=nbytes, takes=[label])
