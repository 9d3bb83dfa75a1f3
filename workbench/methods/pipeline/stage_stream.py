"""One process's stages of a user's module, trained by a pipeline that never drains.

Each stage is updated by itself whenever the schedule says so (asynchronous_stages.py). A batch
begins when it is given, and its loss comes later: the process of the last stage tells the others.
`settle` drains the pipeline; the next batch fills it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.methods.pipeline.asynchronous_line import Asynchronous, Loan
from workbench.methods.pipeline.asynchronous_stages import AsynchronousStages, Begun, Named
from workbench.methods.pipeline.checkpoints import Checkpoints
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.methods.pipeline.making import StageJob, in_turn, made
from workbench.methods.pipeline.stage_pipeline import divided
from workbench.model.slices import Inputs
from workbench.profile.unit_costs import Sizes
from workbench.runtime.memory.device_budget import confine
from workbench.runtime.passes.statistics import ReplicaStatistics
from workbench.runtime.transport.groups import join, new_group
from workbench.runtime.updates.step_end import Ended, LossScale
from workbench.runtime.updates.weight_versions import WeightVersions


class StageStream:
    """The stages of one process; every process of the world makes it and calls its methods."""

    def __init__(
        self, model: nn.Module, job: StageJob,
        line: Callable[[Sizes, Sequence[Loan]], Asynchronous],
        optimizer: Callable[[Named], Optimizer], versions: Callable[..., WeightVersions], *,
        rate: Callable[[], float], clip: float | None, shares_clip: bool,
    ) -> None:  # fmt: skip
        """`line` is the pipeline, of stages of these sizes, which lend each other weights;
        `optimizer` makes one for a stage's parameters, which has the `rate` of the time when an
        update's batch was given; `versions` of the weights of an optimizer, in a stage's modules.
        `clip` bounds the norm of each stage's gradients, or a part of it does (`shares_clip`).
        Raises ValueError, one sentence, for what cannot be trained so."""
        self._job, self._rate, device = job, rate, job.device
        join(device)
        self.rank = dist.get_rank()
        everybody, self._tells = new_group(backend="gloo"), new_group(backend="gloo")
        part = partial(made, model), partial(job.make, self.rank), self.rank, everybody
        own = in_turn(*part, says=attrgetter("cut"))
        learning = {}
        for stage, each in own.stages.items():
            named = each.named_parameters()
            learning[stage] = {name: own.learning[name] for name in named}
            for parameter in named.values():  # the user's own stay as they are
                parameter.data = parameter.data.clone()
        pipeline = line(own.sizes or IdealSizes(), own.lent)
        self._given: dict[int, Begun] = {}
        """Steps that no action has begun yet."""
        self._stages = AsynchronousStages(
            pipeline, own.stages, learning, own.loans, optimizer=lambda _, named: optimizer(named),
            versions=lambda stage, of, **how: versions(of, own.stages[stage].modules, **how),
            read=self._given.pop, updated=self._updated, clip=clip, shares_clip=shares_clip,
            device=device, backend=job.backend, everybody=everybody, budget=job.device_memory,
            perturb=job.perturb, latency=job.latency,
        )  # fmt: skip
        confine(device, job.device_memory)
        self.groups = {*self._stages.groups, self._tells}
        """Process groups in which somebody may wait."""
        self._last, self._teller = len(pipeline.positions) - 1, pipeline.positions[-1]
        self.steps = self._told = 0
        """Steps that have begun, which are done when the pipeline is drained; those whose losses
        were handed out."""
        self._ahead = 1 + max(pipeline.lag(s, pipeline.micros - 1) for s in range(self._last + 1))
        """Steps begun after one whose loss is handed out: by then it has come, or is on its way."""
        self._came: deque[tuple[dist.Work, Tensor]] = deque()
        """Losses that have come or are to come, in order."""
        every = [each for s in own.stages.values() for each in zip(s.units, s.modules, strict=True)]
        first = next(iter(own.stages.values()))
        self._norms = ReplicaStatistics(first.model, every, (0, 1), None)
        continues: dict[str, Any] = {"module": own.digest, "batch": job.shares.batch}
        continues["seed"] = job.seed
        self.checkpoints = Checkpoints(
            own.owned, own.owned, self._norms, continues, LossScale(), first=True
        )
        self.checkpoints.optimizers = [each.optimizer for each in self._stages.optimizers.values()]

    def give(self, inputs: Inputs) -> list[float]:
        """Begin a step on a batch, equal in all processes; the losses, in order, of the steps that
        have ended since."""
        step, job, stages = self.steps, self._job, self._stages.stages
        next(iter(stages.values())).check(inputs)
        given, micros = divided(
            inputs, job, job.shares, 0, step=step, training=True, weighs=self._last in stages
        )
        whole = sum(micro.weight for micro in micros)
        scale = 1 / whole if whole else 0.0
        self._given[step] = Begun(rows=given, micros=micros, scale=scale, rate=self._rate())
        if self.rank != self._teller:
            self._tell(torch.zeros((), dtype=torch.float64))
        self._stages.step(step)
        self.steps += 1
        return [*self._losses(self.steps - self._ahead)]

    def pause(self) -> None:
        """Wait until the batches given have gone as far as they do without the next one."""
        self._stages.pause()

    def settle(self) -> tuple[list[float], list[tuple[int, int]]]:
        """Drain the pipeline; the losses that had not come, and the steps and stages of which an
        update was left out, for gradients that were not finite."""
        left_out = self._stages.drain()
        return [*self._losses(self.steps)], left_out

    def tensors(self) -> dict[str, Tensor]:
        """Parameters of the stages here, and statistics of BatchNorms, by their names in the whole
        module."""
        owned = (self._stages.owned(stage) for stage in self._stages.stages)
        return {name: each for own in owned for name, each in own.items()} | self._norms.named

    def load(self, folder: Path) -> int | None:
        """As `Checkpoints.load`, of a pipeline that is drained."""
        if (found := self.checkpoints.load(folder)) is not None:
            self.steps = self._told = found
            self._came.clear()
        return found

    def stop(self) -> None:
        """Have no step wait any more (from any thread)."""
        self._stages.stop()

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        self.checkpoints.wait()
        self._stages.close()
        confine(self._job.device, None)

    def _updated(self, stage: int, step: int, done: bool) -> None:
        """A stage has been updated, the last action of a step on it."""
        if stage == self._last:
            loss, whole = self._stages.engine.mean_loss(step)
            self._tell(torch.tensor(loss / whole if whole else 0.0, dtype=torch.float64))

    def _tell(self, loss: Tensor) -> None:
        """Have all know a step's loss, in the order of steps."""
        work = dist.broadcast(loss, self._teller, group=self._tells, async_op=True)
        self._came.append((work, loss))

    def _losses(self, before: int) -> Iterator[float]:
        """Those of the steps before this one that nobody has had: of all processes alike."""
        while self._told < before:
            work, loss = self._came.popleft()
            work.wait()
            self._told += 1
            self.checkpoints.progress.add(Ended(float(loss), False, None, False), 0.0)
            yield float(loss)
