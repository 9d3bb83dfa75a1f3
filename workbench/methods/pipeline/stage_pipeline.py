"""One process's stages of a user's module, trained by any order of pipelines.

Each process makes the module, cuts it, and keeps its stages (making.py). A step is a schedule,
proved before it runs and run by the executor of all methods (stepping.py). Losses and gradients are
those of the module itself on the whole batch, however many stages, replicas and micro-batches there
are. The caller's optimizer updates the weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter

import torch
import torch.distributed as dist
from torch import nn

from workbench.methods.pipeline.checkpoints import Checkpoints
from workbench.methods.pipeline.making import StageJob, in_turn, made
from workbench.methods.pipeline.shares import Shares
from workbench.methods.pipeline.slice_sizes import SliceSizes
from workbench.methods.pipeline.stepping import Stepping
from workbench.model.base import Context
from workbench.model.slices import Inputs, check_inputs
from workbench.runtime.memory.device_budget import confine
from workbench.runtime.passes.stage import Given
from workbench.runtime.passes.stage_engine import MicroBatch, StageEngine
from workbench.runtime.passes.stage_passes import StagePasses
from workbench.runtime.passes.stage_recordings import RecordedPasses
from workbench.runtime.passes.statistics import ReplicaStatistics
from workbench.runtime.protocols import OutsideUpdates
from workbench.runtime.transport.group_transport import GroupTransport
from workbench.runtime.transport.groups import as_one, join, new_group
from workbench.runtime.transport.neighbours import check_world, group, neighbours
from workbench.runtime.updates.stage_weights import StageWeights
from workbench.runtime.updates.step_end import Ended, LossScale, agree


class StagePipeline:
    """The stages of one process; every process of the world makes it and calls its methods."""

    def __init__(
        self, model: nn.Module | Callable[[], nn.Module], job: StageJob, *, turn: int = 0,
        records: bool = False, busy: Callable[[], object] = int, job_id: str = "",
        began: int | None = None,
    ) -> None:  # fmt: skip
        """`model`, or a function that makes it, at this process's `turn` on its host. With
        `records` events of steps are measured. `busy` is called while the start goes on. `job_id`
        and `began` are those of a launcher's job (`Checkpoints`). Raises ValueError, one sentence,
        for what cannot be trained."""
        self.map, self.batch_size = job.plan.map, job.shares.batch
        """Samples of a whole step."""
        self._job, self._shares, device = job, job.shares, job.device
        join(device)
        check_world(self.map)
        self.rank = dist.get_rank()
        self.stage, self.replica = self.map.place(self.rank)
        self._everybody = new_group(backend="gloo")
        turn += self.rank > 0 and not job.cut  # after the first rank, if that is to measure
        part = partial(made, model), partial(job.make, self.rank), turn, self._everybody
        self._own = own = in_turn(*part, says=attrgetter("cut"), busy=busy)
        self.stages = own.cut
        """Slices of each stage."""
        busy()
        self._stages = [*own.stages.values()]
        self._weights = StageWeights(self._stages, own.learning)
        replicas = [group(ranks, job.backend) for ranks in self.map.ranks][self.stage]
        buffers = [buffer for stage in self._stages for buffer in stage.buffers()]
        self._weights.spread(replicas, self.map.rank(self.stage, 0), buffers)
        modules = chain(*(zip(one.units, one.modules, strict=True) for one in self._stages))
        of = self.replica, self.map.replicas
        self._norms = ReplicaStatistics(self._stages[0].model, modules, of, replicas)
        self._ties = self._weights.ties(own.copies, self.map, self.stage, self.replica, job.backend)
        add_up = partial(dist.all_reduce, group=replicas)
        grads = self._weights.gradients
        passes = (RecordedPasses if job.records else StagePasses)(own.stages)
        self._engine = engine = StageEngine(own.stages, passes, grads, add_up, OutsideUpdates())
        channels = neighbours(
            self.map, job.plan.links, self.rank, job.backend, self._everybody, device
        )
        engine.transport = GroupTransport(
            channels, self._everybody, process=lambda stage: self.map.rank(stage, self.replica),
            forms=engine.forms, latency=job.latency, device=device,
        )  # fmt: skip
        self.groups = {*channels.values(), replicas} - {None, self._everybody}
        """Process groups in which a device may wait."""
        self._stepping = Stepping(
            engine, device, job.plan, position=self.stage, proves=self.rank == 0,
            perturb=job.perturb, records=records,
        )  # fmt: skip
        as_one(partial(self._prove, own.sizes), self._everybody)
        self.scale = LossScale()
        continues = {"module": own.digest, "batch": self.batch_size, "seed": job.seed}
        self.checkpoints = Checkpoints(
            own.held, own.owned, self._norms, continues, self.scale, first=self.replica == 0,
            job_id=job_id, began=began,
        )  # fmt: skip

    def _prove(self, sizes: SliceSizes | None) -> None:
        """Prove a step, on the rank that has measured stages, and keep the device to its budget."""
        shares, budget = self._shares, self._job.device_memory
        if sizes is not None and budget is not None:
            self._stepping.prove(shares.micros, sizes, len(shares.share(0)), budget)
        confine(self._job.device, budget)

    @property
    def steps(self) -> int:
        """Steps done, overflown ones too."""
        return len(self.checkpoints.progress.losses)

    @property
    def step_seconds(self) -> float | None:
        """How long the last step took here."""
        return (self.checkpoints.progress.step_seconds or [None])[-1]

    @property
    def grad_norm(self) -> float | None:
        """Global norm of the last step's gradients, before they were clipped."""
        return (self.checkpoints.progress.grad_norms or [None])[-1]

    @property
    def share(self) -> range:
        """Rows of each global batch that this process passes to `step`."""
        return self._shares.share(self.replica)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This stage's parameters, by their names in the whole module."""
        yield from self._weights.named.items()

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """This stage's running statistics of BatchNorm, by their names in the whole module."""
        yield from self._norms.named.items()

    def parameters(self) -> Iterator[nn.Parameter]:
        """This stage's parameters."""
        yield from self._weights.named.values()

    def passes(
        self, inputs: Inputs, clip: float | None, wanted: Callable[[], bool] = bool
    ) -> Ended:
        """Forward and backward passes of a global batch, of which `inputs` are the rows of `share`,
        equal on all stages of a replica. Gradients begin at zero and end as those of the mean loss,
        reduced and clipped, in each parameter's `grad`. `wanted` says at
        the end whether this process wants a checkpoint, which all hear of."""
        began = time.monotonic()
        self._weights.attach()
        micros = self._begin(inputs, self._shares, self.scale.value, training=True)
        self._norms.begin(len(micros))
        self._stepping.run(len(micros), self.steps, training=True)
        self._norms.end(len(micros))
        losses, weight = self._end()
        ended = agree(
            self._weights.gradients, self._ties, losses=losses, weight=weight,
            first=self.replica == 0, wanted=wanted(), scale=self.scale.value,
            nominal=self._shares.batch, clip=clip, everybody=self._everybody,
        )  # fmt: skip
        self.scale.update(overflow=ended.overflow)
        self.checkpoints.progress.add(ended, time.monotonic() - began)
        return ended

    def forget(self) -> None:
        """Let go of what a step has left that failed; for a pipeline of one process."""
        self._engine.forget()
        self._norms.forget()

    def evaluate(self, inputs: Inputs, batch_size: int | None = None) -> float:
        """Mean loss of a batch of `batch_size` rows, by default that of training, in evaluation
        mode, equal on all ranks; `inputs` are this replica's rows of it."""
        shares = self._shares
        if batch_size is not None:
            shares = replace(shares, batch=batch_size, multiple=1)
        micros = self._begin(inputs, shares, 1.0, training=False)
        self._stepping.run(len(micros), self.steps, training=False)
        sums = torch.tensor(self._end(), dtype=torch.float64)
        dist.all_reduce(sums, group=self._everybody)
        total, weight = sums.tolist()
        return total / weight

    def stop(self) -> None:
        """Have no step wait any more (from any thread)."""
        self._stepping.stop()

    def close(self) -> None:
        """Wait for a checkpoint that is being written, and let go of all tensors."""
        self.checkpoints.wait()
        self._stepping.close()
        confine(self._job.device, None)

    def _begin(
        self, inputs: Inputs, shares: Shares, scale: float, *, training: bool
    ) -> list[MicroBatch]:
        """Divide this replica's rows into micro-batches."""
        self._stages[0].check(inputs)
        given, micros = divided(
            inputs, self._job, shares, self.replica, step=self.steps, training=training,
            weighs=self._stages[-1].last,
        )  # fmt: skip
        for stage in self._stages:
            stage.begin(self.steps, given)
        self._engine.begin(self.steps, micros, scale / shares.batch, training=training)
        return micros

    def _end(self) -> tuple[float, float]:
        """This process's parts of the sums of losses and of their weights."""
        for stage in self._stages:
            stage.end(self.steps)
        return self._engine.end(self.steps).mean_loss()


def divided(
    inputs: Inputs, job: StageJob, shares: Shares, replica: int, *, step: int, training: bool,
    weighs: bool,
) -> tuple[list[Given], list[MicroBatch]]:  # fmt: skip
    """A replica's rows of a step in micro-batches; where `weighs`, each counts as the job says."""
    share = shares.share(replica)
    tensors = check_inputs(inputs, len(share))
    first = step * shares.batch + share.start
    given, micros = [], []
    for own in shares.rows(replica):
        taken = own or range(1)  # an empty micro-batch repeats a row, which does not count
        part = {
            name: value[taken.start : taken.stop] if len(value) == len(share) else value
            for name, value in tensors.items()
        }
        weight = float(len(own))
        if own and job.weight_of is not None and weighs:
            weight = float(job.weight_of({**inputs, **part}))
        here = {name: value.to(job.device) for name, value in part.items()}
        samples = tuple(first + row for row in taken)
        ctx = Context(seed=job.seed, step=step, unit=0, samples=samples, training=training)
        given.append(Given(here, ctx))
        micros.append(MicroBatch(samples=samples, weight=weight))
    return given, micros
