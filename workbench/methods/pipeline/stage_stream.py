"""One process's stages of a user's module, trained by a pipeline that never drains.

Each stage is updated by itself, by an optimizer of its own, whenever the schedule says so
(asynchronous.py). A batch begins when it is given, and its loss comes later: the process of the
last stage tells the others. `settle` drains the pipeline; the next batch fills it again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workbench.core.bytesize import format_bytes
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.methods.pipeline.making import StageJob, in_turn, made
from workbench.methods.pipeline.stage_pipeline import divided
from workbench.methods.pipeline.stepping import ABANDON_S, NEVER
from workbench.model.keyed import norms_in
from workbench.model.slices import Inputs
from workbench.profile.unit_costs import Sizes
from workbench.runtime.executor.executor import Executor
from workbench.runtime.memory.device_budget import confine
from workbench.runtime.passes.stage_engine import StageEngine
from workbench.runtime.passes.stage_passes import StagePasses
from workbench.runtime.transport.group_transport import GroupTransport
from workbench.runtime.transport.groups import as_one, join, new_group
from workbench.runtime.transport.neighbours import links_of, neighbours
from workbench.runtime.updates.stage_updates import StageOptimizer, StageOptimizers, clip_own
from workbench.runtime.updates.stage_weights import StageWeights
from workbench.schedule.schedule import DEVICE
from workbench.schedule.validate import validate

Named = Mapping[str, nn.Parameter]


@dataclass
class InFlight:
    """A step that has begun."""

    rate: float
    """Learning rate of its updates."""
    whole: float
    """What its micro-batches count together, in the process of the last stage."""
    left: set[int]
    """Stages here that it has not updated."""


class StageStream:
    """The stages of one process; every process of the world makes it and calls its methods."""

    def __init__(
        self, model: nn.Module, job: StageJob, line: Callable[[Sizes], Asynchronous],
        optimizer: Callable[[Named], torch.optim.Optimizer], *,
        rate: Callable[[], float], clip: float | None,
    ) -> None:  # fmt: skip
        """`line` is the pipeline, of stages of these sizes; `optimizer` makes one for a stage's
        parameters, which has the `rate` of the time when an update's batch was given. `clip` bounds
        the norm of each stage's gradients. Raises ValueError, one sentence, for what cannot be
        trained so."""
        self._job, self._rate, self._clip, device = job, rate, clip, job.device
        join(device)
        self.rank = dist.get_rank()
        self._everybody, self._tells = new_group(backend="gloo"), new_group(backend="gloo")
        part = partial(made, model), partial(job.make, self.rank), self.rank, self._everybody
        own = in_turn(*part, says=attrgetter("cut"))
        self._stages = own.stages
        as_one(partial(self._check, own.copies), self._everybody)
        self._line = line(own.sizes or IdealSizes())
        self._schedule = made_ = schedule(self._line)
        as_one(self._prove if self.rank == 0 else int, self._everybody)
        confine(device, job.device_memory)
        learning = own.learning
        self._weights = {
            stage: StageWeights([each], {name: learning[name] for name in each.named_parameters()})
            for stage, each in own.stages.items()
        }
        for parameter in self._named().values():  # the user's own stay as they are
            parameter.data = parameter.data.clone()
        self._flight: dict[int, InFlight] = {}
        """Steps that have begun here, and have not ended."""
        updates = StageOptimizers(
            {
                stage: self._optimizer(weights, optimizer)
                for stage, weights in self._weights.items()
            },
            after=self._updated,
        )
        gradients = next(iter(self._weights.values())).gradients
        self._engine = engine = StageEngine(
            own.stages, StagePasses(own.stages), gradients, int, updates
        )
        channels = neighbours(
            job.plan.map, links_of(self._line.positions), self.rank, job.backend, self._everybody,
            device,
        )  # fmt: skip
        engine.transport = GroupTransport(
            channels, self._everybody, process=int, forms=engine.forms, latency=job.latency,
            device=device,
        )  # fmt: skip
        engine.transport.use(made_)
        self.groups = {*channels.values(), self._tells} - {None, self._everybody}
        """Process groups in which somebody may wait."""
        self._executor = Executor(
            made_, engine.perform, device, rank=self.rank, perturb=job.perturb,
            announce=engine.transport.announce, record_from=NEVER,
            together=job.backend == "nccl", abandon_s=ABANDON_S,
            on_failure=lambda _: engine.transport.stop(),
        )  # fmt: skip
        self._last, self._teller = len(self._line.positions) - 1, self._line.positions[-1]
        self.steps = 0
        """Steps that have begun; all are done when the pipeline is drained."""
        self.left_out: list[int] = []
        """Steps in which a stage here was not updated, for gradients that were not finite."""
        self._lock = threading.Lock()
        self._came: deque[tuple[dist.Work, Tensor]] = deque()
        """Losses that have come or are to come, in order."""

    def give(self, inputs: Inputs) -> list[float]:
        """Begin a step on a batch, equal in all processes; the losses, in order, of the steps that
        have ended since."""
        step, job = self.steps, self._job
        stages = [*self._stages.values()]
        stages[0].check(inputs)
        last = self._last in self._stages
        given, micros = divided(inputs, job, job.shares, 0, step=step, training=True, weighs=last)
        for stage in stages:
            stage.begin(step, given)
        whole = sum(micro.weight for micro in micros)
        self._engine.begin(step, micros, 1 / whole if whole else 0.0)
        with self._lock:
            self._flight[step] = InFlight(self._rate(), whole, {*self._stages})
        if self.rank != self._teller:
            self._tell(torch.zeros((), dtype=torch.float64))
        self._executor.step(step)
        self.steps += 1
        return [*self._losses(wait=False)]

    def settle(self) -> list[float]:
        """Drain the pipeline; the losses that had not come."""
        self._executor.end()
        return [*self._losses(wait=True)]

    def named_parameters(self) -> Named:
        """Parameters of the stages here, by their names in the whole module."""
        return self._named()

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        self._executor.close()
        self._engine.close()
        confine(self._job.device, None)

    def _named(self) -> dict[str, nn.Parameter]:
        return {name: p for own in self._weights.values() for name, p in own.named.items()}

    def _check(self, copies: Sequence[Mapping[int, list[str]]]) -> None:
        """Raise ValueError for what stages that are updated at different times cannot share."""
        for held in copies:
            name = next(iter(held.values()))[0]
            raise ValueError(
                f"the weight {name!r} is used in several places, which stages would update at "
                "different times; use a method whose stages are updated together, such as 1f1b"
            )
        for stage in self._stages.values():
            if any(norms_in(module) for module in stage.modules):
                raise ValueError(
                    "a BatchNorm with running statistics would see micro-batches of several steps "
                    "at a time; use a method whose stages are updated together, such as 1f1b"
                )

    def _prove(self) -> None:
        """Prove the schedule, and that devices have room for it where their bytes are given."""
        peaks, budget = validate(self._schedule).peak_bytes, self._job.device_memory
        position = max(peaks, key=lambda each: peaks[each][DEVICE])
        if budget is not None and (most := peaks[position][DEVICE]) > budget:
            raise ValueError(
                f"device_memory is {format_bytes(budget)}, and the stages of process {position} "
                f"need {format_bytes(most)}; use more stages, smaller micro-batches, or more memory"
            )

    def _optimizer(
        self, weights: StageWeights, make: Callable[[Named], torch.optim.Optimizer]
    ) -> StageOptimizer:
        optimizer = make(weights.named)

        def prepare(step: int) -> bool:
            for group in optimizer.param_groups:
                group["lr"] = self._flight[step].rate
            finite = clip_own(weights.gradients, self._clip)
            if not finite:
                self.left_out.append(step)
            return finite

        return StageOptimizer(optimizer, weights.gradients, before=prepare)

    def _updated(self, stage: int, step: int) -> None:
        """A stage has been updated, the last action of a step on it."""
        if stage == self._last:
            whole = self._flight[step].whole
            loss = self._engine.loss(step) / whole if whole else 0.0
            self._tell(torch.tensor(loss, dtype=torch.float64))
        with self._lock:
            self._flight[step].left.discard(stage)
            done = not self._flight[step].left
            gone = done and step - 1 in self._engine  # whose messages have gone, too
        if gone:
            self._forget(step - 1)

    def _forget(self, step: int) -> None:
        """Let go of a step."""
        for stage in self._stages.values():
            stage.end(step)
        self._engine.end(step)
        del self._flight[step]

    def _tell(self, loss: Tensor) -> None:
        """Have all know a step's loss, in the order of steps."""
        work = dist.broadcast(loss, self._teller, group=self._tells, async_op=True)
        self._came.append((work, loss))

    def _losses(self, *, wait: bool) -> Iterator[float]:
        while self._came and (wait or self._came[0][0].is_completed()):
            work, loss = self._came.popleft()
            work.wait()
            yield float(loss)
