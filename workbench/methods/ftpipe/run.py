"""A run of FTPipe: in each process the stages of its device, updated by themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from workbench.core.division import micro_span
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe import shared_weights
from workbench.methods.ftpipe.mitigating import STATES, versions_of
from workbench.methods.ftpipe.planner import (
    budgets_of,
    notes_of,
    pipeline_of,
    plan,
    stages_of,
    with_stages,
)
from workbench.methods.ftpipe.stage_sizes import StageSizes
from workbench.methods.pipeline.asynchronous_stages import AsynchronousStages, Begun
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.methods.pipeline.rank_training import RankTraining
from workbench.model.base import Context, LayeredModel
from workbench.model.weighing import weights_of
from workbench.profile.store import profile_for
from workbench.runtime.checkpoint.continues import check_start
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.stage_engine import MicroBatch
from workbench.runtime.passes.statistics import ReplicaStatistics, added
from workbench.runtime.passes.unit_stage import UnitRows, UnitStage
from workbench.runtime.transport.groups import as_one, new_group, tensors_of_all
from workbench.runtime.updates.stage_states import StatesTogether
from workbench.runtime.updates.stage_updates import optimizer_of
from workbench.runtime.updates.step_end import Tie, agree
from workbench.runtime.updates.weight_versions import WeightVersions
from workbench.schedule.plan import DoesNotFit
from workbench.training import trained_ranks
from workbench.training.run import check_data, resolve_device
from workbench.training.snapshots import Snapshots


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Profile this machine, find stages where none are given, and train; the process with the last
    stage tells of the steps. Raises ValueError for stages that cannot be, OutOfMemory past a
    device's budget, RankFailed."""
    model = check_data(spec, report, folder)
    check_start(spec, folder, model)
    if spec.options.sizes:
        stages_in(model, spec)  # refused before minutes of measuring
    report.phase("profiling")
    profile = profile_for(spec, folder.parents[1], lambda text: report.event("profile", text=text))
    spec = with_stages(spec, profile)
    planned = replace(plan(spec, profile), spread=profile.hardware.spread)
    if not planned.fits:
        raise DoesNotFit(planned.binding, tier=planned.lacking)
    stages = stages_in(model, spec)
    report.event("plan", **planned.to_dict())
    Snapshots(folder, model).clear()
    found = trained_ranks.train(
        "workbench.methods.ftpipe", spec, report, folder,
        teller=spec.options.processes(len(stages), spec.ranks)[-1],
        devices=spec.options.devices(len(stages), spec.ranks),
        budgets=budgets_of(spec, planned.schedule), checked=True,
    )  # fmt: skip
    return replace(found, predicted=planned.predicted(found.grad_norms[1:], spec.clip))


def stages_in(model: LayeredModel, spec: RunSpec) -> tuple[range, ...]:
    """Units of each stage. Raises ValueError as the planner does."""
    return stages_of(spec, model.num_units)


