"""One step of Harmony as a schedule of all ranks (VLDB'22, sections 3 and 4).

A task runs every micro-batch of its pack before its rank turns to the next one, so weights come
once a task. The order of tasks is the order of each rank's lanes; everything else is dependencies:

* **Weights** of a pack's layers come one by one into a ring (ring.py), as soon as what lay there is
  free: the first layer of the next pack comes while the last micro-batches of this one run. Layers
  that a rank runs last forward and first backward stay (pinned).
* **Activations** go to the next rank by message, which has places for a few micro-batches: the
  others wait where they were made. (Were the sender held up instead, a ring of ranks that are all
  in the middle of a pack would deadlock.) Those of the same rank wait in one piece of device
  memory. Inputs of backward packs are stashed on the host and fetched by the ranks that run them, a
  micro-batch ahead; a stash knows samples, not micro-batches, so forward and backward passes may
  divide the minibatch differently.
* **Gradients** add up on the device over a pack's micro-batches and leave once; in DP mode the
  ranks add theirs up first, and each takes its share to the host.
* **Updates** run on the host (jit-update): of a pack's layers by the rank that ran it backward, of
  shares by each rank for itself. Resident layers have their states on that rank's device, are
  updated there, and cross no link. With a limit on the global norm all updates wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from workbench.core.division import DP, Samples
from workbench.methods.harmony.draft import Rings
from workbench.methods.harmony.packs import Packs, Task
from workbench.methods.harmony.sheet import Sheet
from workbench.profile.unit_costs import Sizes, borrowed_bytes
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, D2H, GUESS, H2D, HOST, NET_OUT, VISIT, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.inbox import RETURNS
from workbench.schedule.schedule import DEVICE, Schedule

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD


def build(
    packs: Packs,
    sizes: Sizes,
    *,
    rings: Sequence[Rings],
    clipped: bool = True,
    guesses: bool = False,
    replay: bool = False,
    budgets: dict[str, int] | None = None,
) -> Schedule:
    """The schedule of one step.

    `rings` are those of each rank. Where gradients are `clipped`, updates wait for their norm; with
    `guesses`, those on the host are made as gradients arrive, and settled when it is known. With
    `replay`, passes of blocks are recordings. Raises ValueError where a pack is larger than its
    ring.
    """
    sheet = Sheet(packs, sizes, guesses=clipped and guesses, replay=replay)
    sheet.lay_out(rings)
    sheet.lay_replays()
    for task in packs.tasks:
        _load(sheet, task)
        for micro, span in enumerate(task.micros):
            _micro_batch(sheet, task, micro, span)
        if not task.forward:
            for unit in reversed(task.units):
                _gradients_out(sheet, task, unit)
    _update(sheet, clipped)
    sheet.lay_inboxes()
    return sheet.schedule(budgets)


def _load(sheet: Sheet, task: Task) -> None:
    """Bring the layers that are not there yet, each when its place is free and it is updated."""
    for unit in task.units:
        visit = sheet.weights(task, unit)
        if visit.first is not task:  # pinned
            continue
        nbytes = sheet.sizes.visit_bytes(unit)
        text = name.weights(unit, visit.turn)
        after = [sheet.last_use(step, other) for step, other in visit.behind]
        sheet.add(
            Kind.LOAD, unit, H2D, rank=task.rank, turn=visit.turn, nbytes=nbytes,
            after=sheet.updated(unit) + after,
            takes=[sheet.lay(
                task.rank, text, DEVICE, nbytes, slot="weights", offset=visit.offset
            )],
            uses=sheet.host_weights(unit),
        )  # fmt: skip


def _micro_batch(sheet: Sheet, task: Task, micro: int, span: Samples) -> None:
    """One micro-batch through a task: forward, or (re)forward and backward."""
    came = sheet.bring(task, micro, span)
    for unit in task.units:
        _forward(sheet, task, unit, micro, span, came)
    if task.forward:
        _pass_on(sheet, task, micro, span)
        return
    came = sheet.bring_gradient(task, micro, span)
    for unit in reversed(task.units):
        _backward(sheet, task, unit, micro, span, came)
    _pass_back(sheet, task, micro, span)


def _forward(
    sheet: Sheet, task: Task, unit: int, micro: int, span: Samples, came: list[str]
) -> None:
    """A forward pass, or in a backward task its repetition, which keeps what backward needs."""
    cost, rank, keeps = sheet.cost(unit, span), task.rank, not task.forward
    kind = F if task.forward or task.fused else R
    me, last = act(kind, unit, micro, rank=rank), micro == len(task.micros) - 1
    after = [*came] if unit == task.units.start else [act(kind, unit - 1, micro, rank=rank)]
    after.append(sheet.there(task, unit))
    source = sheet.source(task, unit, micro)
    weights = sheet.weights_label(task, unit)
    uses, frees = [label for label in (weights, source) if label], []
    scratch = cost.recompute_scratch_bytes if keeps else cost.forward_scratch_bytes
    replayed = sheet.replayed(unit)
    takes = [] if replayed else [sheet.scratch(me, rank=rank, nbytes=scratch)]
    if keeps:
        kept = 0 if replayed else cost.kept_bytes
        takes.append(sheet.lay(rank, name.kept(unit, micro), DEVICE, kept))
    _output(sheet, task, unit, micro, span, (takes, uses, after))
    if task.forward:
        if source and unit not in sheet.stashed and (last or not sheet.whole(task, source)):
            frees.append(source)
        if last and sheet.weights(task, unit).last is task:
            frees.append(weights)
    sheet.add(
        kind, unit, COMPUTE, micro, rank=rank, after=after, takes=takes, frees=frees, samples=span,
        uses=[label for label in uses if label not in frees],
    )  # fmt: skip
    if task.forward and unit in sheet.stashed:
        whole = sheet.whole(task, source)
        sheet.add(
            Kind.STASH, unit, D2H, micro, rank=rank, after=[me], samples=span,
            nbytes=sheet.input_bytes(unit, span),
            uses=[sheet.host_inputs(rank, unit), *([source] if whole and not last else [])],
            frees=[source] if last or not whole else [],
        )  # fmt: skip


def _output(
    sheet: Sheet,
    task: Task,
    unit: int,
    micro: int,
    span: Samples,
    lists: tuple[list[str], list[str], list[str]],
) -> None:
    """Where a forward pass writes: into what it takes or uses, and after what."""
    takes, uses, after = lists
    if unit + 1 in task.units:
        takes.append(sheet.activation(task, unit + 1, micro, span))
        if task.forward and unit + 1 in sheet.stashed:
            after += sheet.after_stash(task, unit + 1, micro)
    elif task.forward and sheet.following(task).rank == task.rank:
        label = name.inputs(unit + 1)
        nbytes = sheet.input_bytes(unit + 1, sheet.packs.share_of(task))
        if micro == 0:
            takes.append(sheet.lay(task.rank, label, DEVICE, nbytes))
            after += sheet.after_stashes(sheet.following(task))
        else:
            uses.append(sheet.label(task.rank, label))
    elif task.forward:
        nbytes = sheet.input_bytes(unit + 1, span)
        takes.append(sheet.lay(task.rank, name.output(unit, micro), DEVICE, nbytes))
        gone = Kind.STASH if sheet.by_host(sheet.following(task)) else Kind.SEND
        after.append(act(gone, unit + 1, micro, rank=task.rank, step=-1))


def _pass_on(sheet: Sheet, task: Task, micro: int, span: Samples) -> None:
    """The output of a pack to another rank: by message, or by the host where that divides the
    minibatch differently."""
    unit, rank, following = task.units.stop, task.rank, sheet.following(task)
    if following.rank == rank:
        return
    label = sheet.label(rank, name.output(unit - 1, micro))
    by_host = sheet.by_host(following)
    sheet.add(
        Kind.STASH if by_host else Kind.SEND, unit, D2H if by_host else NET_OUT, micro, rank=rank,
        after=[act(F, unit - 1, micro, rank=rank)],
        nbytes=sheet.input_bytes(unit, span),
        uses=[sheet.host_inputs(rank, unit)] if by_host else [],
        frees=[label],
        samples=span,
    )  # fmt: skip


def _backward(
    sheet: Sheet, task: Task, unit: int, micro: int, span: Samples, came: list[str]
) -> None:
    cost, rank = sheet.cost(unit, span), task.rank
    me, last = act(B, unit, micro, rank=rank), micro == len(task.micros) - 1
    after = [act(F if task.fused else R, unit, micro, rank=rank)]
    after += came if unit + 1 == task.units.stop else [act(B, unit + 1, micro, rank=rank)]
    weights, gradients = sheet.weights_label(task, unit), sheet.gradients_label(task, unit)
    scratch = cost.backward_scratch_bytes + sheet.sizes.fresh_bytes(unit)
    uses, takes = [weights, gradients], []
    if not sheet.replayed(unit):
        takes.append(sheet.scratch(me, rank=rank, nbytes=scratch))
    frees = [sheet.label(rank, name.kept(unit, micro))]
    if micro == 0:
        visit = sheet.gradients(task, unit)
        after += [
            act(Kind.GRAD_OUT, other.unit, rank=rank, step=step) for step, other in visit.behind
        ]
        takes.append(sheet.lay(
            rank, name.gradients(unit), DEVICE, sheet.sizes.visit_bytes(unit), slot="gradients",
            offset=visit.offset,
        ))  # fmt: skip
    for label in (sheet.source(task, unit, micro), sheet.gradient_source(task, unit, micro)):
        if label:
            (frees if last or not sheet.whole(task, label) else uses).append(label)
    if last and sheet.weights(task, unit).last is task:
        frees.append(weights)
    if last:  # to which the gradients of those are added that share its weights here
        uses += [sheet.label(rank, name.gradients(other)) for other in sheet.borrowers(unit)]
    _input_gradient(sheet, task, unit, micro, span, (takes, uses, after))
    sheet.add(
        B, unit, COMPUTE, micro, rank=rank, after=after, takes=takes, frees=frees, samples=span,
        uses=[label for label in uses if label not in (*takes, *frees)],
    )  # fmt: skip


def _input_gradient(
    sheet: Sheet,
    task: Task,
    unit: int,
    micro: int,
    span: Samples,
    lists: tuple[list[str], list[str], list[str]],
) -> None:
    """Where a backward pass writes the gradient of its input."""
    takes, uses, after = lists
    if unit == 0:
        return
    rank, nbytes = task.rank, sheet.input_bytes(unit, span)
    if unit - 1 in task.units:
        takes.append(sheet.lay(rank, name.output_gradient(unit - 1, micro), DEVICE, nbytes))
    elif sheet.following(task).rank != rank:
        takes.append(sheet.lay(rank, name.input_gradient(unit, micro), DEVICE, nbytes))
        after.append(act(Kind.SEND_GRAD, unit, micro, rank=rank, step=-1))
    elif micro == 0:
        whole = sum(sheet.input_bytes(unit, one) for one in task.micros)
        takes.append(sheet.lay(rank, name.output_gradients(unit - 1), DEVICE, whole))
        after += sheet.before_gradients(task)
    else:
        uses.append(sheet.label(rank, name.output_gradients(unit - 1)))


def _pass_back(sheet: Sheet, task: Task, micro: int, span: Samples) -> None:
    """The gradient of a pack's input to the rank of the pack before."""
    unit, rank = task.units.start, task.rank
    if unit == 0 or sheet.following(task).rank == rank:
        return
    sheet.add(
        Kind.SEND_GRAD, unit, RETURNS, micro, rank=rank,
        after=[act(B, unit, micro, rank=rank)], nbytes=sheet.input_bytes(unit, span),
        frees=[sheet.label(rank, name.input_gradient(unit, micro))], samples=span,
    )  # fmt: skip


