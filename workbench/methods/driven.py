"""Steps that a user's own loop asks for, instead of a run.

A row of the table of methods that can do so names a maker of `Steps` (`Method.driven`). For methods
that are planners on one device of this runtime that is `planned`: it measures the layers of the
user's module on the first batch, plans, and trains under the plan, a step at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psutil
from torch import Tensor

from workbench.core import methods
from workbench.core.bytesize import format_bytes
from workbench.core.reporter import Untold
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.methods.compare import SAMPLES, compare
from workbench.methods.compared import COPIES
from workbench.methods.history import History
from workbench.methods.train import Training, resolve_device
from workbench.model.modules import Decomposed
from workbench.model.objective import Batch, Handed, Objective
from workbench.profile.kinds import kind_costs
from workbench.profile.profile import Profile
from workbench.profile.store import hardware
from workbench.runtime import checkpoint
from workbench.runtime.checkpoint import Holder
from workbench.runtime.manifest import Saved, steps_in, take_newest
from workbench.runtime.storage import DTYPES


class Steps(Protocol):
    """A training that does a step when it is asked to."""

    steps: int
    """Steps done, those before the checkpoint that was loaded among them."""
    grad_norm: float | None
    """Global norm of the last step's gradients before they were clipped, where it is known."""

    def step(self, batch: Batch) -> float:
        """One optimizer step on a batch of the form of the first; its mean loss."""

    def tensors(self) -> dict[str, Tensor]:
        """fp32 weights, and BatchNorm's statistics, by their names in the whole model."""

    def save(self, folder: Path) -> Path:
        """Write ``step-N`` in a folder. Raises OSError if the disk refuses."""

    def load(self, folder: Path) -> int | None:
        """Take up the newest sound checkpoint of a folder; the steps done by it, None where there
        is none. Raises ValueError for one of another training."""

    def close(self) -> None:
        """Give all memory back."""


class OutsideRate(RunSpec):
    """A spec whose learning rate the user's loop sets."""

    __slots__ = ("group",)

    @classmethod
    def of_group(cls, group: Mapping[str, Any], **fields: Any) -> OutsideRate:
        """`group` of a torch optimizer: its rate is read when a step begins."""
        spec = cls(**fields)
        object.__setattr__(spec, "group", group)
        return spec

    def of_layers(self, layers: int) -> OutsideRate:
        """With a model of so many layers between the first and the last."""
        spec = replace(self, model=replace(self.model, layers=max(1, layers)))
        object.__setattr__(spec, "group", self.group)
        return spec

    def learning_rate(self, step: int) -> float:
        return float(self.group["lr"])


@dataclass(frozen=True, kw_only=True)
class Task:
    """A user's training."""

    spec: OutsideRate
    """Its batch is that of this process, its model only as large as a batch's samples are."""
    objective: Objective
    first: Batch
    results: Path
    """Where measurements of this machine are kept."""
    folder: Path
    """For what is gone when the training is closed."""
    stages: int | None
    """Stages of a pipeline, where the user gives them."""


class Whole(Protocol):
    """A training of ours of which one process has all."""

    history: History
    holder: Holder
    done: int
    """Updates made."""

    def advance(self, first: int) -> None:
        """One step, whose number is given."""

    def parameters(self) -> dict[str, Tensor]:
        """fp32 weights by their names."""

    def statistics(self) -> Mapping[str, Tensor]:
        """BatchNorm's running statistics by their names."""

    def restored(self) -> None:
        """Go on where the history stands, whose checkpoint the holder has taken up."""

    def close(self) -> None:
        """Give all memory back."""


