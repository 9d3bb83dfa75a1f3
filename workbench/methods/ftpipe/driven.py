"""FTPipe in a user's own loop, in the processes of torchrun: batches are taken ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from torch import Tensor

from workbench.core.spec import RunSpec
from workbench.core.stage_map import StageMap
from workbench.methods.ftpipe.options import Options
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.methods.pipeline.driven import check_tiers, cutting, job_of
from workbench.methods.pipeline.making import StageJob
from workbench.methods.pipeline.stage_stream import StageStream
from workbench.methods.pipeline.stepping import StepPlan
from workbench.model.objective import Batch
from workbench.profile.unit_costs import Sizes
from workbench.runtime.transport.groups import as_one, tensors_of_all
from workbench.runtime.updates.stage_updates import optimizer_of
from workbench.training.loop import Steps, Task

NO_CHECKPOINT = "ftpipe writes no checkpoints of a loop of one's own yet; use engine.state_dict()"


class Streamed(Steps):
    """Steps of one process, several of which are under way at a time."""

    grad_norm = None

    def __init__(self, task: Task) -> None:
        """Raises ValueError for what cannot be trained so."""
        spec, peers, options = task.spec, task.peers, task.spec.options
        check_tiers(spec)
        check_options(options)
        self._report = task.report
        self._all, world = peers.group, len(peers.folders)
        words = len(options.map.split())
        stages = words or len(options.sizes) or task.stages or world
        positions = options.positions(stages, world)
        rows = as_one(lambda: spec.batch, peers.group)
        if len({*rows}) > 1:
            raise ValueError(
                f"the processes pass batches of {', '.join(map(str, rows))} rows; they are one "
                "pipeline, which takes the same batch in each"
            )
        objective = task.objective
        task.report.phase(f"cutting the module into {stages} stages")
        if task.microbatches > 1:
            as_one(lambda: objective.divide(objective.twin().layered()[0]), peers.group)
        with cutting(objective):
            plan = StepPlan(map=StageMap.of(world, 1), order="1f1b", positions=positions)
            job = replace(job_of(task, plan, spec.batch), cut=options.cut)
            self._model = StageStream(
                objective, job, lambda sizes: line_of(spec, positions, job, sizes),
                lambda named: optimizer_of(
                    options.optimizer, spec, named, named.keys() - objective.no_decay, peers.device,
                    momentum=options.momentum, nesterov=options.nesterov,
                ),
                rate=lambda: spec.learning_rate(0), clip=spec.clip,
            )  # fmt: skip
        peers.stops += [group.abort for group in self._model.groups]
        self._waiting = deque[float]()
        """Losses that came while the pipeline was drained for other reasons."""

    @property
    def steps(self) -> int:
        return self._model.steps

    def begin(self, batch: Batch) -> list[float]:
        self._waiting += self._model.give(batch.named())
        return self._taken()

    def rest(self) -> list[float]:
        self.settle()
        return self._taken()

    def settle(self) -> None:
        self._waiting += self._model.settle()
        left_out = sorted(chain(*as_one(lambda: self._model.left_out, self._all)))
        self._model.left_out.clear()
        if left_out:
            self._report.say(
                f"{len(left_out)} updates of single stages are left out, since their gradients are "
                f"not finite; the first in step {left_out[0]}"
            )

    def tensors(self) -> dict[str, Tensor]:
        parts = tensors_of_all(dict(self._model.named_parameters()), self._all)
        return {name: tensor for part in parts for name, tensor in part.items()}

    def save(self, folder: Path) -> Path:
        raise ValueError(NO_CHECKPOINT)

    def load(self, folder: Path) -> int | None:
        raise ValueError(NO_CHECKPOINT)

    def close(self) -> None:
        self._model.close()

    def _taken(self) -> list[float]:
        losses = [*self._waiting]
        self._waiting.clear()
        return losses


def check_options(options: Options) -> None:
    """Raise ValueError for what `run` does and a stream does not."""
    usual = Options()
    for name in ("weight_stashing", "prediction", "gap_aware", "stage_clip", "partition"):
        if (value := getattr(options, name)) != getattr(usual, name):
            raise ValueError(
                f"{name} is {value!r}; a loop of one's own reads stale weights and clips each "
                "stage by its own norm: leave it out, or use workbench run"
            )
    if options.synchronous:
        raise ValueError(
            f"stage_order is {options.stage_order!r}, which ends with each step; use the method "
            "1f1b or gpipe in a loop of your own"
        )


def line_of(spec: RunSpec, positions: Sequence[int], job: StageJob, sizes: Sizes) -> Asynchronous:
    """The pipeline of a loop: an update a batch."""
    options, stages = spec.options, len(positions)
    return Asynchronous(
        label=options.stage_order, positions=positions,
        depths=options.depths(stages, len(job.plan.map.ranks)),
        micros=job.shares.micros, samples=len(job.shares.rows(0)[0]), sizes=sizes,
        recompute=spec.activations != "keep",
    )  # fmt: skip