def _gradients_out(sheet: Sheet, task: Task, unit: int) -> None:
    """A layer's gradients, complete over the micro-batches, to the host; in DP mode a share."""
    if unit in sheet.packs.resident:
        return
    rank, ranks, label = task.rank, sheet.packs.ranks, sheet.gradients_label(task, unit)
    nbytes = sheet.sizes.visit_bytes(unit)
    after = act(B, unit, len(task.micros) - 1, rank=rank)
    if sheet.packs.mode == DP and ranks > 1:
        after = sheet.add(
            Kind.REDUCE, unit, NET_OUT, rank=rank, after=[after], nbytes=nbytes, uses=[label]
        )
        nbytes = sheet.share_bytes(nbytes)
    sheet.add(
        Kind.GRAD_OUT, unit, D2H, rank=rank, after=[after], nbytes=nbytes,
        uses=[sheet.host_gradients(rank, unit)], frees=[label],
    )  # fmt: skip


def _update(sheet: Sheet, clipped: bool) -> None:
    """As gradients arrive, or where they wait for the norm in the order of the next loads; what was
    a guess is settled in that order."""
    made = [(t, unit) for t in sheet.packs.tasks if not t.forward for unit in reversed(t.units)]
    done: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for task, unit in made:
        done[unit].append((task.rank, _last_gradients(sheet, task, unit)))
    if clipped:
        for task, unit in made:
            if sheet.guesses(unit):
                gone = _last_gradients(sheet, task, unit)
                _update_on_host(sheet, Kind.UPDATE, task, unit, [gone], turn=GUESS)
        moving = {*range(sheet.packs.num_units)} - sheet.packs.resident
        added = borrowed_bytes(sheet.sizes, moving)
        lane = HOST + ".1" if any(sheet.guesses(unit) for _, unit in made) else HOST
        after = [last for ends in done.values() for _, last in ends]
        norm = sheet.add(Kind.NORM, 0, lane, after=after, nbytes=added)
        made.reverse()
    copies = {u for unit in range(sheet.packs.num_units) for u in sheet.borrowers(unit)}
    adding: dict[int, set[int]] = defaultdict(set)
    for unit in range(sheet.packs.num_units):
        adding[sheet.sizes.owner(unit)].add(unit)
    made.sort(key=lambda one: one[1] in copies)  # what they copy is updated before
    for task, unit in made:
        rank = task.rank
        after = [norm] if clipped else [
            last for giver in sorted({unit} | adding[unit]) for other, last in done[giver]
            if giver != unit or other == rank
        ]  # fmt: skip
        if unit in sheet.packs.resident:
            owner, places = sheet.sizes.owner(unit), {name.weights(unit), name.states(unit)}
            if owner != unit:  # whose weights are copied once they are updated
                after.append(act(Kind.UPDATE, owner, rank=rank))
                places.add(name.weights(owner))
            sheet.add(
                Kind.UPDATE, unit, VISIT, rank=rank, after=after,
                uses=[sheet.label(rank, place) for place in sorted(places)],
                frees=[sheet.gradients_label(task, unit)],
            )  # fmt: skip
        elif sheet.guesses(unit):
            after.append(act(Kind.UPDATE, unit, turn=GUESS, rank=rank))
            _update_on_host(sheet, Kind.SETTLE, task, unit, after)
        else:
            _update_on_host(sheet, Kind.UPDATE, task, unit, after)


def _update_on_host(
    sheet: Sheet, kind: Kind, task: Task, unit: int, after: list[str], *, turn: int = 0
) -> None:
    rank = task.rank
    uses = [name.host_weights(unit), name.host_states(unit), sheet.host_gradients(rank, unit)]
    sheet.add(kind, unit, HOST, rank=rank, turn=turn, after=after, uses=uses)


def _last_gradients(sheet: Sheet, task: Task, unit: int) -> str:
    """The action that completes a layer's gradients where they are used."""
    if unit in sheet.packs.resident:
        return act(B, unit, len(task.micros) - 1, rank=task.rank)
    return act(Kind.GRAD_OUT, unit, rank=task.rank)
