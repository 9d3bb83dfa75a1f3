"""A run of a plan: in each process a stage's operators, divided as the plan says, in 1F1B.

A unit of the schedule is a stage, and its rank the stage's place, which any number of processes
share: all of them walk its lanes in one order. What they are to each other, transport, exchanges
and sums know (runtime/transport, runtime/updates); the schedule, its proof and the engine do not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from workbench.core.division import divide
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.aceso.options import check, narrowed, plan_of
from workbench.methods.aceso.plan import Stage
from workbench.methods.pipeline.orders import lists
from workbench.methods.pipeline.stepping import stage_schedule
from workbench.model import make_model
from workbench.model.base import Context
from workbench.model.operators.places import places
from workbench.runtime.executor.executor import Executor, Perturb
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.shard_ends import Crossing, crossings
from workbench.runtime.passes.shard_stage import MicroRows, ShardStage
from workbench.runtime.passes.stage_engine import MicroBatch, StageEngine
from workbench.runtime.passes.stage_passes import StagePasses
from workbench.runtime.passes.statistics import added
from workbench.runtime.protocols import OutsideUpdates
from workbench.runtime.transport.groups import new_group, tensors_of_all
from workbench.runtime.transport.shard_transport import ShardTransport
from workbench.runtime.transport.stage_groups import StageGroups
from workbench.runtime.updates.shard_states import ShardStatesTogether
from workbench.runtime.updates.shard_weights import ShardWeights, parts_of
from workbench.runtime.updates.stage_updates import adamw
from workbench.runtime.updates.step_end import agree
from workbench.schedule.action import Action
from workbench.schedule.validate import validate
from workbench.training import trained_ranks
from workbench.training.history import History, check_start
from workbench.training.run import check_data, load_batches, resolve_device

ABANDON_S = 2.0
"""How long a lane may wait for another process after a failure in this one."""


class Setting(NamedTuple):
    """What the plan says of an operator."""

    tp: int
    dp: int
    algo: int
    recompute: bool


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train the spec's plan; the first process of the last stage tells of the steps. Raises
    ValueError for a plan that cannot be trained, OutOfMemory past a device's budget, RankFailed."""
    plan = plan_of(spec.options.plan, folder.parents[1])
    check(plan, spec.ranks)
    if narrowed(plan, spec) != plan:
        raise ValueError("the plan is of another model or batch than the run's")
    check_start(spec, folder, check_data(spec, report, folder))
    teller = plan.gpus - plan.stages[-1].gpus
    return trained_ranks.train("workbench.methods.aceso.run", spec, report, folder, teller=teller)


@contextmanager
def training(spec: RunSpec, report: Reporter, folder: Path) -> Iterator[PlanTraining]:
    """In a rank's process: the training of its shards."""
    made = PlanTraining(spec, report, folder)
    try:
        yield made
    finally:
        made.close()


def settings_of(stage: Stage) -> list[Setting]:
    """What a plan says of a stage's operators."""
    each = zip(stage.tp, stage.dp, stage.algo, map(bool, stage.recompute), strict=True)
    return [Setting(*one) for one in each]


