"""A run of FTPipe: in each process the stages of its device, updated by themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from workbench.core.division import micro_span
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.core.stage_map import StageMap
from workbench.methods.ftpipe import shared_weights
from workbench.methods.ftpipe.mitigating import versions_of
from workbench.methods.ftpipe.planner import (
    budgets_of,
    notes_of,
    pipeline_of,
    plan,
    stages_of,
    with_stages,
)
from workbench.methods.ftpipe.stage_sizes import StageSizes
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.model import make_model
from workbench.model.base import Context, LayeredModel
from workbench.model.weighing import weights_of
from workbench.profile.store import profile_for
from workbench.runtime.executor.executor import Executor
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.stage_engine import MicroBatch, StageEngine, StageStep
from workbench.runtime.passes.stage_passes import StagePasses
from workbench.runtime.passes.statistics import ReplicaStatistics, added
from workbench.runtime.passes.unit_stage import UnitRows, UnitStage
from workbench.runtime.protocols import OutsideUpdates
from workbench.runtime.transport.group_transport import GroupTransport
from workbench.runtime.transport.groups import as_one, new_group, tensors_of_all
from workbench.runtime.transport.neighbours import links_of, neighbours
from workbench.runtime.updates.stage_states import StatesTogether
from workbench.runtime.updates.stage_updates import (
    StageOptimizer,
    StageOptimizers,
    clip_own,
    optimizer_of,
)
from workbench.runtime.updates.stage_weights import StageWeights
from workbench.runtime.updates.step_end import Tie, agree
from workbench.schedule.action import Action
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.validate import validate
from workbench.training import trained_ranks
from workbench.training.history import History, check_start
from workbench.training.run import check_data, load_batches, resolve_device
from workbench.training.snapshots import Snapshots

ABANDON_S = 2.0
"""How long a lane may wait for another process after a failure in this one."""


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
        budgets=budgets_of(spec, planned.schedule),
    )  # fmt: skip
    return replace(found, predicted=planned.predicted(found.grad_norms[1:], spec.clip))


def stages_in(model: LayeredModel, spec: RunSpec) -> tuple[range, ...]:
    """Units of each stage. Raises ValueError as the planner does."""
    return stages_of(spec, model.num_units)


@contextmanager
def training(spec: RunSpec, report: Reporter, folder: Path) -> Iterator[FtpipeTraining]:
    """In a rank's process: the training of its stages."""
    made = FtpipeTraining(spec, report, folder)
    try:
        yield made
    finally:
        made.close()


