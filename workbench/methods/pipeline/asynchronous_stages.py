"""One process's stages under the schedule of a pipeline that never drains (asynchronous.py).

Each stage is updated by itself, by an optimizer of its own. A step begins here with its first
action, and its rows are let go of when all stages here are updated for it. Where the schedule
drains with each step, its caller ends the step instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from workbench.core.bytesize import format_bytes
from workbench.core.stage_map import StageMap
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.methods.pipeline.stepping import ABANDON_S, NEVER
from workbench.runtime.executor.executor import Executor, Perturb, Work
from workbench.runtime.passes.stage import Stage
from workbench.runtime.passes.stage_engine import MicroBatch, StageEngine, StageStep
from workbench.runtime.passes.stage_passes import StagePasses
from workbench.runtime.passes.unit_stage import UnitStage
from workbench.runtime.protocols import OutsideUpdates
from workbench.runtime.transport.group_transport import GroupTransport
from workbench.runtime.transport.groups import as_one
from workbench.runtime.transport.neighbours import neighbours, stage_links
from workbench.runtime.updates.stage_loans import StageLoans
from workbench.runtime.updates.stage_updates import StageOptimizer, StageOptimizers, clip_own
from workbench.runtime.updates.stage_weights import StageWeights
from workbench.runtime.updates.weight_versions import WeightVersions
from workbench.schedule.action import Action
from workbench.schedule.schedule import DEVICE
from workbench.schedule.validate import validate

Named = Mapping[str, nn.Parameter]


class MakeVersions(Protocol):
    """Makes the versions of a stage's weights."""

    def __call__(
        self, stage: int, optimizer: Optimizer, *, copies: int, rate: Callable[[int], float]
    ) -> WeightVersions: ...


@dataclass(kw_only=True)
class Begun:
    """A step that has begun here."""

    rows: Sequence[Any]
    """Of each micro-batch, as stages take them."""
    micros: Sequence[MicroBatch]
    scale: float
    """Factor of each micro-batch's weight in the loss."""
    rate: float
    """Learning rate of the step's updates."""


