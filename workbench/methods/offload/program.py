"""One training step of a layered model on one device, written down as a schedule.

Every single-device method is a choice of four things, and this builder turns the choice into
actions:

* which units are **resident** (weights, gradients and optimizer states never leave the device; the
  device updates them) and which are **streamed** (states on the host or disk, updated there); the
  embedding and the head are resident, or **hosted**: updated on the host, on the device all step;
* how many weight **slots** the streamed units share (slots.py). A device copy is never written
  back: it is never dirty;
* what becomes of **activations**: kept, recomputed from each unit's input, or the input stashed on
  the host;
* which host updates are **eager**, run as gradients arrive, and whether gradients are **clipped**
  by their global norm, so that an update is final only when that is known (updates.py).

`build` is the order of passes and transfers; each function adds one of them, with the buffers that
it takes, uses and frees.

Two promises are kept apart, unlike in the published artifact: a slot is free as soon as compute is
done with it, while a unit's parameters are ready only after its update, which its next load waits
for. Updates that are not eager run in the order of the next forward pass and overlap it,
ahead of the loads.

Micro-batches are layer-major (all of them pass a unit while it is loaded, as in L2L), except where
everything is resident, and micro-batch-major order saves activation memory or lets recordings keep
what they need in one place.
"""

from __future__ import annotations

from workbench.methods.offload import slots, updates
from workbench.methods.offload.placement import Placement
from workbench.methods.offload.step_builder import LayerStepBuilder
from workbench.profile.profile import Profile
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, D2H, H2D, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import DEVICE, HOST_TIER, Schedule

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD


def build(
    placement: Placement,
    profile: Profile,
    *,
    budgets: dict[str, int] | None = None,
    settings: dict[str, int | float | str | bool | None] | None = None,
) -> Schedule:
    """The schedule of one step. Unit costs and sizes come from `profile`."""
    builder = LayerStepBuilder(placement, profile)
    micros = [*builder.micros]
    for together in [[micro] for micro in micros] if placement.microbatch_major else [micros]:
        _forward_pass(builder, together)
        _backward_pass(builder, together)
    if placement.clipped:
        updates.norm(builder)
    updates.finish(builder)
    return Schedule(
        name=placement.method,
        num_units=builder.num_units,
        num_microbatches=placement.microbatches,
        actions=tuple(builder.actions),
        buffers=builder.buffers,
        budgets=budgets or {},
        settings=settings or {},
    )


def _forward_pass(builder: LayerStepBuilder, micros: list[int]) -> None:
    for unit in range(builder.num_units):
        if builder.comes(unit):
            _load(builder, unit, turn=0)
        for micro in micros:
            _forward(builder, unit, micro, last=micro == micros[-1])
            if unit == builder.head:  # its logits are large: consume them at once
                _backward(builder, unit, micro)
            elif builder.stashed(unit):
                _stash(builder, unit, micro)
    if builder.head in builder.hosted:
        _gradients_out(builder, builder.head)


def _backward_pass(builder: LayerStepBuilder, micros: list[int]) -> None:
    for unit in reversed(range(builder.head)):
        if builder.leaves(unit):
            _load(builder, unit, turn=1)
        for micro in micros:
            if builder.stashed(unit):
                _fetch(builder, unit, micro)
            if not builder.keeps(unit):
                _recompute(builder, unit, micro)
            _backward(builder, unit, micro)
        if micros[-1] == builder.last_micro:
            if builder.comes(unit):
                _gradients_out(builder, unit)
            if builder.eager(unit):
                updates.update(builder, unit)
    at_once = not builder.placement.clipped and builder.head not in builder.hosted
    if at_once and micros[-1] == builder.last_micro:
        updates.update(builder, builder.head)


# -- transfers ------------------------------------------------------------------------------------


def _load(builder: LayerStepBuilder, unit: int, turn: int) -> None:
    """Bring a unit's weights into its slot, when the slot is free and they are ready."""
    slot, free = slots.weights(builder, unit, turn)
    ready = [] if turn else [updates.final(builder, unit, step=-1)]
    nbytes = builder.weight_bytes(unit)
    takes = [builder.buffer(name.weights(unit, turn), DEVICE, nbytes, slot=slot)]
    after = ready + free
    builder.add(Kind.LOAD, unit, H2D, turn=turn, after=after, nbytes=nbytes, takes=takes)


def _stash(builder: LayerStepBuilder, unit: int, micro: int) -> None:
    """Take a unit's input to the host."""
    nbytes, slot = builder.profile.units[unit].input_bytes, f"stash {unit}.{micro}"
    takes = [builder.buffer(name.host_activation(unit, micro), HOST_TIER, nbytes, slot=slot)]
    after, frees = [act(F, unit, micro)], [name.activation(unit, micro)]
    builder.add(Kind.STASH, unit, D2H, micro, after=after, nbytes=nbytes, takes=takes, frees=frees)


def _fetch(builder: LayerStepBuilder, unit: int, micro: int) -> None:
    """Bring a stashed input back."""
    nbytes = builder.profile.units[unit].input_bytes
    slot, free = slots.fetched(builder, unit, micro)
    takes = [builder.buffer(name.activation(unit, micro, 1), DEVICE, nbytes, slot=slot)]
    after, frees = [act(Kind.STASH, unit, micro), *free], [name.host_activation(unit, micro)]
    builder.add(Kind.FETCH, unit, H2D, micro, after=after, nbytes=nbytes, takes=takes, frees=frees)


