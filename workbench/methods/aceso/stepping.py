"""Steps of a plan in one process: a stage's operators, divided as the plan says, in 1F1B.

A unit of the schedule is a stage, and its rank the stage's place, which any number of processes
share: all of them walk its lanes in one order. What they are to each other, transport, exchanges
and sums know (runtime/transport, runtime/updates); the schedule, its proof and the engine do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.core.division import divide
from workbench.core.spec import RunSpec
from workbench.methods.aceso.plan import Plan, Stage
from workbench.methods.aceso.stage_times import StageTimes
from workbench.methods.pipeline.orders import lists
from workbench.methods.pipeline.stage_lines import stage_schedule
from workbench.model.base import Context, LayeredModel
from workbench.model.operators.places import places
from workbench.runtime.executor.executor import Executor
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.passes.layer_stage import LayerStage
from workbench.runtime.passes.shard_ends import Crossing, crossings
from workbench.runtime.passes.shard_stage import TARGETS, Key, MicroRows, ShardStage
from workbench.runtime.passes.stage_engine import MicroBatch, StageEngine
from workbench.runtime.passes.stage_recordings import RecordedPasses
from workbench.runtime.passes.statistics import added, clones
from workbench.runtime.passes.template import compiles
from workbench.runtime.protocols import OutsideUpdates
from workbench.runtime.transport.groups import new_group, tensors_of_all
from workbench.runtime.transport.neighbours import linked
from workbench.runtime.transport.shard_transport import ShardTransport, pairs
from workbench.runtime.transport.stage_groups import StageGroups
from workbench.runtime.updates.shard_states import ShardStatesTogether
from workbench.runtime.updates.shard_updates import ShardUpdates, SplitUpdates, TorchUpdates
from workbench.runtime.updates.shard_weights import Part, ShardWeights, parts_of
from workbench.runtime.updates.step_end import Ended, agree
from workbench.schedule.action import Action
from workbench.schedule.validate import validate

ABANDON_S = 2.0
"""How long a lane may wait for another process after a failure in this one."""


class StepRows(NamedTuple):
    """Rows of a step, on the host."""

    inputs: Sequence[Tensor]
    targets: Tensor
    counts: Sequence[int] | None
    """Labels of each row that count in the loss; None where all do, and rows have as many."""


class Setting(NamedTuple):
    """What the plan says of an operator."""

    tp: int
    dp: int
    algo: int
    recompute: bool


def settings_of(stage: Stage) -> list[Setting]:
    """What a plan says of a stage's operators."""
    each = zip(stage.tp, stage.dp, stage.algo, map(bool, stage.recompute), strict=True)
    return [Setting(*one) for one in each]


def places_of(plan: Plan) -> list[str]:
    """Where in a step a process may be: in each operator's passes, or at the step's end."""
    names, found = [each.name for each in plan.subject.operators().operators], []
    for index, (start, end) in enumerate(pairwise(plan.starts)):
        found += [
            f"the {which} pass of operator {at - start} of stage {index} ({names[at]})"
            for at in range(start, end) for which in ("forward", "backward")
        ]  # fmt: skip
    return [*found, "the sums and the update at the end of a step"]


