"""When units are updated: as gradients arrive, or in the order of the next forward pass.

Exact global clipping needs every gradient before any update. Deferred updates then run in the
order in which the next forward pass needs the units, beside that pass. States on the disk come
through a ring of staging slots, read ahead and written behind.
"""

from __future__ import annotations

from workbench.methods.draft import Draft
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, DISK_IN, DISK_OUT, HOST, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import DISK, HOST_TIER


def norm(draft: Draft) -> None:
    last = act(Kind.BACKWARD, 0, draft.last_micro)
    draft.add(Kind.NORM, 0, COMPUTE, after=[last])


def deferred_updates(draft: Draft) -> None:
    """The order of the next forward pass: whoever is needed soonest is updated first."""
    for unit in range(draft.num_units):
        update(draft, unit)


def update(draft: Draft, unit: int) -> None:
    layout = draft.layout
    after = [act(Kind.NORM, 0)] if layout.deferred else []
    if unit in layout.resident:
        after.append(act(Kind.BACKWARD, unit, draft.last_micro))
        uses = [name.weights(unit), name.gradients(unit), name.states(unit)]
        draft.add(Kind.UPDATE, unit, COMPUTE, after=after, uses=uses)
        return
    k = draft.index[unit]
    worker = k % layout.host_workers
    after.append(act(Kind.GRAD_OUT, unit))
    uses, on_disk = [name.host_weights(unit)], layout.optimizer_tier == DISK
    if on_disk:
        _read(draft, unit)
        after.append(act(Kind.READ, unit))
        uses.append(name.host_states(unit))
    else:
        uses.append(name.host_states(unit))
    draft.add(
        Kind.UPDATE,
        unit,
        HOST + (f".{worker}" if worker else ""),
        after=after,
        uses=uses,
        frees=[name.host_gradients(unit)],
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


def _read(draft: Draft, unit: int) -> None:
    """States from the disk into a staging slot, in the order of the updates."""
    layout, k = draft.layout, draft.index[unit]
    order = k if layout.deferred else len(draft.streamed) - 1 - k
    slots = layout.staging_slots
    after = [act(Kind.SPILL, unit, step=-1)]
    if order >= slots:
        earlier = order - slots
        before = earlier if layout.deferred else len(draft.streamed) - 1 - earlier
        after.append(act(Kind.SPILL, draft.streamed[before]))
    else:
        last = order + (len(draft.streamed) - 1 - order) // slots * slots
        before = last if layout.deferred else len(draft.streamed) - 1 - last
        after.append(act(Kind.SPILL, draft.streamed[before], step=-1))
    label = name.host_states(unit)
    nbytes = draft.state_bytes(unit)
    draft.buffer(label, HOST_TIER, nbytes, slot=f"staging {order % slots}")
    draft.add(Kind.READ, unit, DISK_IN, after=after, nbytes=nbytes, takes=[label])
