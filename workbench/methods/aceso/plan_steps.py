"""Steps of a plan in a user's own loop: their history, checkpoints and weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from workbench.core.reporter import Untold
from workbench.core.spec import RunSpec
from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.stepping import PlanStepping, StepRows
from workbench.methods.pipeline.driven import check_tiers
from workbench.model.objective import Batch
from workbench.runtime.checkpoint.manifest import step_name
from workbench.runtime.transport.groups import as_one
from workbench.training.history import History
from workbench.training.loop import Steps, Task


class PlanSteps(Steps):
    """Steps of one process of a plan."""

    prefix = ""
    """Of names in the objective, where the plan's model has names without it."""
    _spec: RunSpec
    _stepping: PlanStepping
    _history: History

    @property
    def steps(self) -> int:
        return len(self._history.losses)

    @property
    def grad_norm(self) -> float | None:
        return (self._history.grad_norms or [None])[-1]

    def _step(self, batch: Batch, rows: StepRows) -> float:
        self._before = step = self.steps
        samples = range(step * batch.rows, (step + 1) * batch.rows)
        ended = self._stepping.step(step, samples, lambda: rows)
        self._history.ended(
            step, ended.loss, 0.0, ended.norm, skipped=ended.overflow, report=Untold()
        )
        return ended.loss

    def forget(self) -> bool:
        self._stepping.forget()
        return self.steps == self._before

    def tensors(self) -> dict[str, Tensor]:
        found = self._stepping.holder.wholes() | self._stepping.statistics()
        return {self.prefix + name: tensor for name, tensor in found.items()}

    def save(self, folder: Path) -> Path:
        history, holder = self._history, self._stepping.holder
        path, steps = folder / step_name(self.steps), self.steps
        history.folder, history.settings = folder, self._spec.optimizer.told()
        of = holder, Untold(), self._stepping.statistics()
        holder.save(partial(history.save, steps, steps - len(history.skipped), *of))
        if not path.exists():
            raise OSError((history.notes or [f"{path} was not written"])[-1])
        return path

    def load(self, folder: Path) -> int | None:
        self._history.folder = folder
        found = self._history.resume(self._stepping.holder, Untold())
        if found:
            self._stepping.take_up(self._history.statistics)
        return found or None

    def close(self) -> None:
        self._stepping.close()


def check(task: Task, plan: Plan) -> None:
    """Raise ValueError for a loop that the plan does not train."""
    spec, world = task.spec, len(task.peers.folders)
    check_tiers(spec)
    if plan.gpus != world:
        raise ValueError(f"the plan is for {plan.gpus} devices, and there are {world} processes: "
                         f"start the script by torchrun with {plan.gpus}")  # fmt: skip
    if spec.batch != plan.subject.batch:
        raise ValueError(f"the batch has {spec.batch} rows; the plan's has {plan.subject.batch}, "
                         "which every process passes whole")  # fmt: skip
    for name, value, usual in (
        ("stages", task.stages, None), ("microbatches", task.microbatches, 1),
        ("activations", spec.activations, "auto"), ("weight_of", task.weight_of, None),
    ):  # fmt: skip
        if value != usual:
            raise ValueError(f"{name} is {value!r}; the plan and the labels say it, leave it out")


def check_alike(task: Task, tensors: Sequence[Tensor]) -> None:
    """Raise ValueError, in every process, unless all pass the same batch."""
    told = as_one(partial(_digest, tensors), task.peers.group)
    if len({*told}) > 1:
        raise ValueError("the processes pass other batches; a plan's take the same whole one")


def _digest(tensors: Sequence[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().view(torch.uint8).numpy())
    return found.hexdigest()