class FtpipeTraining:
    """The stages of one process."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path) -> None:
        self._spec, self._report = spec, report
        self.rank, device = dist.get_rank(), resolve_device(spec.device)
        self._device, self._meter = device, device_meter(device, spec.device_memory)
        self._model = model = make_model(spec.model, spec.seed)
        self._batches = load_batches(spec, model, folder / "cache")
        self.history = History(spec, folder, self._batches, model=model)
        stages = stages_in(model, spec)
        line = pipeline_of(spec, stages, StageSizes(IdealSizes(), stages))
        self._schedule = made = schedule(line)
        if self.rank == 0:
            validate(made)
        report.phase("making the stages")
        mine = [stage for stage, at in enumerate(line.positions) if at == self.rank]
        like = {"seed": spec.seed, "seq": spec.model.seq, "device": device}
        like["dtype"] = DTYPES[spec.dtype]
        with self._meter:
            self._stages = {stage: UnitStage(model, stages[stage], **like) for stage in mine}
        named = {stage: own.named_parameters() for stage, own in self._stages.items()}
        learning = {stage: own.learning() for stage, own in self._stages.items()}
        sizes = [
            sum(weight.numel() for name, weight in own.items() if learning[stage][name])
            for stage, own in named.items()
        ]
        self._gradients = flat = self._meter.zeros(sum(sizes), torch.get_default_dtype())
        """Of all stages here, flat, fp32."""
        weights = {
            stage: StageWeights([self._stages[stage]], learning[stage], part)
            for stage, part in zip(named, flat.split(sizes), strict=True)
        }
        self._optimizers = {stage: self._optimizer(stage, own) for stage, own in weights.items()}
        with self._meter:
            versions = {
                stage: versions_of(
                    own.optimizer, self._stages[stage].modules.values(), spec.options,
                    copies=line.versions(stage), rate=spec.learning_rate,
                )
                for stage, own in self._optimizers.items()
            }  # fmt: skip
        self._loans = shared_weights.loans(model, stages, self._stages)
        self._borrows = {
            (loan.owner, loan.borrower): (line.positions[loan.owner], line.positions[loan.borrower])
            for loan in line.loans
        }
        updates = StageOptimizers(self._optimizers, after=self._updated, loans=self._loans)
        if spec.options.synchronous:  # whose updates wait for the norm of all stages
            updates = OutsideUpdates()
        self._engine = StageEngine(
            self._stages, StagePasses(self._stages), flat, int, updates, self._loans,
            versions,
        )  # fmt: skip
        self._everybody = everybody = new_group(backend="gloo")
        places = StageMap.of(made.num_ranks, 1)
        links = links_of(line.positions)
        backend = dist.get_backend()
        channels = neighbours(places, links, self.rank, backend, everybody, device)
        self._engine.transport = GroupTransport(
            channels, everybody, process=int, forms=self._engine.forms, latency=None, device=device
        )
        self._engine.transport.use(made)
        self._executor = Executor(
            made, self._perform, device, rank=self.rank,
            announce=self._announce, record_from=spec.steps,
            together=backend == "nccl", abandon_s=ABANDON_S,
            on_failure=lambda _: self._engine.transport.stop(),
        )  # fmt: skip
        self._last = len(stages) - 1
        of = [
            (self._stages[stage].parameters, o.optimizer) for stage, o in self._optimizers.items()
        ]
        self._holder = StatesTogether(of, over=everybody, lead=line.positions[-1])
        modules = [each for own in self._stages.values() for each in own.modules.items()]
        self._norms = ReplicaStatistics(model, modules, (0, 1), None)
        self._ties: list[Tie] = []
        if spec.options.synchronous:
            place = line.positions, self.rank
            self._ties = shared_weights.ties(model, stages, self._stages, *place)
        self._left_out: list[tuple[int, int]] = []
        """Steps and stages here of which an update was left out."""
        self._lock = threading.Lock()
        self._left: dict[int, set[int]] = {}
        """Step that has begun here -> stages that it has not updated yet."""
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
        if self._last in self._stages:
            self._snapshots.clear()

    def _segment(self, first: int, end: int) -> None:
        """Steps between which an asynchronous pipeline never drains."""
        self._loans.spread(self._borrows, self._everybody)
        self._ended_s = time.monotonic()
        if self._spec.options.synchronous:
            for step in range(first, end):
                self._step(step)
            return
        self._executor.run(first, end - first)
        for step in [*self._left]:
            self._forget(step)
        told = as_one(lambda: self._left_out, self._everybody)
        self._left_out = []
        if left_out := sorted((step, stage) for each in told for step, stage in each):
            step, stage = left_out[0]
            self.history.notes.append(
                f"{len(left_out)} updates of single stages were left out, for gradients that were "
                f"not finite; the first: of stage {stage} in step {step}"
            )

    def _step(self, step: int) -> None:
        """One step of a pipeline that drains with it, which ends for all stages together."""
        spec = self._spec
        self._executor.run(step, 1)
        losses, weight = self._forget(step).mean_loss()
        ended = agree(
            self._gradients, self._ties, losses=losses, weight=weight, first=True, wanted=False,
            scale=1.0, nominal=spec.microbatches, clip=spec.clip, everybody=self._everybody,
        )  # fmt: skip
        if not ended.overflow:
            for own in self._optimizers.values():
                own.before(step)
                with self._meter:
                    own.optimizer.step()
            self._loans.spread(self._borrows, self._everybody)
        if self.history.evaluates_at(step + 1):
            self._snapshots.put(step + 1, self._stages.values())
        self._tell(step, ended.loss, ended.norm, skipped=ended.overflow)

    def _evaluate(self) -> None:
        """Evaluate what all stages have written, where the last one is here."""
        if self._last in self._stages and self._snapshots.evaluate(self.history, self._report):
            self._ended_s = time.monotonic()

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        notes = [*self.history.notes, *notes_of(self._schedule, self._spec)]
        return Outcome(
            **self.history.measured(),
            peak_bytes={"device": self._meter.peak, "host": 0, "disk": 0},
            moved_bytes=dict.fromkeys(("load", "store", "read", "write"), 0),
            parameters=self._model.parameters_count(),
            engine="workbench",
            notes=notes,
        )

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        self._executor.close()
        self._engine.close()
        self._meter.close()

    def _optimizer(self, stage: int, weights: StageWeights) -> StageOptimizer:
        spec, decaying = self._spec, self._stages[stage].decaying()
        parts = self._stages[stage].parameters.values()
        named = {n: p for own in parts for n, p in own.items() if p.requires_grad}
        how = spec.options
        optimizer = optimizer_of(
            how.optimizer, spec, named, decaying, self._device, momentum=how.momentum,
            nesterov=how.nesterov,
        )  # fmt: skip
        limit = spec.clip
        if how.stage_clip == "local-prop":
            own = sum(weight.numel() for weight in named.values())
            limit *= own / self._model.parameters_count()

        def prepare(step: int) -> bool:
            for each in optimizer.param_groups:
                each["lr"] = spec.learning_rate(step)
            if how.synchronous:
                return True
            finite = clip_own(weights.gradients, limit)
            if not finite:
                self._left_out.append((step, stage))
            return finite

        return StageOptimizer(optimizer, weights.gradients, before=prepare)

    def _perform(self, action: Action, step: int) -> None:
        with self._meter:
            self._begin(step)
            self._engine.perform(action, step)

    def _announce(self, action: Action, step: int) -> None:
        with self._meter:
            self._begin(step)
            self._engine.transport.announce(action, step)

    def _begin(self, step: int) -> None:
        """Get a step's rows, for the first action of a step here."""
        with self._lock:
            if step not in self._left:
                self._read(step)

    def _read(self, step: int) -> None:
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
        for stage in self._stages.values():
            stage.begin(step, rows)
        pairs = zip(parts, weights, strict=True)
        given = [MicroBatch(samples=tuple(part), weight=weight) for part, weight in pairs]
        self._engine.begin(step, given, 1 / micros)
        self._left[step] = {*self._stages}

    def _forget(self, step: int) -> StageStep:
        """Let go of a step; returns its losses."""
        del self._left[step]
        for own in self._stages.values():
            own.end(step)
        return self._engine.end(step)

    def _updated(self, stage: int, step: int) -> None:
        """A stage has been updated, the last action of a step on it."""
        with self._lock:
            self._left[step].discard(stage)
            done = not self._left[step]
        if self.history.evaluates_at(step + 1):  # without a drain, which would change what is stale
            self._snapshots.put(step + 1, [self._stages[stage]])
        if stage == self._last:
            self._tell(step, self._engine.loss(step) / self._spec.microbatches, None)
        elif self._last not in self._stages and done:
            self._tell(step, float("nan"), None)
        if done and step - 1 in self._engine:  # whose messages have gone, too
            self._forget(step - 1)

    def _tell(self, step: int, loss: float, norm: float | None, *, skipped: bool = False) -> None:
        """A step has ended; the process with the last stage keeps the history."""
        if self._last not in self._stages:
            self._report.step(step, float("nan"), 0.0)
            return
        now = time.monotonic()
        seconds, self._ended_s = now - self._ended_s, now
        self.history.ended(step, loss, seconds, norm, skipped=skipped, report=self._report)
        self._evaluate()
