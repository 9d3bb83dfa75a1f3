"""Pipelines by torch.distributed.pipelining: what its schedules share (torch_pipelines/).

Each rank has a stage, consecutive units of the model (`stages`), or several where the schedule is
interleaved, and everything of theirs on its device: weights, gradients, masters and moments,
updated as plain training updates them. torch's schedules run the passes of each micro-batch and
send activations and their gradients; what they leave to their user is done here, exactly:

* the clipping norm is that of all stages' gradients, added up with the loss in one message;
* of a weight that is tied over two stages the owner has the optimizer's states. The other stage's
  gradients are added to its own before the norm, and after the update it sends the weight;
* our loss makes the gradients of the head's matrix in its forward pass (`workbench.model.loss`),
  and GPipe runs all forward passes first. So the head runs forward when its backward pass is due:
  what waits for that is the head's input, and not a matrix for every micro-batch;
* of labels that do not count, a micro-batch's loss weighs by those that do;
* several tensors between two stages go as one (`packed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from baselines.adamw import ClippedAdamW
from baselines.packed import Packed
from baselines.plain_training import PlainTraining
from baselines.stage_modules import Stage, Stages
from baselines.stages import stages_for
from baselines.states import StageHolder
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.base import LayeredModel
from workbench.model.keyed import COUNT, norms_in
from workbench.model.weighing import weights_of
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.statistics import name_of, undivided
from workbench.runtime.transport.groups import new_group
from workbench.training import trained_ranks

PipelineSchedule = PipelineScheduleSingle | PipelineScheduleMulti


def train(work: str, spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with a stage on every rank's device; `work` is the module of the schedule.

    Raises ValueError for what a pipeline cannot do, OutOfMemory past a device's budget, RankFailed.
    """
    model = make_model(spec.model, spec.seed)
    for unit in range(model.num_units):
        for path in norms_in(model.skeleton(unit)):
            name = name_of(model, unit, path, COUNT)
            if len(layers := model.norms_named(name)) > 1:
                raise ValueError(
                    f"layers {' and '.join(map(str, layers))} call one BatchNorm, {name!r}, whose "
                    "statistics torch's pipelines would have twice: train it by 1f1b"
                )
    return trained_ranks.train(work, spec, report, folder)


@contextmanager
def training(
    spec: RunSpec, report: Reporter, folder: Path, schedule: type[PipelineSchedule]
) -> Iterator[StagesTraining]:
    """In a rank's process: the training of its stages."""
    yield StagesTraining(spec, report, folder, schedule)


def stages_of(model: LayeredModel, spec: RunSpec) -> tuple[range, ...]:
    """The units of each stage; stage s lies on rank s % ranks. Raises ValueError where there are
    too many."""
    units = range(model.num_units)
    flops = [model.flops(unit, spec.microbatch, spec.model.seq) for unit in units]
    return stages_for(spec, flops, [model.unit_parameters(unit) for unit in units])