class FtpipeTraining(RankTraining):
    """The stages of one process."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path) -> None:
        super().__init__(spec, report, folder)
        model, self.rank, device = self._model, dist.get_rank(), resolve_device(spec.device)
        self._device, self._meter = device, device_meter(device, spec.device_memory)
        stages = stages_in(model, spec)
        line = pipeline_of(spec, stages, StageSizes(IdealSizes(), stages))
        report.phase("making the stages")
        mine = [stage for stage, at in enumerate(line.positions) if at == self.rank]
        like = {"seed": spec.seed, "seq": spec.model.seq, "device": device}
        like["dtype"] = DTYPES[spec.dtype]
        self._everybody = everybody = new_group(backend="gloo")
        with self._meter:
            self._units = here = {n: UnitStage(model, stages[n], **like) for n in mine}
            self._stages = AsynchronousStages(
                line, here, {n: own.learning() for n, own in here.items()},
                shared_weights.loans(model, stages, here), optimizer=self._optimizer,
                versions=self._versions, read=self._read, updated=self._updated, clip=spec.clip,
                shares_clip=spec.options.stage_clip == "local-prop", device=device,
                backend=dist.get_backend(), everybody=everybody, meter=self._meter,
            )  # fmt: skip
        self._last = len(stages) - 1
        of = [(here[n].parameters, own.optimizer) for n, own in self._stages.optimizers.items()]
        further = STATES if spec.options.gap_aware else ()
        lead = line.positions[-1]
        self._holder = StatesTogether(of, over=everybody, lead=lead, further=further)
        modules = [each for own in here.values() for each in own.modules.items()]
        self._norms = ReplicaStatistics(model, modules, (0, 1), None)
        self._ties: list[Tie] = []
        if spec.options.synchronous:
            place = line.positions, self.rank
            self._ties = shared_weights.ties(model, stages, here, *place)
        self._ended_s = 0.0
        self._snapshots = Snapshots(folder, model)

    def run(self) -> None:
        """All steps that are left. The pipeline fills and drains once, or between two savings, so a
        run that goes on from a checkpoint finds the weights that an undisturbed one has there."""
        spec, history, holder = self._spec, self.history, self._holder
        first = history.resume(holder, self._report)
        if first:
            self._norms.take_up(history.statistics)
        every = spec.save_every or spec.steps
        while first < spec.steps:
            end = min(spec.steps, first - first % every + every)
            self._segment(first, end)
            if spec.save_every:
                done = end - len(history.skipped)
                found = added(tensors_of_all(self._norms.named, self._everybody))
                self._evaluate()
                holder.save(partial(history.save, end, done, holder, self._report, found))
            first = end
        as_one(lambda: None, holder.over)  # all snapshots are written
        self._evaluate()
        if self._last in self._units:
            self._snapshots.clear()

    def _segment(self, first: int, end: int) -> None:
        """Steps between which an asynchronous pipeline never drains."""
        self._ended_s = time.monotonic()
        if self._spec.options.synchronous:
            for step in range(first, end):
                self._step(step)
            return
        self._stages.run(first, end - first)
        if left_out := self._stages.drain():
            step, stage = left_out[0]
            self.history.notes.append(
                f"{len(left_out)} updates of single stages were left out, for gradients that were "
                f"not finite; the first: of stage {stage} in step {step}"
            )

    def _step(self, step: int) -> None:
        """One step of a pipeline that drains with it, which ends for all stages together."""
        spec = self._spec
        self._stages.run(step, 1)
        losses, weight = self._stages.engine.mean_loss(step)
        ended = agree(
            self._stages.gradients, self._ties, losses=losses, weight=weight, first=True,
            wanted=False, scale=1.0, nominal=spec.microbatches, clip=spec.clip,
            everybody=self._everybody,
        )  # fmt: skip
        if not ended.overflow:
            for own in self._stages.optimizers.values():
                own.before(step)
                with self._meter:
                    own.optimizer.step()
        self._stages.forget(step)
        if self.history.evaluates_at(step + 1):
            self._snapshots.put(step + 1, self._units.values())
        self._tell(step, ended.loss, ended.norm, skipped=ended.overflow)

    def _evaluate(self) -> None:
        """Evaluate what all stages have written, where the last one is here."""
        if self._last in self._units and self._snapshots.evaluate(self.history, self._report):
            self._ended_s = time.monotonic()

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        return self._measured(self._meter.peak, *notes_of(self._stages.schedule, self._spec))

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        self._stages.close()
        self._meter.close()

    def _optimizer(self, stage: int, named: Mapping[str, nn.Parameter]) -> Optimizer:
        how, trained = self._spec.options, {n: p for n, p in named.items() if p.requires_grad}
        return optimizer_of(
            how.optimizer, self._spec, trained, self._units[stage].decaying(), self._device,
            momentum=how.momentum, nesterov=how.nesterov,
        )  # fmt: skip

    def _versions(self, stage: int, optimizer: Optimizer, **how: Any) -> WeightVersions:
        modules = self._units[stage].modules.values()
        return versions_of(optimizer, modules, self._spec.options, **how)

    def _read(self, step: int) -> Begun:
        """A step's rows, for its first action here."""
        spec, batches = self._spec, self._batches
        samples, micros = batches.samples(step), spec.microbatches
        spans = [micro_span(spec.batch, micro, micros) for micro in range(micros)]
        parts = [samples[first:end] for first, end in spans]
        read = [batches.rows(part) for part in parts]
        weights = [len(part) * micros / spec.batch for part in parts]
        if self._model.counts_differ:
            weights = weights_of(self._model, batches, step, [rows[-1] for rows in read])
        rows = []
        for part, tensors in zip(parts, read, strict=True):
            *inputs, targets = (tensor.to(self._device) for tensor in tensors)
            ctx = Context(seed=spec.seed, step=step, unit=0, samples=tuple(part))
            rows.append(UnitRows(inputs[0] if len(inputs) == 1 else tuple(inputs), targets, ctx))
        pairs = zip(parts, weights, strict=True)
        given = [MicroBatch(samples=tuple(part), weight=weight) for part, weight in pairs]
        return Begun(rows=rows, micros=given, scale=1 / micros, rate=spec.learning_rate(step))

    def _updated(self, stage: int, step: int, done: bool) -> None:
        """A stage has been updated, the last action of a step on it."""
        if self.history.evaluates_at(step + 1):  # without a drain, which would change what is stale
            self._snapshots.put(step + 1, [self._units[stage]])
        if stage == self._last:
            self._tell(step, self._stages.engine.mean_loss(step)[0] / self._spec.microbatches, None)
        elif self._last not in self._units and done:
            self._tell(step, float("nan"), None)

    def _tell(self, step: int, loss: float, norm: float | None, *, skipped: bool = False) -> None:
        """A step has ended; the process with the last stage keeps the history."""
        if self._last not in self._units:
            self._report.step(step, float("nan"), 0.0)
            return
        now = time.monotonic()
        seconds, self._ended_s = now - self._ended_s, now
        self.history.ended(step, loss, seconds, norm, skipped=skipped, report=self._report)
        self._evaluate()