class AsynchronousStages:
    """Engine, transport, updates and executor of one process's stages."""

    def __init__(
        self, line: Asynchronous, stages: Mapping[int, UnitStage] | Mapping[int, Stage],
        learning: Mapping[int, Mapping[str, bool]], loans: StageLoans, *,
        optimizer: Callable[[int, Named], Optimizer], versions: MakeVersions,
        read: Callable[[int], Begun], updated: Callable[[int, int, bool], object],
        clip: float | None, shares_clip: bool, device: torch.device, backend: str,
        everybody: dist.ProcessGroup, budget: int | None = None,
        meter: AbstractContextManager | None = None, perturb: Perturb | None = None,
        latency: Callable[[Action], float] | None = None,
    ) -> None:  # fmt: skip
        """Every process makes it, and its first one proves the schedule, within a `budget` of bytes
        of each device. `learning`: stage -> parameter -> whether it is trained. `optimizer` makes
        one for a stage's parameters, but for those that `loans` bring it. `read` gives a step's
        rows, once; `updated` hears of a stage, a step, and whether that was the last of its
        updates here. `clip` bounds the norm of each stage's gradients, or with `shares_clip` a part
        of it as large as the stage's part of all parameters does. What actions make is counted by a
        `meter`. Raises ValueError for what the schedule cannot be."""
        rank = dist.get_rank()
        self.stages, self._read, self._updates_end = stages, read, updated
        self._everybody, self._meter = everybody, meter or nullcontext()
        self.loans = loans
        self.schedule = made = schedule(line)
        as_one((lambda: self._prove(budget)) if rank == 0 else int, everybody)
        named = {stage: own.named_parameters() for stage, own in stages.items()}
        sizes = [
            sum(weight.numel() for name, weight in own.items() if learning[stage][name])
            for stage, own in named.items()
        ]
        self.gradients = torch.zeros(sum(sizes), device=device)
        """Of all stages here, flat."""
        self._weights = {
            stage: StageWeights([stages[stage]], learning[stage], part)
            for stage, part in zip(named, self.gradients.split(sizes), strict=True)
        }
        self._flight: dict[int, Begun] = {}
        """Steps that have begun here, and have not ended."""
        self._left: dict[int, set[int]] = {}
        """Of each, the stages here that it has not updated."""
        self.left_out: list[tuple[int, int]] = []
        """Steps and stages here of which an update was left out: gradients were not finite."""
        self._lock = threading.Lock()
        self._limits = self._clips(clip, shares=shares_clip)
        self._drains = bool(line.passes)
        self.optimizers = {
            stage: self._optimizer(stage, optimizer(stage, self.owned(stage))) for stage in stages
        }
        self._versions = {
            stage: versions(stage, own.optimizer, copies=line.versions(stage), rate=self._rate)
            for stage, own in self.optimizers.items()
        }
        updates = StageOptimizers(self.optimizers, after=self._updated, loans=loans)
        self.engine = engine = StageEngine(
            stages, StagePasses(stages), self.gradients, int,
            OutsideUpdates() if self._drains else updates, loans, self._versions,
        )  # fmt: skip
        self._borrows = {
            (loan.owner, loan.borrower): (line.positions[loan.owner], line.positions[loan.borrower])
            for loan in line.loans
        }
        places, links = StageMap.of(made.num_ranks, 1), stage_links(line.positions)
        channels = neighbours(places, links, rank, backend, everybody, device)
        self.groups = {*channels.values()} - {None, everybody}
        """Process groups in which a device may wait."""
        engine.transport = GroupTransport(
            channels, everybody, process=int, forms=engine.forms, latency=latency, device=device
        )
        engine.transport.use(made)
        self._executor = Executor(
            made, self._within(engine.perform), device, rank=rank, perturb=perturb,
            announce=self._within(engine.transport.announce), record_from=NEVER,
            together=backend == "nccl", abandon_s=ABANDON_S,
            on_failure=lambda _: engine.transport.stop(),
        )  # fmt: skip

    def owned(self, stage: int) -> Named:
        """A stage's own parameters, by their names in the whole model."""
        named = self._weights[stage].named
        return {name: p for name, p in named.items() if not self.loans.brings(p)}

    def run(self, first: int, steps: int) -> None:
        """Do steps, from a pipeline that is empty to one in which nothing moves."""
        self._fill()
        self._executor.run(first, steps)

    def step(self, step: int) -> None:
        """Do a step as far as the first stage here has it."""
        if not self._executor.goes_on:
            self._fill()
        self._executor.step(step)

    def pause(self) -> None:
        """Wait until the stages here have done all that was asked of them: weights stand still."""
        self._executor.pause()

    def drain(self) -> list[tuple[int, int]]:
        """End all steps that were begun; returns steps and stages of all processes of which an
        update was left out, for gradients that were not finite."""
        self._executor.end()
        for step in [*self._flight]:
            self.forget(step)
        told = as_one(lambda: self.left_out, self._everybody)
        self.left_out = []
        return sorted((step, stage) for each in told for step, stage in each)

    def forget(self, step: int) -> StageStep:
        """Let go of a step; returns its losses."""
        del self._flight[step], self._left[step]
        for stage in self.stages.values():
            stage.end(step)
        return self.engine.end(step)

    def stop(self) -> None:
        """Have no step wait any more (from any thread)."""
        self._executor.stop()

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        self._executor.close()
        self.engine.close()

    def _fill(self) -> None:
        """Before the pipeline fills: borrowers have the weights of now."""
        self.loans.spread(self._borrows, self._everybody)
        for own in self._versions.values():
            own.begin()

    def _prove(self, budget: int | None) -> None:
        """Prove the schedule, and that devices have room for it where their bytes are given."""
        peaks = validate(self.schedule).peak_bytes
        position = max(peaks, key=lambda each: peaks[each][DEVICE])
        if budget is not None and (most := peaks[position][DEVICE]) > budget:
            raise ValueError(
                f"device_memory is {format_bytes(budget)}, and the stages of process {position} "
                f"need {format_bytes(most)}; use more stages, smaller micro-batches, or more memory"
            )

    def _clips(self, clip: float | None, *, shares: bool) -> dict[int, float | None]:
        """Limit of the norm of each stage's gradients."""
        if clip is None or not shares:
            return dict.fromkeys(self.stages, clip)
        own = {stage: [*self.owned(stage).values()] for stage in self.stages}
        here = sum(weight.numel() for each in own.values() for weight in each)
        whole = sum(as_one(lambda: here, self._everybody))
        trained = {s: sum(p.numel() for p in each if p.requires_grad) for s, each in own.items()}
        return {stage: clip * count / whole for stage, count in trained.items()}

    def _optimizer(self, stage: int, optimizer: Optimizer) -> StageOptimizer:
        gradients = self._weights[stage].gradients

        def prepare(step: int) -> bool:
            for group in optimizer.param_groups:
                group["lr"] = self._rate(step)
            if self._drains:  # its caller clips all stages together
                return True
            finite = clip_own(gradients, self._limits[stage])
            if not finite:
                self.left_out.append((step, stage))
            return finite

        return StageOptimizer(optimizer, gradients, before=prepare)

    def _rate(self, step: int) -> float:
        """Learning rate of a step that has begun: no pass reads updates of later ones."""
        return self._flight[step].rate

    def _within(self, work: Work) -> Work:
        """Work of a step that has begun, counted by the meter."""

        def do(action: Action, step: int) -> None:
            with self._meter:
                with self._lock:
                    if step not in self._flight:
                        self._begin(step)
                work(action, step)

        return do

    def _begin(self, step: int) -> None:
        begun = self._read(step)
        for stage in self.stages.values():
            stage.begin(step, begun.rows)
        self.engine.begin(step, begun.micros, begun.scale)
        self._flight[step], self._left[step] = begun, {*self.stages}

    def _updated(self, stage: int, step: int) -> None:
        """A stage has been updated, the last action of a step on it."""
        with self._lock:
            self._left[step].discard(stage)
            done = not self._left[step]
        self._updates_end(stage, step, done)
        if done and step - 1 in self.engine:  # whose messages have gone, too
            self.forget(step - 1)
