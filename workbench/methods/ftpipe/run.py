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

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.core.stage_map import StageMap
from workbench.methods.ftpipe.planner import (
    pipeline_of,
    plan,
    stages_of,
    staleness_note,
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
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.stage_engine import MicroBatch, StageEngine
from workbench.runtime.passes.stage_passes import StagePasses
from workbench.runtime.passes.unit_stage import UnitRows, UnitStage
from workbench.runtime.transport.group_transport import GroupTransport
from workbench.runtime.transport.groups import as_one, new_group
from workbench.runtime.transport.neighbours import carrier, neighbours
from workbench.runtime.updates.stage_states import StatesTogether
from workbench.runtime.updates.stage_updates import StageOptimizer, StageOptimizers, optimizer_of
from workbench.runtime.updates.stage_weights import StageWeights
from workbench.schedule.action import Action
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.validate import validate
from workbench.training import trained_ranks
from workbench.training.history import History, check_start
from workbench.training.run import check_data, load_batches, resolve_device
from workbench.training.snapshots import Snapshots

CLIP_EPS = 1e-6
"""Added to a norm, as torch's clip_grad_norm_ does."""
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
    teller = spec.options.positions(len(stages), spec.ranks)[-1]
    found = trained_ranks.train("workbench.methods.ftpipe", spec, report, folder, teller=teller)
    return replace(found, predicted=planned.predicted(found.grad_norms[1:], spec.clip))


def stages_in(model: LayeredModel, spec: RunSpec) -> tuple[range, ...]:
    """Units of each stage. Raises ValueError as the planner does."""
    tied = [(unit, owner) for (unit, _), (owner, _) in model.tied().items()]
    return stages_of(spec, model.num_units, tied)


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
        self._device = device
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
        self._stages = {
            stage: UnitStage(
                model, stages[stage], seed=spec.seed, seq=spec.model.seq, device=device,
                dtype=DTYPES[spec.dtype],
            )
            for stage in mine
        }  # fmt: skip
        weights = {
            stage: StageWeights([own], dict.fromkeys(own.named_parameters(), True))
            for stage, own in self._stages.items()
        }
        made_up = {stage: self._optimizer(stage, own) for stage, own in weights.items()}
        updates = StageOptimizers(made_up, after=self._updated)
        self._engine = StageEngine(
            self._stages, StagePasses(self._stages), weights[mine[0]].gradients, int, updates
        )
        everybody = new_group(backend="gloo")
        places = StageMap.of(spec.ranks, 1)
        pairs = dict.fromkeys(zip(line.positions, line.positions[1:], strict=False))
        links = [(front, back) for front, back in pairs if front != back]
        backend = carrier("auto", device)
        channels = neighbours(places, links, self.rank, backend, everybody, device)
        self._engine.transport = GroupTransport(
            channels, everybody, process=int, forms=self._engine.forms, latency=None, device=device
        )
        self._engine.transport.use(made)
        self._executor = Executor(
            made, self._perform, device, rank=self.rank,
            announce=self._announce, record_from=spec.steps,
            together=device.type == "cuda", abandon_s=ABANDON_S,
            on_failure=lambda _: self._engine.transport.stop(),
        )  # fmt: skip
        self._last = len(stages) - 1
        self._holder = StatesTogether(
            [(self._stages[stage].parameters, own.optimizer) for stage, own in made_up.items()],
            over=everybody, lead=line.positions[-1],
        )  # fmt: skip
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
        every = spec.save_every or spec.steps
        while first < spec.steps:
            end = min(spec.steps, first - first % every + every)
            self._segment(first, end)
            if spec.save_every:
                done = end - len(history.skipped)
                holder.save(partial(history.save, end, done, holder, self._report))
            first = end
        as_one(lambda: None, holder.over)  # all snapshots are written
        self._evaluate()
        if self._last in self._stages:
            self._snapshots.clear()

    def _segment(self, first: int, end: int) -> None:
        """Steps between which the pipeline never drains."""
        self._ended_s = time.monotonic()
        self._executor.run(first, end - first)
        for step in [*self._left]:
            self._forget(step)

    def _evaluate(self) -> None:
        """Evaluate what all stages have written, where the last one is here. The pipeline does not
        drain for that, which would make other weights stale."""
        if self._last in self._stages:
            for steps, write in self._snapshots.ready():
                self.history.evaluate(steps, write, self._report)
                self._ended_s = time.monotonic()

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        cuda = self._device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self._device) if cuda else None
        notes = [*self.history.notes, staleness_note(self._schedule)]
        if not cuda:
            notes.append("device peak: not measured on a processor")
        return Outcome(
            **self.history.measured(),
            peak_bytes={"device": peak, "host": 0, "disk": 0},
            moved_bytes=dict.fromkeys(("load", "store", "read", "write"), 0),
            parameters=self._model.parameters_count(),
            engine="workbench",
            notes=notes,
        )

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        self._executor.close()
        self._engine.close()

    def _optimizer(self, stage: int, weights: StageWeights) -> StageOptimizer:
        spec, decaying = self._spec, self._stages[stage].decaying()
        optimizer = optimizer_of("adamw", spec, weights.named, decaying, self._device)

        def prepare(step: int) -> None:
            for group in optimizer.param_groups:
                group["lr"] = spec.learning_rate(step)
            if spec.clip is not None:
                norm = weights.gradients.norm()
                weights.gradients.mul_((spec.clip / (norm + CLIP_EPS)).clamp(max=1.0))

        return StageOptimizer(optimizer, weights.gradients, before=prepare)

    def _perform(self, action: Action, step: int) -> None:
        self._begin(step)
        self._engine.perform(action, step)

    def _announce(self, action: Action, step: int) -> None:
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
        parts = [samples[n * spec.microbatch : (n + 1) * spec.microbatch] for n in range(micros)]
        read = [batches.rows(part) for part in parts]
        weights = [1.0] * micros
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

    def _forget(self, step: int) -> None:
        """Let go of a step."""
        del self._left[step]
        for own in self._stages.values():
            own.end(step)
        self._engine.end(step)

    def _updated(self, stage: int, step: int) -> None:
        """A stage has been updated, the last action of a step on it."""
        with self._lock:
            self._left[step].discard(stage)
            done = not self._left[step]
        if self.history.evaluates_at(step + 1):
            self._snapshots.put(step + 1, self._stages[stage].parameters)
        if stage == self._last:
            loss = self._engine.loss(step) / self._spec.microbatches
            now = time.monotonic()
            seconds, self._ended_s = now - self._ended_s, now
            self.history.ended(step, loss, seconds, None, skipped=False, report=self._report)
            self._evaluate()
        elif self._last not in self._stages and done:
            self._report.step(step, float("nan"), 0.0)
        if done and step - 1 in self._engine:  # whose messages have gone, too
            self._forget(step - 1)