class PlanStepping:
    """The shards of one process; every process of the world makes it and calls its methods."""

    def __init__(
        self, spec: RunSpec, plan: Plan, model: LayeredModel, weights: Callable[[Key], Tensor], *,
        device: torch.device, dtype: torch.dtype, still: Collection[str] | None = None,
        turn: Callable[[int], None] = lambda number: None,
    ) -> None:  # fmt: skip
        """`weights` gives the initial ones of the model; `still` names those that do not decay, by
        default the model's rule says. `turn` is told where this process is, by the numbers of
        `places_of` from 1 on."""
        self._spec, self.model, self.device = spec, model, device
        self._turn, self._operators = turn, plan.starts[-1]
        self.meter = device_meter(device, spec.device_memory)
        self.times = StageTimes(device)
        """Times of the last step."""
        self._micros = [range(*span) for span in divide((0, plan.subject.batch), plan.micro)]
        """Rows of each micro-batch; the last may have fewer."""
        self.everybody = everybody = new_group(backend="gloo")
        new = partial(new_group, backend=dist.get_backend())
        settings = [settings_of(stage) for stage in plan.stages]
        grids = [{each.tp for each in own} for own in settings]
        widths = [stage.gpus for stage in plan.stages]
        rank = dist.get_rank()
        self._groups = groups = StageGroups(grids, widths, rank, new)
        cuts = zip(plan.starts[1:-1], settings, settings[1:], strict=False)
        ends, own = self._between(plan, [(at, a[-1], b[0]) for at, a, b in cuts]), groups.stage
        self._ends: list[list[Crossing]] = [[], *ends, []]
        """Tensors into each stage, and out of the last."""
        with self.meter:
            self.stage = self._made(plan, settings[own], weights, dtype)
        self.parts = parts = self._all_parts(plan, settings)
        names = {part.key: part.name for part in parts}

        def decays(part: Part) -> bool:
            return model.decays(*part.key) if still is None else names[part.owner] not in still

        self.weights = ShardWeights(self.stage, parts, groups, new, self.meter.zeros, decays)
        if dtype.itemsize == 2:
            self._updates: ShardUpdates = SplitUpdates(spec, self.weights, self.meter)
        else:
            decaying = {part.name for part in self.weights.parts if decays(part)}
            self._updates = TorchUpdates(spec, self.weights, decaying, device)
        self.holder = ShardStatesTogether(
            self.weights, parts, self._updates, groups, everybody, names,
            over=everybody, lead=groups.ranks(len(widths) - 1)[0],
        )  # fmt: skip
        schedule = stage_schedule(spec.method, lists("1f1b", len(widths), len(self._micros)))
        if rank == 0:
            validate(schedule)
        self._passes = RecordedPasses({own: self.stage}, most=len(widths) - own)
        self._engine = StageEngine(
            {own: self.stage}, self._passes, self.weights.gradients, int, OutsideUpdates()
        )
        backend = "nccl" if "nccl" in dist.get_backend() else "gloo"
        exchanging = pairs(self._ends, groups.ranks, {*map(len, self._micros)})
        channels = linked(exchanging, rank, backend, everybody, device)
        self._engine.transport = ShardTransport(
            channels, everybody, crossings=self._ends.__getitem__, ranks=groups.ranks, rank=rank,
            forms=self._engine.forms, device=device,
            samples=lambda action, step: len(self._micros[action.microbatch]),
        )  # fmt: skip
        self._engine.transport.use(schedule)
        self._executor = Executor(
            schedule, self._perform, device, rank=own, record_from=spec.steps - 1,
            announce=self._announce, together=backend == "nccl", abandon_s=ABANDON_S,
            on_failure=lambda _: self._engine.transport.stop(),
        )  # fmt: skip
        last = groups.stage == len(widths) - 1
        self._tells_loss = last and groups.process % settings[-1][-1].tp == 0
        self._teller = rank == groups.ranks(len(widths) - 1)[0]

    def _between(
        self, plan: Plan, ends: Sequence[tuple[int, Setting, Setting]]
    ) -> list[list[Crossing]]:
        """What crosses each boundary: before an operator, between two settings."""
        operators = plan.subject.operators()
        where = places(operators, self._spec.model)
        return [crossings(operators, where, *each) for each in ends]

    def _made(
        self, plan: Plan, settings: Sequence[Setting], weights: Callable[[Key], Tensor],
        dtype: torch.dtype,
    ) -> ShardStage | LayerStage:  # fmt: skip
        """This process's stage, with its weights."""
        spec, operators, own = self._spec, plan.subject.operators(), self._groups.stage
        stage = ShardStage(
            operators, places(operators, spec.model), self.model, spec.model,
            first=plan.starts[own], settings=settings, came=self._ends[own],
            goes=self._ends[own + 1], groups=self._groups, device=self.device, dtype=dtype,
            fuses=spec.options.fused, compiled=compiles(spec.compile, self.device.type, dtype),
            turn=lambda operator, backward: self._turn(1 + 2 * operator + backward),
        )  # fmt: skip
        stage.draw(weights, dtype if dtype.itemsize > 2 else torch.float32)
        return stage

    def _all_parts(self, plan: Plan, settings: Sequence[Sequence[Setting]]) -> list[Part]:
        """All parameters of the model."""
        operators = plan.subject.operators()
        where = places(operators, self._spec.model)
        return parts_of(operators, where, self.model, self._spec.model, settings)

    def _weigh(self, counts: Sequence[float] | None, weight: float) -> float:
        """What this process's loss of a micro-batch counts, of a `weight` in all, where rows count
        so: it is a part of the micro-batch's own mean."""
        return weight

    def step(self, step: int, samples: Sequence[int], read: Callable[[], StepRows]) -> Ended:
        """A step on a batch, whose rows have these numbers, and which `read` gives: passes, sums,
        and updates unless gradients are not finite. Raises ValueError for a micro-batch of which no
        label counts."""
        self.times.on = step == self._spec.steps - 1
        kept = clones(self.stage.statistics())
        with self.times.of("batch-generator"):
            weight = self._begin(step, samples, read)
        self._executor.run(step, 1)
        if (apart := self._passes.new_bytes()) is not None:
            self.meter.set_apart(apart)
        self._turn(1 + 2 * self._operators)
        self.stage.end(step)
        losses, _ = self._engine.end(step).mean_loss()
        with self.times.of("backward-params-all-reduce"):
            self.weights.add_up()
        ended = agree(
            self.weights.gradients, (), losses=losses if self._tells_loss else 0.0,
            weight=weight if self._teller else 0.0, first=True, wanted=False, scale=1.0,
            nominal=weight, clip=None if self._updates.clips else self._spec.clip,
            everybody=self.everybody, counted=self.weights.counted,
        )  # fmt: skip
        if ended.overflow:
            self.take_up(kept)
        else:
            with self.meter, self.times.of("optimizer"):
                self._updates.step(step, ended.norm)
        return ended

    def _begin(self, step: int, samples: Sequence[int], read: Callable[[], StepRows]) -> float:
        """Take a step's rows, of which each operator takes its row of processes' share. Returns the
        weight of all."""
        (inputs, targets, counts), rows, micros, whole = read(), [], [], 0.0
        named = {str(number): tensor for number, tensor in enumerate(inputs)} | {TARGETS: targets}
        for name, each in named.items():
            kind = self.stage.dtype if each.is_floating_point() else each.dtype
            named[name] = each.to(self.device, kind)
        for span in self._micros:
            own = {name: each[span.start : span.stop] for name, each in named.items()}
            part = tuple(samples[span.start : span.stop])
            weight = len(part) if counts is None else sum(counts[span.start : span.stop])
            if not weight:
                raise ValueError(
                    f"no label counts in rows {span.start} to {span.stop - 1}, a micro-batch of "
                    "the plan; leave out rows without labels, or mix them among others"
                )
            every = counts is None or weight == own[TARGETS].numel()
            ctx = Context(seed=self._spec.seed, step=step, unit=0, samples=part)
            rows.append(MicroRows(own, ctx, None if every else weight))
            here = None if counts is None else counts[span.start : span.stop]
            micros.append(MicroBatch(samples=part, weight=self._weigh(here, float(weight))))
            whole += weight
        self.stage.begin(step, rows)
        self._engine.begin(step, micros, 1 / whole)
        return whole

    def statistics(self) -> dict[str, Tensor]:
        """Running ones of all norms, as copies on the host, in every process."""
        own = {} if self._groups.process else self.stage.statistics()
        return added(tensors_of_all(own, self.everybody))

    def take_up(self, statistics: Mapping[str, Tensor]) -> None:
        """Have other running statistics."""
        for name, value in self.stage.statistics().items():
            value.copy_(statistics[name])

    def _perform(self, action: Action, step: int) -> None:
        with self.meter:
            self._engine.perform(action, step)

    def _announce(self, action: Action, step: int) -> None:
        with self.meter:
            self._engine.transport.announce(action, step)

    def save_times(self, folder: Path) -> None:
        """Write where this process's last step went."""
        self.times.take(self._executor.events)
        self.times.save(
            folder, batch=self._spec.batch, stage=self._groups.stage, rank=dist.get_rank(),
            peak=self.meter.peak or 0,
        )  # fmt: skip

    def stop(self) -> None:
        """Have nothing wait any more."""
        self._executor.stop()
        self._engine.transport.stop()

    def forget(self) -> None:
        """Let go of what a step that failed has left."""
        self._engine.forget()

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        self._executor.close()
        self._engine.close()
        self.meter.close()
