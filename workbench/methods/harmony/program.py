"""One step of Harmony as a schedule of all ranks (VLDB'22, sections 3 and 4).

A task runs every micro-batch of its pack before its rank turns to the next one, so weights come
once a task. The order of tasks (packs.py) is the order of each rank's lanes; everything else is
dependencies:

* **Weights** of a pack's layers come one by one into a ring (visits.py), as soon as what lay there
  is free: the first layer of the next pack comes while the last micro-batches of this one run.
  Layers that a rank runs last forward and first backward stay (pinned).
* **Activations** go from task to task by message, in device memory or through the host (flows.py).
* **Gradients** add up on the device over a pack's micro-batches and leave once; in DP mode the
  ranks add theirs up first, and each takes its share to the host.
* **Updates** run on the host, and those of resident layers on their device (updates.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.core.division import DP
from workbench.methods.harmony import updates
from workbench.methods.harmony.flows import Flows
from workbench.methods.harmony.packs import Packs, Task
from workbench.methods.harmony.step_builder import MicroBatch, PackStepBuilder
from workbench.methods.harmony.visits import Rings
from workbench.profile.unit_costs import Sizes, host_weights
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, D2H, H2D, NET_OUT, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import Schedule

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
    builder = PackStepBuilder(packs, sizes, rings, guesses=clipped and guesses, replay=replay)
    program = Program(builder)
    for task in packs.tasks:
        program.write(task)
    updates.write(builder, clipped)
    program.flows.lay_inboxes()
    return Schedule(
        name=f"harmony-{packs.mode}",
        num_units=packs.num_units,
        num_microbatches=1 + max(action.microbatch or 0 for action in builder.actions),
        num_ranks=packs.ranks,
        actions=tuple(builder.actions),
        buffers=builder.buffers,
        budgets=budgets or {},
        settings={
            "mode": packs.mode,
            "forward_size": packs.forward_size,
            "backward_size": packs.backward_size,
            "forward_packs": " ".join(str(len(pack)) for pack in packs.forward),
            "backward_packs": " ".join(str(len(pack)) for pack in packs.backward),
            "mirrored": packs.mirrored,
            "resident": len(packs.resident),
        },
    )


class Program:
    """Writes the tasks of one step."""

    def __init__(self, builder: PackStepBuilder) -> None:
        self.builder, self.flows = builder, Flows(builder)

    def write(self, task: Task) -> None:
        """A task: its layers come, its micro-batches pass, its gradients leave."""
        self._load(task)
        for number, span in enumerate(task.micros):
            self._pass(MicroBatch(task, number, span))
        if not task.forward:
            for unit in reversed(task.units):
                self._gradients_out(task, unit)

    def _pass(self, micro: MicroBatch) -> None:
        """One micro-batch through a task: forward, or (re)forward and backward."""
        task, flows = micro.task, self.flows
        came = flows.bring(micro)
        for unit in task.units:
            self._forward(micro, unit, came)
        if task.forward:
            flows.pass_on(micro)
            return
        came = flows.bring_gradient(micro)
        for unit in reversed(task.units):
            self._backward(micro, unit, came)
        flows.pass_back(micro)

    # -- weights and gradients ------------------------------------------------------------------

    def _load(self, task: Task) -> None:
        """Bring the layers that are not there yet, each when its place is free and it is
        updated."""
        builder, rank = self.builder, task.rank
        for unit in task.units:
            visit = builder.visits.weights[task, unit]
            if visit.first is not task:  # pinned
                continue
            nbytes, text = builder.sizes.visit_bytes(unit), name.weights(unit, visit.turn)
            after = updates.updated(builder, unit)
            for step, gone in visit.behind:
                kind, last = F if gone.last.forward else B, len(gone.last.micros) - 1
                after.append(act(kind, gone.unit, last, rank=rank, step=step))
            builder.add(
                Kind.LOAD, unit, H2D, rank=rank, turn=visit.turn, nbytes=nbytes, after=after,
                takes=[builder.lay(rank, text, nbytes, slot="weights", offset=visit.offset)],
                uses=host_weights(builder.sizes, unit),
            )  # fmt: skip

    def _there(self, task: Task, unit: int) -> str:
        """The action that brings a layer's weights, or that updates them in their place."""
        visit = self.builder.visits.weights[task, unit]
        if visit.first is None:
            return act(Kind.UPDATE, unit, rank=task.rank, step=-1)
        return act(Kind.LOAD, unit, turn=visit.turn, rank=task.rank)

    def _gradients_out(self, task: Task, unit: int) -> None:
        """A layer's gradients, complete over the micro-batches, to the host; in DP mode a share."""
        builder, packs, rank = self.builder, self.builder.packs, task.rank
        if unit in packs.resident:
            return
        label = builder.label(rank, name.gradients(unit))
        after = act(B, unit, len(task.micros) - 1, rank=rank)
        if packs.mode == DP and packs.ranks > 1:
            nbytes = builder.sizes.visit_bytes(unit)
            after = builder.add(
                Kind.REDUCE, unit, NET_OUT, rank=rank, after=[after], nbytes=nbytes, uses=[label]
            )
        nbytes, uses = builder.share_bytes(unit), [builder.host_gradients(rank, unit)]
        builder.add(
            Kind.GRAD_OUT, unit, D2H, rank=rank, after=[after], nbytes=nbytes, uses=uses,
            frees=[label],
        )  # fmt: skip

    # -- passes -----------------------------------------------------------------------------------

    def _forward(self, micro: MicroBatch, unit: int, came: list[str]) -> None:
        """A forward pass, or in a backward task its repetition, which keeps what backward needs."""
        builder, flows, task = self.builder, self.flows, micro.task
        cost, keeps = builder.cost(unit, micro.span), not task.forward
        kind = F if task.forward or task.fused else R
        after = [*came] if unit == task.units.start else [micro.act(kind, unit - 1)]
        weights, source = builder.weights(task, unit), flows.source(micro, unit)
        takes = []
        if not builder.replayed(unit):
            nbytes = cost.recompute_scratch_bytes if keeps else cost.forward_scratch_bytes
            takes.append(builder.scratch(micro.act(kind, unit), nbytes, rank=micro.rank))
        if keeps:
            kept = 0 if builder.replayed(unit) else cost.kept_bytes
            takes.append(builder.lay(micro.rank, name.kept(unit, micro.number), kept))
        made, written, waits = flows.output(micro, unit)
        stashed, frees = unit in builder.stashed, []
        if task.forward and source and not stashed and flows.done_with(micro, source):
            frees.append(source)
        if task.forward and builder.frees_weights(micro, unit):
            frees.append(weights)
        reads = [label for label in (weights, source, *written) if label and label not in frees]
        builder.run(
            kind, unit, COMPUTE, micro, after=[*after, self._there(task, unit), *waits],
            takes=[*takes, *made], uses=reads, frees=frees,
        )  # fmt: skip
        if task.forward and stashed:
            flows.stash(micro, unit)

    def _backward(self, micro: MicroBatch, unit: int, came: list[str]) -> None:
        builder, flows, task, rank = self.builder, self.flows, micro.task, micro.rank
        cost, ends = builder.cost(unit, micro.span), unit + 1 == task.units.stop
        after = [micro.act(F if task.fused else R, unit)]
        after += came if ends else [micro.act(B, unit + 1)]
        weights, gradients = builder.weights(task, unit), builder.label(rank, name.gradients(unit))
        takes, uses = [], [weights, gradients]
        if not builder.replayed(unit):
            nbytes = cost.backward_scratch_bytes + builder.sizes.fresh_bytes(unit)
            takes.append(builder.scratch(micro.act(B, unit), nbytes, rank=rank))
        if micro.first:
            visit = builder.visits.gradients[task, unit]
            after += [act(Kind.GRAD_OUT, v.unit, rank=rank, step=step) for step, v in visit.behind]
            nbytes, place = builder.sizes.visit_bytes(unit), visit.offset
            text = name.gradients(unit)
            takes.append(builder.lay(rank, text, nbytes, slot="gradients", offset=place))
        frees = [builder.label(rank, name.kept(unit, micro.number))]
        for label in (flows.source(micro, unit), flows.gradient_source(micro, unit)):
            if label:
                (frees if flows.done_with(micro, label) else uses).append(label)
        if builder.frees_weights(micro, unit):
            frees.append(weights)
        if micro.last:  # to which the gradients of those are added that share its weights here
            sharing = builder.borrowers.get(unit, [])
            uses += [builder.label(rank, name.gradients(other)) for other in sharing]
        made, written, waits = flows.input_gradient(micro, unit)
        takes += made
        builder.run(
            B, unit, COMPUTE, micro, after=[*after, *waits], takes=takes, frees=frees,
            uses=[label for label in (*uses, *written) if label not in (*takes, *frees)],
        )  # fmt: skip
