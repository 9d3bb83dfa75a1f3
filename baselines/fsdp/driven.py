"""FSDP2 in a user's own loop, in one process or in those that torchrun started.

Of several processes each has a part of every parameter, by its first dimension, with the moments of
that part, and passes its own rows. A checkpoint has whole tensors: all gather a unit's, and the
first process writes them; to take one up, each reads all and keeps its part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baselines.adamw import global_norm
from baselines.common import named_units
from baselines.fsdp.planner import check
from baselines.fsdp.run import FsdpTraining
from baselines.states import ModuleHolder, masters_by_unit
from workbench.core.spec import RunSpec
from workbench.model.draws import Draws
from workbench.model.keyed import norms_in
from workbench.model.modules import Decomposed
from workbench.model.objective import PREFIX
from workbench.runtime.checkpoint.checkpoint import KINDS, write_unit
from workbench.runtime.checkpoint.together import Together
from workbench.runtime.executor.threads import use_rank_threads
from workbench.runtime.transport.cut import wait
from workbench.runtime.transport.groups import as_one, tensors_of_all
from workbench.training.history import History
from workbench.training.loop import InOneProcess, Steps, Task
from workbench.training.run import resolve_device


def driven(task: Task) -> Steps:
    """Steps that a user's loop asks for. Raises ValueError for what FSDP2 does not offer."""
    check(task.spec)
    peers, kind = task.peers, FsdpTraining
    if len(peers.folders) > 1:
        check_alike(task, peers.group)
        over = peers.new_group("nccl") if peers.device.type == "cuda" else peers.group
        kind = partial(Shard, peers.group, over=over)

    def make(spec: RunSpec, *given: Any) -> FsdpTraining:
        refuse_module(given[0])
        return kind(spec, task.report, task.folder, given=given)

    return InOneProcess(task, make)


def check_alike(task: Task, gloo: dist.ProcessGroup) -> None:
    """Raise ValueError, in all processes, where they begin with unlike batches or weights."""
    weights = task.objective.weights().items()  # of which a few numbers tell
    heads = {name: each.detach().flatten()[:64].tolist() for name, each in weights}
    rows, begins = zip(*as_one(lambda: (task.first.rows, heads), gloo), strict=True)
    for what, found in {"numbers of rows": rows, "weights": begins}.items():
        if any(each != found[0] for each in found):
            raise ValueError(f"the processes have different {what}; give all of them the same")


def refuse_module(model: Decomposed) -> None:
    """Raise ValueError for a module of whose weights some are not trained or are in several blocks,
    or that has BatchNorm."""
    for unit in range(model.num_units):
        for name in model.shapes(unit):
            full = model.state_name(unit, name).removeprefix(PREFIX)
            if not model.learns(unit, name):
                raise ValueError(
                    f"{full} is not trained; fsdp trains all parameters, use plain or stronghold"
                )
        if norms_in(model.build(unit, seed=0, device="meta")):
            raise ValueError("the model has BatchNorm; fsdp does not train it, use plain")
    for (unit, name), (owner, _) in model.tied().items():
        if (owner, unit) != (0, model.head):
            raise ValueError(
                f"{model.state_name(unit, name).removeprefix(PREFIX)} is in layers {owner} and "
                f"{unit}; fsdp shares weights of the first and the last layer alone, use plain or "
                "stronghold"
            )


class Rows(Draws):
    """The rows of one process, by their numbers among those of all."""

    def samples(self, step: int) -> tuple[int, ...]:
        return super().samples(step * dist.get_world_size() + dist.get_rank())


class Shard(FsdpTraining):
    """Training of one process's rows, and of its part of all weights."""

    def __init__(self, gloo: dist.ProcessGroup, spec: RunSpec, *rest: Any, **given: Any) -> None:
        self._gloo, self._ranks = gloo, dist.get_world_size()
        use_rank_threads(resolve_device(spec.device).type, self._ranks)
        super().__init__(spec, *rest, **given)
        self.batches = Rows(self.batches.data, spec.batch)
        masters = masters_by_unit(self.whole, self.masters)
        self.holder = PartsTogether(gloo, self.model, masters, self.optimizer)
        all_rows = replace(spec, batch=spec.batch * self._ranks)
        self.history = History(all_rows, self.folder, self.batches, model=self.model)

    def _step(self, step: int) -> tuple[float, float]:
        """One optimizer step; returns its mean loss and the norm of its gradients, of all rows."""
        weight = float(self.batches.batch(step)[-1].sum())
        self.share = weight * self._ranks / float(self._sum(weight))
        loss, norm = super()._step(step)
        return float(self._sum(loss)) / self._ranks, norm

    def norm_of(self, grads: list[Tensor]) -> Tensor:
        """Norm of all parts of the gradients."""
        return self._sum(float(global_norm(grads)) ** 2).sqrt().float()

    def _sum(self, value: float) -> Tensor:
        total = torch.tensor(value, dtype=torch.float64)
        wait(dist.all_reduce(total, group=self._gloo, async_op=True), self._gloo)
        return total

    def parameters(self) -> dict[str, Tensor]:
        return {
            self.model.state_name(unit, name): whole_of(self.masters[weight], self._gloo)
            for unit, name, weight in named_units(self.whole)
        }

    def save(self, next_step: int) -> None:
        super().save(next_step)
        self.history.notes = as_one(lambda: self.history.notes, self._gloo)[0]


class Parts(ModuleHolder):
    """Has a part of each tensor; files have whole ones."""

    def __init__(self, gloo: dist.ProcessGroup, *given: Any) -> None:
        super().__init__(*given)
        self.over, self._rank, self._ranks = gloo, dist.get_rank(), dist.get_world_size()

    @torch.no_grad()
    def write(self, folder: Path, kinds: Sequence[str] = KINDS) -> None:
        """As `Holder.write`; the first process does, when it has all parts."""
        for unit in self._masters:
            parts = self._tensors(unit, kinds)
            tensors = [(label, whole_of(part, self.over)) for label, part in parts]
            write = partial(write_unit, folder, unit, tensors)
            as_one(int if self._rank else write, self.over)

    def _read(self, unit: int, read: Callable[[str, Tensor], None]) -> None:
        """Each process reads whole tensors and keeps its part."""
        shapes = [self._model.shapes(unit)[name] for name in self._masters[unit] for _ in KINDS]
        for shape, (label, part) in zip(shapes, self._tensors(unit), strict=True):
            read(label, whole := torch.empty(shape))
            if part.numel():
                part.copy_(whole.chunk(self._ranks)[self._rank])


class PartsTogether(Together, Parts):
    """Parts that all processes write and read when the first one is asked."""


def whole_of(part: Tensor, gloo: dist.ProcessGroup) -> Tensor:
    """A copy of the tensor of whose first dimension each process has a part."""
    return torch.cat([each["part"] for each in tensors_of_all({"part": part}, gloo)])
