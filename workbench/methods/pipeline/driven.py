"""Steps that a user's own loop asks for, of a pipeline of the processes that torchrun started.

`StagePipeline` gets the module and the loss function as one, torch's own AdamW for the weights of
its stage, and a learning rate from outside. Every process calls all that is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from workbench.core.spec import RunSpec
from workbench.core.stage_map import StageMap
from workbench.methods.pipeline.making import StageJob
from workbench.methods.pipeline.stage_pipeline import StagePipeline
from workbench.methods.pipeline.stepping import StepPlan
from workbench.model.objective import Batch, Objective
from workbench.model.tables import tables_kept
from workbench.runtime.checkpoint.continues import FROZEN, NO_DECAY, decided_by
from workbench.runtime.checkpoint.manifest import step_name
from workbench.runtime.passes.stage import dtype_of
from workbench.runtime.transport.groups import as_one, tensors_of_all
from workbench.runtime.transport.neighbours import carrier
from workbench.runtime.updates.stage_updates import adamw
from workbench.training.loop import Steps, Task


def check_tiers(spec: RunSpec) -> None:
    """Raise ValueError for budgets and places that stages on devices have no use for."""
    for name in ("host_memory", "disk_memory"):
        if getattr(spec, name) is not None:
            raise ValueError(
                f"{name} is given; {spec.method} keeps nothing there here, leave it out"
            )
    if spec.activations == "host":
        raise ValueError(
            f"activations is 'host'; {spec.method} keeps or recomputes them here, use "
            "'recompute' or 'keep'"
        )


def job_of(task: Task, plan: StepPlan, rows: int) -> StageJob:
    """A user's loop as a training in stages, whose pipelines take so many rows a step."""
    spec, objective, first = task.spec, task.objective, task.first

    def weigh(tensors: Mapping[str, Tensor]) -> float:
        given = [tensors[name] for name in sorted(tensors)]
        if task.weight_of is not None:
            return float(task.weight_of(first.filled(given)).sum())
        return float(objective.counts(given).sum())

    return StageJob(
        get_batch=first.named, plan=plan, device=task.peers.device, seed=spec.seed,
        compile="on" if spec.compile == "on" else "off", records=spec.replay != "off",
        device_memory=spec.device_memory,
        shares=plan.shares(rows, -(-spec.batch // task.microbatches)),
        dtype=dtype_of(fp16=False, bf16=spec.dtype == "bf16"), weight_of=weigh,
        backend=carrier("auto", task.peers.device),
    )  # fmt: skip


@contextmanager
def cutting(objective: Objective) -> Iterator[None]:
    """Within, a module and its loss function are cut: errors that speak of the two as one module
    name them as the user knows them."""
    try:
        objective.fill()
        with tables_kept(objective):
            yield
    except ValueError as error:
        kind = type(objective).__name__
        why = re.sub(rf"{kind}.forward, line \d+", "its call, or in loss_fn", str(error))
        raise ValueError(why.replace(kind, objective.name)) from None


def told_of(task: Task) -> dict[str, Any]:
    """All that decides a training's losses, as its checkpoints have it."""
    spec, objective = task.spec, task.objective
    frozen = [name for name, p in objective.named_parameters() if not p.requires_grad]
    stay = objective.no_decay.difference(frozen) if spec.weight_decay else ()
    trained = {FROZEN: sorted(frozen), NO_DECAY: sorted(stay)}
    return decided_by(spec) | {"model": {"family": spec.model.family}} | trained


class Pipelined(Steps):
    """Steps of one process of a pipeline."""

    def __init__(self, task: Task) -> None:
        """Raises ValueError for what cannot be trained so."""
        spec, peers = task.spec, task.peers
        check_tiers(spec)
        usual = type(spec.options)()
        for name, value in vars(spec.options).items():
            if name != "chunks" and value != getattr(usual, name):
                raise ValueError(
                    f"{name} is {value!r}; in a loop of one's own stages and microbatches say the "
                    "shape, leave it out"
                )
        self._all, world = peers.group, len(peers.folders)
        stages = world if task.stages is None else task.stages
        if stages < 1 or world % stages:
            raise ValueError(f"stages is {stages}; it must divide the {world} processes")
        rows = sum(as_one(lambda: spec.batch, peers.group))
        self._spec, self._clip = spec, spec.clip
        objective = task.objective
        task.report.phase(f"cutting the module into {stages} stage{'s' * (stages > 1)}")
        if task.microbatches > 1 or stages < world:
            as_one(lambda: objective.divide(objective.twin().layered()[0]), peers.group)
        with cutting(objective):
            plan = StepPlan(
                map=StageMap.of(stages, world // stages), order=spec.method,
                chunks=spec.options.chunks,
                activations="recompute" if spec.activations == "auto" else spec.activations,
            )  # fmt: skip
            self._model = StagePipeline(objective, job_of(task, plan, rows // stages))
        peers.stops += [self._model.stop, *(group.abort for group in self._model.groups)]
        for parameter in self._model.parameters():  # the user's own stay as they are
            parameter.data = parameter.data.clone()
        named = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        decaying = named.keys() - objective.no_decay
        self._optimizer = adamw(spec, named, decaying, peers.device)
        self._model.checkpoints.optimizers = [self._optimizer]
        self._model.checkpoints.training = told_of(task)

    @property
    def steps(self) -> int:
        return self._model.steps

    @property
    def grad_norm(self) -> float | None:
        return self._model.grad_norm

    def step(self, batch: Batch) -> float:
        self._before = self.steps
        ended = self._model.passes(batch.named(), self._clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self._spec.learning_rate(self.steps)
        if ended.overflow:
            self._model.forget()
        else:
            self._optimizer.step()
        return ended.loss

    def forget(self) -> bool:
        self._model.forget()
        return self.steps == self._before

    def tensors(self) -> dict[str, Tensor]:
        named = (*self._model.named_parameters(), *self._model.named_buffers())
        parts = tensors_of_all(dict(named), self._all)
        return {name: tensor for part in parts for name, tensor in part.items()}

    def save(self, folder: Path) -> Path:
        self._model.checkpoints.settings = self._spec.optimizer.told()
        self._model.checkpoints.save(folder).wait()
        return folder / step_name(self.steps)

    def load(self, folder: Path) -> int | None:
        return self._model.checkpoints.load(folder)

    def close(self) -> None:
        self._model.close()