def _gradients_out(builder: LayerStepBuilder, unit: int) -> None:
    """Take a unit's gradients, complete over the micro-batches, to the host."""
    nbytes, (slot, free) = builder.weight_bytes(unit), slots.host_gradients(builder, unit)
    if builder.later(unit):  # they are read until then
        free = [*free, act(Kind.MOMENTS, unit, step=-1)]
    takes = [builder.buffer(name.host_gradients(unit), HOST_TIER, nbytes, slot=slot)]
    after, uses, frees = [act(B, unit, builder.last_micro), *free], [], []
    (uses if unit in builder.hosted else frees).append(name.gradients(unit))
    builder.add(
        Kind.GRAD_OUT, unit, D2H, after=after, nbytes=nbytes, uses=uses, takes=takes, frees=frees
    )


# -- passes ---------------------------------------------------------------------------------------


def _forward(builder: LayerStepBuilder, unit: int, micro: int, *, last: bool) -> None:
    cost, keeps = builder.profile.units[unit], builder.keeps(unit)
    after, uses, takes, frees = [], [builder.weights(unit, turn=0)], [], []
    if unit in builder.placement.pulled:
        after.append(updates.final(builder, unit, step=-1))
    if unit:
        after.append(act(F, unit - 1, micro))
        uses += [] if builder.inside(unit) else [name.activation(unit, micro)]
    if builder.comes(unit):
        after.append(act(Kind.LOAD, unit))
    if unit == micro == 0:  # gradients begin anew
        after += [act(Kind.GRAD_OUT, end, step=-1) for end in sorted(builder.hosted)]
    if not builder.replayed(unit):
        scratch = cost.recompute_scratch_bytes if keeps else cost.forward_scratch_bytes
        takes.append(builder.scratch(act(F, unit, micro), scratch))
    if unit < builder.head and not builder.inside(unit + 1):
        nbytes = builder.profile.units[unit + 1].input_bytes
        takes.append(builder.buffer(name.activation(unit + 1, micro), DEVICE, nbytes))
        after += slots.before_input(builder, unit + 1, micro)
    if unit == builder.head or (keeps and cost.kept_bytes and not builder.replayed(unit)):
        takes.append(builder.buffer(name.kept(unit, micro), DEVICE, cost.kept_bytes))
    if last and builder.leaves(unit):
        frees.append(builder.weights(unit, turn=0))
    builder.add(F, unit, COMPUTE, micro, after=after, uses=uses, takes=takes, frees=frees)


def _recompute(builder: LayerStepBuilder, unit: int, micro: int) -> None:
    cost = builder.profile.units[unit]
    me, takes = act(R, unit, micro), []
    if not builder.replayed(unit):
        kept = builder.buffer(name.kept(unit, micro), DEVICE, cost.kept_bytes)
        takes = [kept, builder.scratch(me, cost.recompute_scratch_bytes)]
    after = [act(B, unit + 1, micro), *builder.ready(unit, micro)]
    uses = builder.inputs(unit, micro) + [builder.weights(unit, turn=1)]
    builder.add(R, unit, COMPUTE, micro, after=after, uses=uses, takes=takes)


def _backward(builder: LayerStepBuilder, unit: int, micro: int) -> None:
    cost, first = builder.profile.units[unit], micro == builder.micros[0]
    me = act(B, unit, micro)
    recomputed = not builder.keeps(unit)
    after = [act(R if recomputed else F, unit, micro)]
    uses = [builder.weights(unit, turn=1)]
    takes, scratch, inputs = [], cost.backward_scratch_bytes, builder.inputs(unit, micro)
    frees = [] if builder.holds_output(unit - 1) else inputs
    uses += [] if frees else inputs
    if builder.holds_output(unit):
        frees.append(name.activation(unit + 1, micro))
        scratch -= builder.profile.units[unit + 1].input_bytes
    if unit in builder.index:
        scratch += builder.weight_bytes(unit)  # on their way to the slot
        if first:
            slot, free = slots.gradients(builder, unit)
            nbytes = builder.weight_bytes(unit)
            takes.append(builder.buffer(name.gradients(unit), DEVICE, nbytes, slot=slot))
            after += free
    elif 0 < unit < builder.head:
        if first and builder.fresh_gradients(unit):  # what autograd returns is kept as it is
            takes.append(name.gradients(unit))
        else:  # on their way to where they are added up
            scratch += builder.weight_bytes(unit)
    if not (first and takes):
        uses.append(name.gradients(unit))
    if not builder.replayed(unit):
        takes.append(builder.scratch(me, scratch))
    if unit < builder.head:
        after.append(act(B, unit + 1, micro))
        frees += [] if builder.inside(unit + 1) else [name.output_gradient(unit, micro)]
    if not recomputed:
        after += builder.ready(unit, micro)
    if not builder.replayed(unit) and (cost.kept_bytes or recomputed or unit == builder.head):
        frees.append(name.kept(unit, micro))
    if unit and not builder.inside(unit):
        grad = name.output_gradient(unit - 1, micro)
        takes.append(builder.buffer(grad, DEVICE, cost.input_bytes))
    if builder.comes(unit) and micro == builder.last_micro:
        frees.append(builder.weights(unit, turn=1))
    builder.add(B, unit, COMPUTE, micro, after=after, uses=uses, takes=takes, frees=frees)