class InOneProcess:
    """`Steps` of a `Whole`, whose samples are handed over."""

    def __init__(self, task: Task, make: Any) -> None:
        """`make(spec, model, batches)` makes the `Whole`. Raises ValueError for a module that
        layers would train otherwise than it trains by itself."""
        if task.stages is not None:
            raise ValueError(
                f"stages is {task.stages}; leave it out, {task.spec.method} trains in one process"
            )
        model, self._batches = task.objective.layered(), Handed(task.first)
        _compare(model, self._batches, task.spec.seed)
        self._whole: Whole = make(task.spec.of_layers(model.layers), model, self._batches)
        task.objective.release()
        named = [(n, [*p.shape]) for n, p in task.objective.named_parameters()]
        digest = hashlib.sha256(json.dumps(named).encode()).hexdigest()
        self._continues = {"module": digest, "clip": task.spec.clip, "seed": task.spec.seed}

    @property
    def steps(self) -> int:
        """As `Steps.steps`."""
        return len(self._whole.history.losses)

    @property
    def grad_norm(self) -> float | None:
        """As `Steps.grad_norm`."""
        return (self._whole.history.grad_norms or [None])[-1]

    def step(self, batch: Batch) -> float:
        """As `Steps.step`."""
        self._batches.take(batch)
        self._whole.advance(self.steps)
        return self._whole.history.losses[-1]

    def tensors(self) -> dict[str, Tensor]:
        """As `Steps.tensors`."""
        return {**self._whole.parameters(), **self._whole.statistics()}

    def save(self, folder: Path) -> Path:
        """As `Steps.save`; the two newest stay."""
        whole = self._whole
        manifest = replace(
            whole.history.manifest(self.steps, whole.done), continues=self._continues
        )
        statistics = {name: t.cpu().clone() for name, t in whole.statistics().items()}
        return checkpoint.save(folder, whole.holder, manifest, statistics, [])

    def load(self, folder: Path) -> int | None:
        """As `Steps.load`, of any method in one process."""
        whole = self._whole

        def take(saved: Saved) -> None:
            for name, here in self._continues.items():
                if (there := saved.manifest.continues.get(name)) != here:
                    raise ValueError(
                        f"the checkpoint {saved.path} was made with {name} {there}, and this "
                        f"engine has {here}: it would not be the same training"
                    )
            whole.holder.restore(saved)
            whole.history.statistics = checkpoint.statistics(saved)

        found, _ = take_newest(steps_in(folder), take, Untold())
        if found is None:
            return None
        whole.history.follow(found.manifest)
        whole.restored()
        return self.steps

    def close(self) -> None:
        """As `Steps.close`."""
        self._whole.close()


def planned(task: Task) -> Steps:
    """Steps under the plan of the spec's method. Raises DoesNotFit, and ValueError for what cannot
    be trained so."""

    def make(spec: RunSpec, model: Decomposed, batches: Handed) -> Training:
        profile = _profile(spec, model, batches, task.results)
        plan = methods.load(spec.method).plan(spec, profile)
        return Training(spec, plan, task.folder, given=(model, batches))

    return InOneProcess(task, make)


def _profile(spec: RunSpec, model: Decomposed, batches: Handed, results: Path) -> Profile:
    """The profile of the layers on this machine, measured now."""
    *inputs, targets = batches.rows(range(spec.microbatch))
    device, nbytes = resolve_device(spec.device).type, VALUE_BYTES[spec.dtype]
    how = {"seq": spec.model.seq, "dtype": DTYPES[spec.dtype], "device": device}
    costs, library_bytes = kind_costs(model, tuple(inputs), targets, **how)
    units = [costs[model.kind(unit)] for unit in range(model.num_units)]
    for end in (0, model.head):  # whose gradients are made beside those of the micro-batches before
        more = units[end].backward_scratch_bytes + units[end].parameters * nbytes
        units[end] = replace(units[end], backward_scratch_bytes=more)
    return Profile(
        hardware=hardware(results, device), units=tuple(units), microbatch=spec.microbatch,
        seq=spec.model.seq, weight_bytes=nbytes, library_bytes=library_bytes,
    )  # fmt: skip


def _compare(model: Decomposed, batches: Handed, seed: int) -> None:
    """Compare the layers with the module as it is written, on the first samples. Raises ValueError
    where they would train otherwise, or memory does not suffice to tell."""
    wanted, free = COPIES * 4 * model.parameters_count(), psutil.virtual_memory().available
    if wanted > free:
        raise ValueError(
            f"to compare the layers with the module takes {format_bytes(wanted)} of memory, and "
            f"{format_bytes(free)} are free"
        )
    compare(model, model, batches.rows(range(min(SAMPLES, batches.batch_size))), seed)
