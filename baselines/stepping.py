"""Runs of a baseline in one process: steps, their clock, checkpoints, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from baselines.adamw import global_norm
from baselines.common import DeviceRows, micro_batches, named_units, now_s
from baselines.states import ModuleHolder, masters_by_unit
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.base import LayeredModel
from workbench.model.text import Batches
from workbench.runtime.checkpoint.checkpoint import ByUnit
from workbench.training.history import History
from workbench.training.run import load_batches, resolve_device

NOTHING_MOVES = "nothing of size is on the host or crosses the link: tokens and losses only"
WIDENED_ELEMENTS = 1 << 28
"""Gradients widened at once, 1 GiB of them; a single larger one is widened whole."""


class Stepping:
    """A training of one model. A subclass makes `whole`, `holder` and `history`; where torch passes
    the module as a whole, it has `masters` and updates them in `_update`, else it has a `_step` of
    its own."""

    share = 1.0
    """Weight of the rows here in the step's mean loss, where others have more: 1 on the mean."""
    changed = False
    """Whether the last step has begun to update."""
    holds = False
    """Whether the step leaves its gradients for the next one to add to, and updates nothing."""
    _ahead: list[tuple[DeviceRows, Tensor]] | None = None
    """Losses of micro-batches that have passed forward before their step is asked for."""

    def __init__(
        self,
        spec: RunSpec,
        report: Reporter,
        folder: Path,
        given: tuple[LayeredModel, Batches] | None = None,
    ) -> None:
        """`given`: a model and data that the spec does not name."""
        self.spec, self.report, self.folder = spec, report, folder
        self.device = resolve_device(spec.device)
        self.model = given[0] if given else make_model(spec.model, spec.seed)
        self.batches = given[1] if given else load_batches(spec, self.model, folder / "cache")

    def _hold(self, kind: type[ModuleHolder] = ModuleHolder) -> None:
        """Have checkpoints of our own form, of `masters` and `optimizer`."""
        self.holder = kind(self.model, masters_by_unit(self.whole, self.masters), self.optimizer)
        self.history = History(self.spec, self.folder, self.batches, model=self.model)

    def run(self) -> None:
        """All steps that are left."""
        spec, first = self.spec, self.resume()
        for step in range(first, spec.steps):
            self.step(step, step - first)
            if self.history.pauses_at(step + 1):
                self._keep(step + 1, self.history.pause)

    def forward(self, step: int, *, holds: bool) -> None:
        """The forward passes of a step, which `step` ends; it may hold its gradients."""
        self.holds = holds
        with self._watched(0):
            self._ahead = [*self._forward(step)]

    def _forward(self, step: int) -> Iterator[tuple[DeviceRows, Tensor]]:
        """Micro-batches, each with its loss."""
        for rows in micro_batches(self.batches, self.spec, step, self.device, self.model):
            yield rows, self._loss(rows, step) * (rows.weight * self.share)

    def update(self, step: int) -> None:
        """A step without passes, whose gradients are those that are held."""
        self._ahead = []
        self.step(step)

    def drop(self, _: int) -> None:
        """Let go of a step that only passed forward."""
        self._ahead = None

    def discard(self) -> None:
        """Let go of gradients that are held."""
        self.forget()

    def step(self, step: int, number: int = 0) -> None:
        """One step, the `number`-th of this process."""
        self.changed = False
        begun_s = now_s(self.device)
        with self._watched(number):
            loss, norm = self._step(step)
        seconds = now_s(self.device) - begun_s
        skipped, self.holds = self.holds or self._skipped(norm), False
        self.history.ended(step, loss, seconds, norm, skipped=skipped, report=self.report)

    def save(self, next_step: int) -> None:
        """Write a checkpoint, by all ranks where each has a part of the model."""
        self._keep(next_step, self.history.save)

    def _keep(self, next_step: int, keep: Callable[..., None]) -> None:
        """Have the history save, or do what is due."""
        done = next_step - len(self.history.skipped)
        self.holder.save(lambda: keep(next_step, done, self.holder, self.report, self.statistics()))

    @torch.no_grad()
    def resume(self) -> int:
        """Take up a checkpoint where there is one; returns the first step to do."""
        first = self.history.resume(self.holder, self.report)
        if first:
            self.take_up(self.history.statistics)
        return first

    def statistics(self) -> dict[str, Tensor]:
        """BatchNorm's running statistics, by their names in the whole model; here it has none."""
        return {}

    def take_up(self, statistics: dict[str, Tensor]) -> None:
        """Have BatchNorm's statistics, by their names in the whole model."""

    def have(self, _: LayeredModel) -> None:
        """Batches of any form pass through the module as it is written."""

    def settle(self) -> None:
        """All updates of a step are made when it ends."""

    def forget(self) -> bool:
        """Let go of what a step that failed has left; returns whether it has changed no weight."""
        self._ahead = None
        for tensor in (*self.masters, *self.masters.values()):
            tensor.grad = None
        return not self.changed

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the fp32 weights by their names in the whole model."""
        return {
            self.model.state_name(unit, name): self.masters[weight].detach().clone()
            for unit, name, weight in named_units(self.whole)
        }

    def weights(self) -> ByUnit | None:
        """As `Holder.weights`."""
        return self.holder.weights()

    def close(self) -> None:
        """Torch gives memory back by itself."""

    def measured(
        self,
        engine: str,
        notes: Sequence[str],
        *,
        peak: dict[str, int | None],
        moved: dict[str, int | None] | None = None,
    ) -> Outcome:
        """The measured half of the record. `peak` has bytes by tier; of ``moved`` bytes those are 0
        of which nothing is said."""
        return Outcome(
            **self.history.measured(),
            peak_bytes={"device": 0, "host": 0, "disk": 0, **peak},
            moved_bytes={**dict.fromkeys(("load", "store", "read", "write"), 0), **(moved or {})},
            parameters=self.model.parameters_count(),
            engine=engine,
            notes=[*notes],
        )

    def _watched(self, number: int) -> AbstractContextManager[Any]:
        """A context in which the `number`-th step of this process runs."""
        return nullcontext()

    def _skipped(self, norm: float | None) -> bool:
        """Whether a step whose gradients have this norm has updated nothing."""
        return norm is not None and not math.isfinite(norm)

    def _step(self, step: int) -> tuple[float, float | None]:
        """One optimizer step; returns its mean loss and the norm of its gradients, where it is
        told."""
        spec, total = self.spec, torch.zeros((), device=self.device)
        parts = self._forward(step) if self._ahead is None else self._ahead
        self._ahead = None
        for rows, loss in parts:
            if rows.weight:  # the mean of nothing is no number, nor are its gradients
                (loss / spec.microbatches).backward()
                total += loss.detach()
        if self.holds:
            return float(total) / spec.microbatches, None
        self.changed = True
        norm = self._update(spec.learning_rate(step))
        return float(total) / spec.microbatches, float(norm)

    def _loss(self, rows: DeviceRows, step: int) -> Tensor:
        """Mean loss of a micro-batch, a scalar."""
        return self.whole(rows.tokens, rows.targets, step=step, samples=rows.samples)


class Resident(Stepping):
    """A training whose weights, gradients, masters and moments are all on the device: `masters`
    has the fp32 master of each working weight, which is the weight itself in fp32."""

    @torch.no_grad()
    def _update(self, lr: float) -> Tensor:
        for weight in self.masters:
            if weight.grad is None:  # no gradient reaches it, and it does not decay
                weight.grad = torch.zeros_like(weight)
        norm = global_norm([weight.grad for weight in self.masters])
        if all(weight is master for weight, master in self.masters.items()):
            self.optimizer.step(lr, norm)
            return norm
        for weights in parts_of(self.masters, WIDENED_ELEMENTS):
            masters = [self.masters[weight] for weight in weights]
            for master in masters:
                master.grad = torch.empty_like(master)
            torch._foreach_copy_([m.grad for m in masters], [w.grad for w in weights])
            for weight in weights:
                weight.grad = None
            self.optimizer.step(lr, norm)  # of the masters that have a gradient
            torch._foreach_copy_(weights, masters)
        return norm

    @torch.no_grad()
    def resume(self) -> int:
        """As `Stepping.resume`; working weights are those of the masters."""
        first = super().resume()
        if first:
            self._narrow()
        return first

    def _narrow(self) -> None:
        """Make working weights those of the masters."""
        for weight, master in self.masters.items():
            if weight is not master:
                weight.copy_(master)


def parts_of(tensors: Iterable[Tensor], elements: int) -> list[list[Tensor]]:
    """The tensors in order, cut into parts of at most `elements`, or of one tensor."""
    parts: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        if not parts or size + tensor.numel() > elements:
            parts.append([])
            size = 0
        parts[-1].append(tensor)
        size += tensor.numel()
    return parts
