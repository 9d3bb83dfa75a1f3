"""A run of a plan: its data, its steps (stepping.py), and their history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from torch import Tensor, nn

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.aceso.options import check, model_of, plan_of
from workbench.methods.aceso.stepping import PlanStepping, StepRows, places_of
from workbench.methods.pipeline.rank_training import RankTraining
from workbench.runtime.checkpoint.continues import check_start
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.shard_stage import Key
from workbench.training import trained_ranks
from workbench.training.run import check_data, resolve_device

LIMITS = replace(trained_ranks.LIMITS, stop_s=4.0)
"""Others of a stage wait in a collective for a process that is stopped, and none can end."""


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train the spec's plan; the first process of the last stage tells of the steps. Raises
    ValueError for a plan that cannot be trained, OutOfMemory past a device's budget, RankFailed."""
    plan = plan_of(spec.options.plan, folder.parents[1])
    check(plan, spec.ranks)
    if model_of(plan, spec.model) != spec.model or plan.subject.batch != spec.batch:
        raise ValueError("the plan is of another model or batch than the run's")
    check_start(spec, folder, check_data(spec, report, folder))
    teller = plan.gpus - plan.stages[-1].gpus
    return trained_ranks.train(
        "workbench.methods.aceso.run", spec, report, folder, teller=teller, places=places_of(plan),
        limits=LIMITS, checked=True,
    )  # fmt: skip


def training(
    spec: RunSpec, report: trained_ranks.FileReporter, folder: Path
) -> closing[PlanTraining]:
    """In a rank's process: the training of its shards."""
    return closing(PlanTraining(spec, report, folder))


class PlanTraining(RankTraining):
    """The shards of one process."""

    def __init__(self, spec: RunSpec, report: trained_ranks.FileReporter, folder: Path) -> None:
        super().__init__(spec, report, folder)
        model, plan = self._model, plan_of(spec.options.plan, folder.parents[1])
        report.phase("making the stages")

        @lru_cache(maxsize=2)
        def built(unit: int) -> nn.Module:
            return model.build(unit, seed=spec.seed)

        def initial(key: Key) -> Tensor:
            return built(key[0]).get_parameter(key[1])

        self._stepping = PlanStepping(
            spec, plan, model, initial, device=resolve_device(spec.device),
            dtype=DTYPES[spec.dtype], turn=report.turn,
        )  # fmt: skip

    def run(self) -> None:
        """All steps that are left."""
        spec, history, stepping = self._spec, self.history, self._stepping
        first = history.resume(stepping.holder, self._report)
        if first:
            stepping.take_up(history.statistics)
        for step in range(first, spec.steps):
            began, samples = time.monotonic(), self._batches.samples(step)
            ended = stepping.step(step, samples, partial(self._read, samples))
            seconds = time.monotonic() - began
            if step == spec.steps - 1:
                stepping.times.ms["time"] = 1e3 * seconds
                stepping.save_times(self._folder)
            history.ended(
                step, ended.loss, seconds, ended.norm, skipped=ended.overflow,
                report=self._report,
            )  # fmt: skip
            if history.pauses_at(step + 1):
                done = step + 1 - len(history.skipped)
                of = stepping.holder, self._report, stepping.statistics()
                stepping.holder.save(partial(history.pause, step + 1, done, *of))

    def _read(self, samples: Sequence[int]) -> StepRows:
        *inputs, targets = self._batches.rows(samples)
        counts = self._model.counted(targets) if self._model.counts_differ else None
        return StepRows(inputs, targets, counts)

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        return self._measured(self._stepping.meter.peak)

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        self._stepping.close()
