"""Updates of a Harmony step, where they are made and when.

They run on the host (jit-update): of a pack's layers by the rank that ran it backward, of shares by
each rank for itself. Resident layers have their states on that rank's device, are updated there,
and cross no link. Updates are made as gradients arrive; where these are clipped, once the norm is
known, in the order of the next loads. What was a guess is settled in that order.
"""

from __future__ import annotations

from collections import defaultdict

from workbench.core.division import DP
from workbench.methods.harmony.packs import Task
from workbench.methods.harmony.step_builder import PackStepBuilder
from workbench.profile.unit_costs import borrowed_bytes
from workbench.schedule import buffers as name
from workbench.schedule.action import GUESS, HOST, VISIT, Kind
from workbench.schedule.action import format_name as act


def updated(builder: PackStepBuilder, unit: int) -> list[str]:
    """Actions that make a layer's weights those of this step, borrowed ones too."""
    packs, units = builder.packs, {unit, builder.sizes.owner(unit)}
    if packs.mode == DP:
        made = [(owner, rank) for owner in units for rank in range(packs.ranks)]
    else:
        backward = [task for task in packs.tasks if not task.forward]
        made = [(owner, task.rank) for task in backward for owner in units & {*task.units}]
    return [
        act(Kind.SETTLE if builder.guesses(owner) else Kind.UPDATE, owner, rank=rank, step=-1)
        for owner, rank in sorted(made)
    ]


def write(builder: PackStepBuilder, clipped: bool) -> None:
    """Add the updates of a step, and the norm that they wait for where gradients are `clipped`."""
    packs, sizes = builder.packs, builder.sizes
    made = [(t, unit) for t in packs.tasks if not t.forward for unit in reversed(t.units)]
    done: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for task, unit in made:
        done[unit].append((task.rank, _last_gradients(builder, task, unit)))
    if clipped:
        guessed = [one for one in made if builder.guesses(one[1])]
        for task, unit in guessed:
            gone = [_last_gradients(builder, task, unit)]
            _on_host(builder, Kind.UPDATE, task.rank, unit, gone, turn=GUESS)
        added = borrowed_bytes(sizes, {*range(packs.num_units)} - packs.resident)
        after = [last for ends in done.values() for _, last in ends]
        lane = HOST + ".1" if guessed else HOST
        norm = builder.add(Kind.NORM, 0, lane, after=after, nbytes=added)
        made.reverse()
    adding: dict[int, set[int]] = defaultdict(set)
    for unit in range(packs.num_units):
        adding[sizes.owner(unit)].add(unit)
    copies = {unit for borrowers in builder.borrowers.values() for unit in borrowers}
    made.sort(key=lambda one: one[1] in copies)  # what they copy is updated before
    for task, unit in made:
        rank = task.rank
        after = [norm] if clipped else [
            last for giver in sorted({unit} | adding[unit]) for other, last in done[giver]
            if giver != unit or other == rank
        ]  # fmt: skip
        if unit in packs.resident:
            _on_device(builder, rank, unit, after)
        elif builder.guesses(unit):
            after.append(act(Kind.UPDATE, unit, turn=GUESS, rank=rank))
            _on_host(builder, Kind.SETTLE, rank, unit, after)
        else:
            _on_host(builder, Kind.UPDATE, rank, unit, after)


def _on_device(builder: PackStepBuilder, rank: int, unit: int, after: list[str]) -> None:
    owner, places = builder.sizes.owner(unit), {name.weights(unit), name.states(unit)}
    if owner != unit:  # whose weights are copied once they are updated
        after.append(act(Kind.UPDATE, owner, rank=rank))
        places.add(name.weights(owner))
    uses = [builder.label(rank, place) for place in sorted(places)]
    frees = [builder.label(rank, name.gradients(unit))]
    builder.add(Kind.UPDATE, unit, VISIT, rank=rank, after=after, uses=uses, frees=frees)


def _on_host(
    builder: PackStepBuilder, kind: Kind, rank: int, unit: int, after: list[str], *, turn: int = 0
) -> None:
    uses = [name.host_weights(unit), name.host_states(unit), builder.host_gradients(rank, unit)]
    builder.add(kind, unit, HOST, rank=rank, turn=turn, after=after, uses=uses)


def _last_gradients(builder: PackStepBuilder, task: Task, unit: int) -> str:
    """The action that completes a layer's gradients where they are used."""
    if unit in builder.packs.resident:
        return act(Kind.BACKWARD, unit, len(task.micros) - 1, rank=task.rank)
    return act(Kind.GRAD_OUT, unit, rank=task.rank)
