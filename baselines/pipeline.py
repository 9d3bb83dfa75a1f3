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
  what waits for that is the head's input, and not a matrix for every micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle
from torch.utils.checkpoint import checkpoint as checkpointed

from baselines.adamw import ClippedAdamW
from baselines.common import refuse_host_activations
from baselines.plain_training import PlainTraining
from baselines.stages import cut
from baselines.states import StageHolder
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.base import Context, LayeredModel, set_parameter
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.transport.groups import new_group
from workbench.training import trained_ranks

PipelineSchedule = PipelineScheduleSingle | PipelineScheduleMulti


def train(work: str, spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with a stage on every rank's device; `work` is the module of the schedule.

    Raises ValueError for what a pipeline cannot do, OutOfMemory past a device's budget, RankFailed.
    """
    refuse_host_activations(spec, "a pipeline")
    stages_of(make_model(spec.model, spec.seed), spec)
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
    return cut(
        [model.flops(unit, spec.microbatch, spec.model.seq) for unit in units],
        [model.unit_parameters(unit) for unit in units],
        spec.ranks * getattr(spec.options, "chunks", 1),
        recompute=spec.activations != "keep",
    )


class Stages(nn.Module):
    """Some units of a model, as `Whole` has all of them: [m, S] tokens or [m, S, H] -> [m, S, H].

    The units of other ranks are empty modules, so that numbers stay those of the model. The head,
    which takes targets too, is run by `loss`.
    """

    def __init__(
        self,
        model: LayeredModel,
        own: Sequence[range],
        *,
        seed: int,
        device: torch.device,
        checkpoint: bool,
    ) -> None:
        super().__init__()
        self.layered, self.seed, self.checkpoint = model, seed, checkpoint
        self.own = sorted(unit for stage in own for unit in stage)
        self.step = 0
        """The optimizer step, which draws depend on. (torch 2.11 takes tensors only in a call.)"""
        self.units = nn.ModuleList(
            model.build(unit, seed=seed, device=device) if unit in self.own else nn.Module()
            for unit in range(model.num_units)
        )
        self.passed: Context | None = None
        """Identity of the micro-batch that passed the head last."""

    def share_tied(self, device: torch.device, dtype: torch.dtype) -> list[tuple[int, str]]:
        """Make a weight that two units of this rank use one parameter. One that belongs to another
        rank's unit gets memory; returns (unit, local name) of those."""
        borrowed = []
        for (unit, name), (owner, owner_name) in self.layered.tied().items():
            if unit not in self.own:
                continue
            if owner in self.own:
                weight = self.units[owner].get_parameter(owner_name)
            else:
                shape = self.layered.shapes(owner)[owner_name]
                weight = torch.empty(shape, dtype=dtype, device=device)
                borrowed.append((unit, name))
            set_parameter(self.units[unit], name, weight)
        return borrowed

    @property
    def blocks(self) -> list[nn.Module]:
        """Layers of all stages of the rank."""
        return [self.units[unit] for unit in self.own if 0 < unit < self.layered.head]

    def run(self, stage: range, x: Tensor, *, samples: Tensor) -> Tensor:
        """One micro-batch through a stage; `samples` [m] are the global numbers of its rows."""
        rows, run = tuple(samples.tolist()), self.layered.forward
        for unit in stage:
            ctx = Context(seed=self.seed, step=self.step, unit=unit, samples=rows)
            if unit == self.layered.head:
                self.passed = ctx
                break
            if self.checkpoint and unit:
                x = checkpointed(
                    run, unit, self.units[unit], x, ctx,
                    use_reentrant=False, preserve_rng_state=False,
                )  # fmt: skip
            else:
                x = run(unit, self.units[unit], x, ctx)
        return x

    def loss(self, x: Tensor, targets: Tensor, ctx: Context) -> Tensor:
        """Mean loss of a micro-batch, an fp32 scalar."""
        return self.layered.forward(ctx.unit, self.units[ctx.unit], x, ctx, targets)


class Stage(nn.Module):
    """One stage, as torch's schedules call it. Its units are those of `Stages`."""

    def __init__(self, stages: Stages, own: range) -> None:
        super().__init__()
        self.units = nn.ModuleList(stages.units[unit] for unit in own)
        self._run = partial(stages.run, own)

    def forward(self, x: Tensor, **of: Any) -> Tensor:
        """One micro-batch."""
        return self._run(x, **of)


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
        spec = self.spec
        inner = torch.empty(
            (spec.microbatch, spec.model.seq, self.model.hidden),
            dtype=DTYPES[spec.dtype],
            device="meta",
            requires_grad=True,
        )
        tokens = torch.empty(inner.shape[:2], dtype=torch.int64, device="meta")
        stages = [
            PipelineStage(
                Stage(self.whole, self.stages[number]),
                number,
                len(self.stages),
                self.device,
                input_args=inner if number else tokens,
                output_args=inner,
            )
            for number in range(self.rank, len(self.stages), spec.ranks)
        ]
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
        tokens, targets = (rows.to(self.device) for rows in self.batches.batch(step))
        inputs = (tokens,) if self.rank == 0 else ()
        last = self.rank == self.spec.ranks - 1
        self.loss.zero_()
        self.whole.step = step
        self.schedule.step(
            *inputs,
            target=targets if last else None,
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

        def head(x: Tensor) -> Tensor:
            loss = self.whole.loss(x, targets, ctx) / self.spec.microbatches
            self.loss += loss.detach()
            return loss

        return _Later.apply(x, head)

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
        ties = []
        rank_of = {u: s % self.spec.ranks for s, stage in enumerate(self.stages) for u in stage}
        for (unit, name), (owner, owner_name) in self.model.tied().items():
            theirs, ours = rank_of[owner], rank_of[unit]
            if ours == theirs:
                continue
            group = new_group([theirs, ours])  # by all ranks, also those that are not in it
            if self.rank in (theirs, ours):
                at, own = (owner, owner_name) if self.rank == theirs else (unit, name)
                ties.append(Tie(whole.units[at].get_parameter(own), theirs, group))
        return ties

    # -- checkpoints ----------------------------------------------------------------------------

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
    """A scalar whose forward pass is made in the backward pass; until then its value is 0."""

    @staticmethod
    def forward(ctx, x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.run = run
        return x.new_zeros((), dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            (ctx.run(x) * grad).backward()
        return x.grad, None
