"""FTPipe in a user's own loop, in the processes of torchrun: batches are taken ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor
from torch.optim import Optimizer

from workbench.core.call_sets import CallSets, read_sets
from workbench.core.division import packs_of
from workbench.core.spec import RunSpec
from workbench.core.stage_map import StageMap
from workbench.methods.ftpipe.mitigating import versions_of
from workbench.methods.ftpipe.planner import line_of
from workbench.methods.ftpipe.stage_sizes import StageSizes
from workbench.methods.pipeline.asynchronous_line import Asynchronous, Loan
from workbench.methods.pipeline.asynchronous_stages import Named
from workbench.methods.pipeline.driven import check_tiers, cutting, job_of, told_of
from workbench.methods.pipeline.stage_stream import StageStream
from workbench.methods.pipeline.stepping import StepPlan
from workbench.model.objective import PREFIX, Batch
from workbench.partition.registered import read
from workbench.profile.unit_costs import Sizes
from workbench.runtime.checkpoint.manifest import step_name
from workbench.runtime.transport.groups import as_one, tensors_of_all
from workbench.runtime.updates.stage_updates import optimizer_of
from workbench.training.loop import Steps, Task


class Streamed(Steps):
    """Steps of one process, several of which are under way at a time."""

    grad_norm = None

    def __init__(self, task: Task) -> None:
        """Raises ValueError for what cannot be trained so."""
        peers, world = task.peers, len(task.peers.folders)
        spec, calls = spec_of(task, world)
        self._spec = spec
        check_tiers(spec)
        options, self._report, self._all = spec.options, task.report, peers.group
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

        def line(sizes: Sizes, loans: Sequence[Loan]) -> Asynchronous:
            each = packs_of([1] * stages)
            return line_of(spec, positions, StageSizes(sizes, each, options.state_values), loans)

        def optimizer(named: Named) -> Optimizer:
            trained = {name: p for name, p in named.items() if p.requires_grad}
            if task.optimizer is not None and trained:
                return task.optimizer([*trained.values()])
            return optimizer_of(
                options.optimizer, spec, trained, trained.keys() - objective.no_decay, peers.device,
                momentum=options.momentum, nesterov=options.nesterov,
            )  # fmt: skip

        with cutting(objective):
            plan = StepPlan(map=StageMap.of(world, 1), order="1f1b", positions=positions)
            job = replace(job_of(task, plan, spec.batch), cut=options.cut, apart=True, calls=calls)
            self._model = StageStream(
                objective, job, line, optimizer, partial(versions_of, options=options),
                rate=lambda: spec.learning_rate(0), clip=spec.clip,
                shares_clip=options.stage_clip == "local-prop",
            )  # fmt: skip
        self._model.checkpoints.training = told_of(task)
        peers.stops += [self._model.stop, *(group.abort for group in self._model.groups)]
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

    def pause(self) -> None:
        self._model.pause()

    def settle(self) -> None:
        losses, left_out = self._model.settle()
        self._waiting += losses
        if left_out:
            self._report.say(
                f"{len(left_out)} updates of single stages are left out, since their gradients are "
                f"not finite; the first in step {left_out[0][0]}"
            )

    def tensors(self) -> dict[str, Tensor]:
        parts = tensors_of_all(self._model.tensors(), self._all)
        return {name: tensor for part in parts for name, tensor in part.items()}

    def save(self, folder: Path) -> Path:
        self._model.checkpoints.settings = self._spec.optimizer.told()
        self._model.checkpoints.save(folder).wait()
        return folder / step_name(self.steps)

    def load(self, folder: Path) -> int | None:
        if (found := self._model.load(folder)) is not None:
            self._waiting.clear()
        return found

    def close(self) -> None:
        self._model.close()

    def _taken(self) -> list[float]:
        losses = [*self._waiting]
        self._waiting.clear()
        return losses


def spec_of(task: Task, world: int) -> tuple[RunSpec, CallSets | None]:
    """The spec of a loop, with the stages of a registered partition where its options name one, and
    the calls of these where they are such. Raises ValueError for what `run` does and a stream does
    not."""
    spec, options = task.spec, task.spec.options
    if options.synchronous:
        raise ValueError(
            f"stage_order is {options.stage_order!r}, which ends with each step; use the method "
            "1f1b or gpipe in a loop of your own"
        )
    calls = None
    if options.partition:
        named = read(task.results, options.partition)
        if named.calls:
            of = {"inside": PREFIX, "names": frozenset(named.stage)}
            calls = replace(read_sets(named.calls), **of)
        cut, places = named.stages_on(world)
        options = replace(options, partition="", cut=cut, map=places)
    model = replace(spec.model, layers=1)  # whatever it has, it is cut later
    how = {"microbatches": task.microbatches, "device": task.peers.device.type}
    return replace(spec, options=options, model=model, ranks=world, **how), calls