class StagesTraining(PlainTraining):
    """Plain training of a rank's stages."""

    built, holder_kind = "the stages", StageHolder

    def __init__(
        self,
        spec: RunSpec,
        report: Reporter,
        folder: Path,
        schedule: type[PipelineSchedule],
    ) -> None:
        self.rank = dist.get_rank()
        super().__init__(spec, report, folder)
        self.loss = torch.zeros((), device=self.device)
        self._weights: dict[int, float] = {}
        """First sample of a micro-batch -> weight of its loss, where that is not 1."""
        self._statistics: dict[str, Tensor] = {}
        """BatchNorm's, of all ranks, when they are asked for."""
        self.schedule = self._schedule(schedule)

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        told = super().outcome()
        name = type(self.schedule).__name__
        units = ", ".join(f"{stage.start} to {stage.stop - 1}" for stage in self.stages)
        return replace(
            told,
            engine=f"{name} of torch {torch.__version__}, {self.blocks}",
            notes=[*told.notes, f"stages of units {units}; {self.spec.microbatches} micro-batches"],
        )

    def _schedule(self, schedule: type[PipelineSchedule]) -> PipelineSchedule:
        spec, head, dtype = self.spec, self.model.head, DTYPES[self.spec.dtype]

        def form(unit: int) -> Packed:
            parts = self.model.boundary(unit, spec.model.seq)
            return Packed(parts, spec.microbatch, dtype)

        *first, _ = self.batches.rows(self.batches.samples(0)[:1])
        given = tuple(
            torch.empty(spec.microbatch, *part.shape[1:], dtype=self._narrowed(part).dtype,
                        device="meta")
            for part in first
        )  # fmt: skip
        stages = []
        for number in range(self.rank, len(self.stages), spec.ranks):
            own = self.stages[number]
            came, leaves = form(own.start) if number else None, form(min(own.stop, head))
            stages.append(
                PipelineStage(
                    Stage(self.whole, own, came, leaves),
                    number,
                    len(self.stages),
                    self.device,
                    input_args=came.example if came else given,
                    output_args=leaves.example,
                )
            )
        self._ends = form(head)
        several = issubclass(schedule, PipelineScheduleMulti)
        # The loss is a mean over the micro-batches already.
        return schedule(
            stages if several else stages[0],
            spec.microbatches,
            loss_fn=self._loss,
            scale_grads=False,
        )

    # -- a step ---------------------------------------------------------------------------------

    def _step(self, step: int) -> tuple[float, float]:
        """One optimizer step; returns its mean loss and the norm of all stages' gradients."""
        *inputs, targets = self.batches.batch(step)
        first, last = self.rank == 0, self.rank == self.spec.ranks - 1
        if last and self.model.counts_differ:
            parts = targets.split(self.spec.microbatch)
            weights = weights_of(self.model, self.batches, step, parts)
            starts = self.batches.samples(step)[:: self.spec.microbatch]
            self._weights = dict(zip(starts, weights, strict=True))
        self.loss.zero_()
        self.whole.step = step
        self.schedule.step(
            *(self._narrowed(part).to(self.device) for part in inputs if first),
            target=targets.to(self.device) if last else None,
            return_outputs=False,
            samples=torch.tensor(self.batches.samples(step)),
        )
        for tie in self.ties:
            tie.add_gradients()
        self.optimizer.begin(self.loss)
        self._update(self.spec.learning_rate(step))
        for tie in self.ties:
            tie.send_weight()
        return self.optimizer.told()

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Asked for by the schedule as soon as a micro-batch has passed."""
        ctx = self.whole.passed
        weight = self._weights.get(ctx.samples[0], 1.0)

        def head(x: Tensor) -> Tensor:
            loss = self.whole.loss(self._ends.unpack(x), targets, ctx) * weight
            loss = loss / self.spec.microbatches
            self.loss += loss.detach()
            return loss

        return _Later.apply(x, head if weight else None)

    def _narrowed(self, part: Tensor) -> Tensor:
        """An input of the model, in the run's dtype if it is no integer."""
        return part.to(DTYPES[self.spec.dtype]) if part.is_floating_point() else part

    # -- set-up -------------------------------------------------------------------------------

    def _whole(self) -> Stages:
        self.stages = stages_of(self.model, self.spec)
        whole = Stages(
            self.model,
            self.stages[self.rank :: self.spec.ranks],
            seed=self.spec.seed,
            device=self.device,
            checkpoint=self.spec.activations != "keep",
        )
        self.ties = self._tie(whole)
        return whole

    def _optimizer(self) -> OfAllStages:
        return OfAllStages(super()._optimizer())

    # -- weights of two stages ------------------------------------------------------------------

    def _tie(self, whole: Stages) -> list[Tie]:
        """Tied weights become one parameter where a stage has both units, else a tie."""
        whole.share_tied(self.device, DTYPES[self.spec.dtype])
        ties, tied = [], set()
        rank_of = {u: s % self.spec.ranks for s, stage in enumerate(self.stages) for u in stage}
        for (unit, name), (owner, owner_name) in self.model.tied().items():
            theirs, ours = rank_of[owner], rank_of[unit]
            if ours == theirs or (ours, owner, owner_name) in tied:
                continue
            tied.add((ours, owner, owner_name))
            group = new_group([theirs, ours])  # by all ranks, also those that are not in it
            if self.rank in (theirs, ours):
                at, own = (owner, owner_name) if self.rank == theirs else (unit, name)
                ties.append(Tie(whole.units[at].get_parameter(own), theirs, group))
        return ties

    # -- checkpoints ----------------------------------------------------------------------------

    def _keep(self, next_step: int, keep: Callable[..., None]) -> None:
        """Each rank has the statistics of its own units: together all are known."""
        units = [
            module if unit in self.whole.own else self.model.skeleton(unit)
            for unit, module in enumerate(self.whole.units)
        ]
        own = undivided(self.model, self.whole.units)
        self._statistics = {
            name: own[name].clone() if name in own else torch.zeros_like(value, device=self.device)
            for name, value in undivided(self.model, units).items()
        }
        for value in self._statistics.values():
            dist.all_reduce(value)
        super()._keep(next_step, keep)

    def statistics(self) -> dict[str, Tensor]:
        return self._statistics

    def resume(self) -> int:
        first = super().resume()
        for tie in self.ties:
            tie.send_weight()
        return first


@dataclass(frozen=True)
class Tie:
    """A weight that two stages use."""

    weight: nn.Parameter
    owner: int
    """The rank whose optimizer has it."""
    group: dist.ProcessGroup
    """The two ranks."""

    def add_gradients(self) -> None:
        """The owner gets the sum, the other one has none any more."""
        if self.weight.grad is None:  # no label of the step has reached it
            self.weight.grad = torch.zeros_like(self.weight)
        dist.reduce(self.weight.grad, dst=self.owner, group=self.group)
        if dist.get_rank() != self.owner:
            self.weight.grad = None

    def send_weight(self) -> None:
        """The other one gets the owner's weight."""
        dist.broadcast(self.weight.detach(), src=self.owner, group=self.group)


class OfAllStages:
    """The optimizer of a stage, clipping by the norm of all stages' gradients."""

    def __init__(self, own: ClippedAdamW) -> None:
        self.inner, self.counted, self._own = own.inner, own.counted, own
        self._loss: Tensor | None = None
        self._sums: Tensor | None = None
        """Sums over all stages: loss, and square of the norm."""

    def begin(self, loss: Tensor) -> None:
        """Before a step's first update; `loss` is 0 but in the last stage."""
        self._loss, self._sums = loss, None

    def step(self, lr: float, norm: Tensor) -> None:
        """Update some parameters; `norm` is that of all gradients of this stage."""
        if self._sums is None:
            self._sums = torch.stack([self._loss.double(), norm.double().square()])
            dist.all_reduce(self._sums)
        self._own.step(lr, self._sums[1].sqrt().float())

    def told(self) -> tuple[float, float]:
        """Loss and norm of the step; waits for the device."""
        loss, square = self._sums.tolist()
        return loss, square**0.5


class _Later(torch.autograd.Function):
    """A scalar whose forward pass is made in the backward pass; until then its value is 0. Without
    one its gradient is 0: the mean of no labels is no number."""

    @staticmethod
    def forward(ctx, x: Tensor, run: Callable[[Tensor], Tensor] | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.run = run
        return x.new_zeros((), dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        if ctx.run is None:
            return torch.zeros_like(x), None
        with torch.enable_grad():
            (ctx.run(x) * grad).backward()
        return x.grad, None
