"""One training step of a layered model on one device, written down as a schedule.

Every single-device method is a choice of four things, and this builder turns the choice into
actions:

* which units are **resident** (weights, gradients and optimizer states never leave the device; the
  device updates them) and which are **streamed** (states on the host or disk, updated there);
* how many weight **slots** the streamed units share. Streamed unit k always occupies slot k mod
  slots, so the loads run ahead of compute by slots - 1 units in both directions, the last `slots`
  units stay from forward to backward pass, and a device copy is never written back: it is never
  dirty;
* what becomes of **activations**: kept, recomputed from each unit's input, or the input stashed on
  the host;
* which host updates are **eager**, run as gradients arrive, and whether gradients are **clipped**
  by their global norm, so that an update is final only when that is known (updates.py).

Two promises are kept apart, unlike in the published artifact: a slot is free as soon as compute
is done with it, while a unit's parameters are ready only after its update, which its next load
waits for. Updates that are not eager run in the order of the next forward pass and overlap it,
ahead of the loads.

Micro-batches are layer-major (all of them pass a unit while it is loaded, as in L2L), except where
everything is resident and micro-batch-major order saves activation memory.
"""

from __future__ import annotations

from workbench.methods.offload import updates
from workbench.methods.offload.draft import Draft, Layout
from workbench.profile.profile import Profile
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, D2H, H2D, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import DEVICE, HOST_TIER, Schedule

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD


def build(
    layout: Layout,
    profile: Profile,
    *,
    budgets: dict[str, int] | None = None,
    settings: dict[str, int | float | str | bool | None] | None = None,
) -> Schedule:
    """The schedule of one step. Unit costs and sizes come from `profile`."""
    draft = Draft(layout, profile)
    rounds = [[micro] for micro in draft.micros] if layout.microbatch_major else [[*draft.micros]]
    for micros in rounds:
        _forward_pass(draft, micros)
        _backward_pass(draft, micros)
    if layout.clipped:
        updates.norm(draft)
    updates.finish(draft)
    return Schedule(
        name=layout.method,
        num_units=draft.num_units,
        num_microbatches=layout.microbatches,
        actions=tuple(draft.actions),
        buffers=draft.buffers,
        budgets=budgets or {},
        settings=settings or {},
    )


def _forward_pass(draft: Draft, micros: list[int]) -> None:
    for unit in range(draft.num_units):
        if unit in draft.index:
            _load(draft, unit, turn=0)
        for micro in micros:
            _forward(draft, unit, micro, last=micro == micros[-1])
            if unit == draft.head:  # its logits are large: consume them at once
                _backward(draft, unit, micro)
            elif draft.stashed(unit):
                _stash(draft, unit, micro)


def _load(draft: Draft, unit: int, turn: int) -> None:
    """Bring a streamed unit's weights into its slot, when the slot is free and they are ready."""
    layout, k = draft.layout, draft.index[unit]
    slot = k % layout.slots
    if turn == 0:
        after = [updates.final(draft, unit, step=-1)]
        if k >= layout.slots:
            previous = draft.streamed[k - layout.slots]
            after.append(act(F, previous, draft.last_micro))
        else:
            # The unit that held the slot last in the step before is this one itself.
            after.append(act(B, unit, draft.last_micro, step=-1))
    else:
        after = [act(B, draft.streamed[k + layout.slots], draft.last_micro)]
    nbytes = draft.weight_bytes(unit)
    label = draft.buffer(name.weights(unit, turn), DEVICE, nbytes, slot=f"weights {slot}")
    draft.add(Kind.LOAD, unit, H2D, turn=turn, after=after, nbytes=nbytes, takes=[label])