class PlanTraining:
    """The shards of one process."""

    def __init__(
        self, spec: RunSpec, report: Reporter, folder: Path, perturb: Perturb | None = None
    ) -> None:
        self._spec, self._report = spec, report
        self.plan = plan = plan_of(spec.options.plan, folder.parents[1])
        self._device = device = resolve_device(spec.device)
        self._meter = device_meter(device, spec.device_memory)
        self.model = model = make_model(spec.model, spec.seed)
        self._batches = load_batches(spec, model, folder / "cache")
        self.history = History(spec, folder, self._batches, model=model)
        self._micros = [range(*span) for span in divide((0, spec.batch), plan.micro)]
        """Rows of each micro-batch; the last may have fewer."""
        self._everybody = everybody = new_group(backend="gloo")
        new = partial(new_group, backend=dist.get_backend())
        settings = [settings_of(stage) for stage in plan.stages]
        grids = [{each.tp for each in own} for own in settings]
        widths = [stage.gpus for stage in plan.stages]
        rank = dist.get_rank()
        self._groups = groups = StageGroups(grids, widths, rank, new)
        report.phase("making the stages")
        operators = plan.subject.operators()
        where = places(operators, spec.model)
        ends = [
            crossings(operators, where, at, front[-1], behind[0])
            for at, front, behind in zip(plan.starts[1:-1], settings, settings[1:], strict=False)
        ]
        self._ends: list[list[Crossing]] = [[], *ends, []]
        """Tensors into each stage, and out of the last."""
        own, dtype = groups.stage, DTYPES[spec.dtype]
        self.stage = ShardStage(
            operators, where, model, spec.model, first=plan.starts[own], settings=settings[own],
            came=self._ends[own], goes=self._ends[own + 1], groups=groups, device=device,
            dtype=dtype, fused=spec.options.fused,
        )  # fmt: skip
        self._precise = precise = dtype if dtype.itemsize > 2 else torch.float32
        with self._meter:
            self.stage.draw(spec.seed, precise)
        self.parts = parts = parts_of(operators, where, model, spec.model, settings)
        self.weights = ShardWeights(
            self.stage, parts, groups, new, lambda count: self._meter.zeros(count, precise)
        )
        decaying = {p.name for p in self.weights.parts if model.decays(*p.key)}
        self.optimizer = adamw(spec, self.weights.named, decaying, device)
        names = {part.key: part.name for part in parts}
        self.holder = ShardStatesTogether(
            self.weights, parts, self.optimizer, groups, everybody, names,
            over=everybody, lead=groups.ranks(len(widths) - 1)[0],
        )  # fmt: skip
        self._schedule = made = stage_schedule(
            spec.method, lists("1f1b", len(widths), len(self._micros))
        )
        if rank == 0:
            validate(made)
        self._engine = StageEngine(
            {own: self.stage}, StagePasses({own: self.stage}), self.weights.gradients, int,
            OutsideUpdates(),
        )  # fmt: skip
        self._engine.transport = ShardTransport(
            everybody, crossings=self._ends.__getitem__, ranks=groups.ranks, rank=rank,
            forms=self._engine.forms, device=device,
            samples=lambda action, step: len(self._micros[action.microbatch]),
        )  # fmt: skip
        self._engine.transport.use(made)
        self._executor = Executor(
            made, self._perform, device, rank=own, perturb=perturb, record_from=spec.steps,
            announce=self._announce, together=dist.get_backend() == "nccl", abandon_s=ABANDON_S,
            on_failure=lambda _: self._engine.transport.stop(),
        )  # fmt: skip
        last = groups.stage == len(widths) - 1
        self._tells_loss = last and groups.process % settings[-1][-1].tp == 0
        self._teller = rank == groups.ranks(len(widths) - 1)[0]

    def run(self) -> None:
        """All steps that are left."""
        spec, history = self._spec, self.history
        first, statistics = history.resume(self.holder, self._report), self.stage.statistics()
        if first:
            for name, value in statistics.items():
                value.copy_(history.statistics[name])
        for step in range(first, spec.steps):
            self._step(step)
            if history.pauses_at(step + 1):
                done = step + 1 - len(history.skipped)
                own = {} if self._groups.process else statistics
                found = added(tensors_of_all(own, self._everybody))
                self.holder.save(
                    partial(history.pause, step + 1, done, self.holder, self._report, found)
                )

    def _step(self, step: int) -> None:
        spec, began = self._spec, time.monotonic()
        weight = self._begin(step)
        self._executor.run(step, 1)
        self.stage.end(step)
        losses, _ = self._engine.end(step).mean_loss()
        self.weights.add_up()
        ended = agree(
            self.weights.gradients, (), losses=losses if self._tells_loss else 0.0,
            weight=weight if self._teller else 0.0, first=True, wanted=False, scale=1.0,
            nominal=weight, clip=spec.clip, everybody=self._everybody,
            counted=self.weights.counted,
        )  # fmt: skip
        if not ended.overflow:
            for group in self.optimizer.param_groups:
                group["lr"] = spec.learning_rate(step)
            with self._meter:
                self.optimizer.step()
        seconds = time.monotonic() - began
        skipped = ended.overflow
        self.history.ended(
            step, ended.loss, seconds, ended.norm, skipped=skipped, report=self._report
        )

    def _begin(self, step: int) -> float:
        """Read a step's rows, of which each operator takes its row of processes' share. Returns the
        weight of all: the labels that count, or samples where all have as many."""
        spec, batches = self._spec, self._batches
        samples, rows, micros = batches.samples(step), [], []
        for span in self._micros:
            part = samples[span.start : span.stop]
            *inputs, targets = batches.rows(part)
            counted = sum(self.model.counted(targets))
            labels = counted if self.model.counts_differ else None
            ctx = Context(seed=spec.seed, step=step, unit=0, samples=tuple(part))
            inputs = tuple(
                each.to(self._device, self._precise if each.is_floating_point() else each.dtype)
                for each in inputs
            )
            rows.append(MicroRows(inputs, targets.to(self._device), ctx, labels))
            micros.append(MicroBatch(samples=tuple(part), weight=float(counted)))
        whole = sum(micro.weight for micro in micros)
        self.stage.begin(step, rows)
        self._engine.begin(step, micros, 1 / whole)
        return whole

    def _perform(self, action: Action, step: int) -> None:
        with self._meter:
            self._engine.perform(action, step)

    def _announce(self, action: Action, step: int) -> None:
        with self._meter:
            self._engine.transport.announce(action, step)

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        return Outcome(
            **self.history.measured(),
            peak_bytes={"device": self._meter.peak, "host": 0, "disk": 0},
            moved_bytes=dict.fromkeys(("load", "store", "read", "write"), 0),
            parameters=self.model.parameters_count(), engine="workbench",
            notes=[*self.history.notes],
        )  # fmt: skip

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        self._executor.close()
        self._engine.close()
        self._meter.close()