def _forward(draft: Draft, unit: int, micro: int, *, last: bool) -> None:
    cost = draft.profile.units[unit]
    me = act(F, unit, micro)
    after, uses, frees = [], [draft.weights(unit, turn=0)], []
    if unit in draft.layout.pulled:
        after.append(updates.final(draft, unit, step=-1))
    if unit:
        after.append(act(F, unit - 1, micro))
        uses.append(name.activation(unit, micro))
    if unit in draft.index:
        after.append(act(Kind.LOAD, unit))
    keeps = draft.keeps(unit)
    scratch = cost.recompute_scratch_bytes if keeps else cost.forward_scratch_bytes
    takes = [] if draft.replayed(unit) else [draft.scratch(me, scratch)]
    if unit < draft.head:
        takes.append(_activation(draft, unit + 1, micro, after))
    if unit == draft.head or (keeps and cost.kept_bytes):
        takes.append(draft.buffer(name.kept(unit, micro), DEVICE, cost.kept_bytes))
    if last and unit in draft.index and draft.leaves(unit):
        frees.append(draft.weights(unit, turn=0))
    draft.add(F, unit, COMPUTE, micro, after=after, uses=uses, takes=takes, frees=frees)


def _activation(draft: Draft, unit: int, micro: int, after: list[str]) -> str:
    """The buffer of a unit's input. Of stashed ones few exist at once, so depth costs nothing."""
    label = draft.buffer(
        name.activation(unit, micro), DEVICE, draft.profile.units[unit].input_bytes
    )
    count = len(draft.micros)
    earlier = unit * count + micro - (2 * count + 1)
    if draft.stashed(unit) and earlier // count >= 1 and draft.stashed(earlier // count):
        after.append(act(Kind.STASH, earlier // count, earlier % count))
    return label


def _stash(draft: Draft, unit: int, micro: int) -> None:
    nbytes = draft.profile.units[unit].input_bytes
    kept = draft.buffer(
        name.host_activation(unit, micro), HOST_TIER, nbytes, slot=f"stash {unit}.{micro}"
    )
    draft.add(
        Kind.STASH,
        unit,
        D2H,
        micro,
        after=[act(F, unit, micro)],
        nbytes=nbytes,
        takes=[kept],
        frees=[name.activation(unit, micro)],
    )


def _backward_pass(draft: Draft, micros: list[int]) -> None:
    for unit in reversed(range(draft.head)):
        if unit in draft.index and draft.leaves(unit):
            _load(draft, unit, turn=1)
        for micro in micros:
            if draft.stashed(unit):
                _fetch(draft, unit, micro)
            if not draft.keeps(unit):
                _recompute(draft, unit, micro)
            _backward(draft, unit, micro)
        if micros[-1] == draft.last_micro:
            if unit in draft.index:
                _gradients_out(draft, unit)
            if draft.eager(unit):
                updates.update(draft, unit)
    if not draft.layout.clipped and micros[-1] == draft.last_micro:
        updates.update(draft, draft.head)


def _fetch(draft: Draft, unit: int, micro: int) -> None:
    """Bring a stashed input back, a whole unit ahead of compute."""
    count = len(draft.micros)
    ring = 2 * count
    place = (unit * count + micro) % ring
    after = [act(Kind.STASH, unit, micro)]
    for later in range(unit + 2, draft.head, 2):  # who had the place before, if anybody
        if draft.stashed(later):
            after.append(act(B, later, micro))
            break
    nbytes = draft.profile.units[unit].input_bytes
    label = name.activation(unit, micro, 1)
    draft.buffer(label, DEVICE, nbytes, slot=f"fetched {place}")
    draft.add(
        Kind.FETCH,
        unit,
        H2D,
        micro,
        after=after,
        nbytes=nbytes,
        takes=[label],
        frees=[name.host_activation(unit, micro)],
    )


def _recompute(draft: Draft, unit: int, micro: int) -> None:
    cost = draft.profile.units[unit]
    me, takes = act(R, unit, micro), []
    if not draft.replayed(unit):
        kept = draft.buffer(name.kept(unit, micro), DEVICE, cost.kept_bytes)
        takes = [kept, draft.scratch(me, cost.recompute_scratch_bytes)]
    draft.add(
        R,
        unit,
        COMPUTE,
        micro,
        after=[act(B, unit + 1, micro), *draft.ready(unit, micro)],
        uses=draft.inputs(unit, micro) + [draft.weights(unit, turn=1)],
        takes=takes,
    )


def _backward(draft: Draft, unit: int, micro: int) -> None:
    cost, first = draft.profile.units[unit], micro == draft.micros[0]
    me = act(B, unit, micro)
    recomputed = not draft.keeps(unit)
    after = [act(R if recomputed else F, unit, micro)]
    uses = [draft.weights(unit, turn=1)]
    takes, scratch, inputs = [], cost.backward_scratch_bytes, draft.inputs(unit, micro)
    frees = [] if draft.holds_output(unit - 1) else inputs
    uses += [] if frees else inputs
    if draft.holds_output(unit):
        frees.append(name.activation(unit + 1, micro))
        scratch -= draft.profile.units[unit + 1].input_bytes
    if unit in draft.index:
        scratch += draft.weight_bytes(unit)  # on their way to the slot
        if first:
            takes.append(_gradient_slot(draft, unit, after))
    elif 0 < unit < draft.head:
        if first and draft.fresh_gradients(unit):  # what autograd returns is kept as it is
            takes.append(name.gradients(unit))
        else:  # on their way to where they are added up
            scratch += draft.weight_bytes(unit)
    if not (first and takes):
        uses.append(name.gradients(unit))
    if not draft.replayed(unit):
        takes.append(draft.scratch(me, scratch))
    if unit < draft.head:
        after.append(act(B, unit + 1, micro))
        frees.append(name.output_gradient(unit, micro))
    if not recomputed:
        after += draft.ready(unit, micro)
    if not draft.replayed(unit) and (cost.kept_bytes or recomputed or unit == draft.head):
        frees.append(name.kept(unit, micro))
    if unit:
        grad = name.output_gradient(unit - 1, micro)
        takes.append(draft.buffer(grad, DEVICE, cost.input_bytes))
    if unit in draft.index and micro == draft.last_micro:
        frees.append(draft.weights(unit, turn=1))
    draft.add(B, unit, COMPUTE, micro, after=after, uses=uses, takes=takes, frees=frees)


def _gradient_slot(draft: Draft, unit: int, after: list[str]) -> str:
    """A device gradient buffer, once the unit that had it has left for the host."""
    slots, k = draft.layout.gradient_slots, draft.index[unit]
    if k + slots < len(draft.streamed):
        after.append(act(Kind.GRAD_OUT, draft.streamed[k + slots]))
    else:
        wrapped = k % slots
        after.append(act(Kind.GRAD_OUT, draft.streamed[wrapped], step=-1))
    nbytes = draft.weight_bytes(unit)
    label = name.gradients(unit)
    return draft.buffer(label, DEVICE, nbytes, slot=f"gradients {k % slots}")


def _gradients_out(draft: Draft, unit: int) -> None:
    layout, k = draft.layout, draft.index[unit]
    nbytes = draft.weight_bytes(unit)
    after = [act(B, unit, draft.last_micro)]
    ring = layout.host_gradient_slots or len(draft.streamed)
    if layout.host_gradient_slots:
        if k + ring < len(draft.streamed):
            after.append(act(Kind.UPDATE, draft.streamed[k + ring]))
        else:
            after.append(act(Kind.UPDATE, draft.streamed[k % ring], step=-1))
    slot = f"host gradients {k % ring}"
    label = draft.buffer(name.host_gradients(unit), HOST_TIER, nbytes, slot=slot)
    draft.add(
        Kind.GRAD_OUT,
        unit,
        D2H,
        after=after,
        nbytes=nbytes,
        takes=[label],
        frees=[name.gradients(unit)],
    )
