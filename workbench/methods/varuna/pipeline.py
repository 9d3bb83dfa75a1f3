"""The public class: a user's module, trained as a pipeline by the processes that make it.

    model = Varuna(net, args.stage_to_rank_map, get_batch, batch_size, args.chunk_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.set_optimizer(optimizer)
    loss, overflow = model.step(inputs, clip_grad_max_norm=1.0)
    if not overflow:
        optimizer.step()

Each process holds one stage. A step is a schedule of any order of pipelines, proved before it runs
and run by the executor of all methods; recomputations take turns with forward passes. Losses and
gradients are those of the module itself on the whole batch, however many stages, replicas and
micro-batches there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from workbench.core.stage_map import StageMap
from workbench.methods.varuna.checkpoints import Checkpoints, Stateful
from workbench.methods.varuna.groups import carrier, check_world, group, neighbours
from workbench.methods.varuna.lifeline import Lifeline
from workbench.methods.varuna.logs import WorkerLogs
from workbench.methods.varuna.making import Question, has_room, in_turn, made
from workbench.methods.varuna.shares import Shares
from workbench.methods.varuna.slices import Inputs, check_inputs
from workbench.methods.varuna.stage import Given, dtype_of
from workbench.methods.varuna.step_end import LossScale, agree, mean_loss
from workbench.methods.varuna.stepping import Stepping, StepPlan
from workbench.methods.varuna.weights import StageWeights
from workbench.model.base import Context
from workbench.model.unchanged import Unchanged
from workbench.runtime.distributed_checkpoint import Saving
from workbench.runtime.executor import Perturb
from workbench.runtime.group_transport import GroupTransport
from workbench.runtime.groups import as_one, device_of, join, new_group
from workbench.runtime.manifest import Damaged, set_aside
from workbench.runtime.stage_engine import MicroBatch, StageEngine
from workbench.runtime.statistics import ReplicaStatistics
from workbench.schedule.action import Action


class Stepped(NamedTuple):
    """The outcome of a step."""

    loss: float
    """Mean over the global batch, equal on all ranks."""
    overflow: bool
    """Whether a gradient was not finite: the optimizer must not step."""


class Varuna:
    """One process's stage of a module."""

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        stage_to_rank_map: str,
        get_batch_fn: Callable[..., Inputs],
        batch_size: int | None,
        chunk_size: int,
        fp16: bool = False,
        local_rank: int = -1,
        device: int | str | torch.device = -1,
        shared_weights: Sequence[tuple[str, str]] | None = None,
        *,
        bf16: bool = False,
        order: str = "varuna",
        chunks: int | None = None,
        activations: str = "recompute",
        stash: int | None = None,
        stash_on: str = "device",
        seed: int = 0,
        weight_of: Callable[[Inputs], float] | None = None,
        transport: str = "auto",
        perturb: Perturb | None = None,
        latency: Callable[[Action], float] | None = None,
        logs: str | Path | None = None,
        stages: str | None = None,
    ) -> None:
        """`model`, or a function that makes it: then a host holds as many whole modules as it has
        room for. `get_batch_fn(n)` gives the keyword arguments of n samples. `batch_size` is the
        global one, None for that of the launcher's job, `chunk_size` the rows of a micro-batch at
        most. `shared_weights`: pairs of names of parameters that are one weight. `order` of passes;
        with ``interleaved`` a process has `chunks` stages. `activations` are kept for backward
        passes ("keep"), or computed again of all stages that have several micro-batches in flight.
        At most `stash` micro-batches' inputs wait at a stage, `stash_on` the device or the host.
        `seed` is that of random numbers in forward passes. `logs` is a folder for logs, in a
        launcher's job its own. `weight_of` the inputs of a micro-batch says how much its mean loss
        counts, such as its number of labels; by default its rows. `perturb` is called around every
        action, and `latency` of a receive says how late its message is to come, for tests and paced
        runs.

        `stages` are the slices of each stage, such as ``5 4 4 3``: by default those that a
        launcher has chosen, else the first rank measures slices for them.
        Raises ValueError, one sentence, for what cannot be trained."""
        self._lifeline = Lifeline()
        self.map = StageMap.parse(stage_to_rank_map)
        plan = StepPlan(
            places=self.map, order=order, chunks=chunks, activations=activations, stash=stash,
            stash_on=stash_on,
        )  # fmt: skip
        worker = self._lifeline.worker
        if batch_size is None and worker is None:
            raise ValueError("batch_size is None, and no launcher's job tells it; give the samples")
        self.batch_size: int = worker.batch if batch_size is None else batch_size
        """Samples of a whole step."""
        self._shares = plan.shares(self.batch_size, chunk_size)
        if worker is not None and worker.batch != self.batch_size:
            raise ValueError(
                f"batch_size is {batch_size}, and the launcher's --batch_size {worker.batch}; both "
                "are the samples of a whole step"
            )
        self._device = device_of(device, local_rank)
        backend = carrier(transport, self._device)
        self._dtype = dtype_of(fp16=fp16, bf16=bf16)
        self._seed, self._weight_of = seed, weight_of
        join(self._device)
        check_world(self.map)
        self.rank = dist.get_rank()
        self.stage, self.replica = self.map.place(self.rank)
        self._everybody = new_group(backend="gloo")
        chosen = worker.cut if worker is not None and plan.stages_each == 1 else ""
        question = Question(
            get_batch=get_batch_fn, places=self.map, shares=self._shares,
            stages_each=plan.stages_each, shared_weights=shared_weights or (),
            device=self._device, dtype=self._dtype, order=order, cut=stages or chosen,
            recomputes=activations == "recompute",
        )  # fmt: skip
        alone = isinstance(model, nn.Module) or (worker is not None and has_room(worker.nbytes))
        turn = 0 if alone else max(0, local_rank)
        turn += self.rank > 0 and not question.cut  # after the first rank, if that is to measure
        job = partial(made, model), partial(question.make, self.rank), turn, self._everybody
        own = in_turn(*job, says=attrgetter("cut"), busy=self._lifeline.busy)
        self.stages = own.cut
        """Slices of each stage."""
        self._lifeline.busy()
        if self.rank == 0 and plan.stages_each == 1:
            self._lifeline.has_cut(own.cut, own.nbytes)
        logs = logs or self._lifeline.logs
        place = {"stage": self.stage, "replica": self.replica}
        self._logs = WorkerLogs(Path(logs), self.map, chunk=chunk_size, **place) if logs else None
        self._stages = [*own.stages.values()]
        self._weights = StageWeights(self._stages, own.learning)
        replicas = [group(ranks, backend) for ranks in self.map.ranks][self.stage]
        buffers = [buffer for stage in self._stages for buffer in stage.buffers()]
        self._weights.spread(replicas, self.map.rank(self.stage, 0), buffers)
        modules = chain(*(zip(one.units, one.modules, strict=True) for one in self._stages))
        of = self.replica, self.map.replicas
        self._norms = ReplicaStatistics(self._stages[0].model, modules, of, replicas)
        self._ties = self._weights.ties(own.copies, self.map, self.stage, self.replica, backend)
        self._engine = engine = StageEngine(own.stages, self._weights.gradients, replicas)
        channels = neighbours(
            self.map, self.rank, backend, self._everybody, self._device, ring=plan.stages_each > 1
        )
        engine.transport = GroupTransport(
            channels, self._everybody, process=lambda stage: self.map.rank(stage, self.replica),
            forms=engine.forms, latency=latency, device=self._device,
        )  # fmt: skip
        self.groups = {*channels.values(), replicas} - {None, self._everybody}
        """Process groups in which a device may wait."""
        self._stepping = Stepping(
            engine, self._device, plan, position=self.stage, proves=self.rank == 0,
            perturb=perturb, records=self._logs is not None,
        )  # fmt: skip
        self.scale = LossScale()
        self._unchanged = Unchanged(model) if isinstance(model, nn.Module) else None
        self._due, self._begins = False, True
        """Whether a checkpoint was wanted during the last step; whether there was none yet."""
        self._folder: Path | None = None
        continues = {"module": own.digest, "batch": self.batch_size, "seed": seed}
        self.checkpoints = Checkpoints(
            own.held, own.owned, self._norms, continues, self.scale, first=self.replica == 0,
            job=worker.job if worker else "", began=worker.began if worker else None,
        )  # fmt: skip

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

    # -- the module -----------------------------------------------------------------------------

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

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("a stage is not called by itself; use step or evaluate")

    # -- training -------------------------------------------------------------------------------

    def set_optimizer(
        self, optimizer: torch.optim.Optimizer, loss_scale: float | str = "dynamic",
        init_loss_scale: float = 2.0**20, min_loss_scale: float = 1.0,
    ) -> None:  # fmt: skip
        """Name the optimizer of this stage's parameters. With fp16 the loss is scaled, by a number
        or by one that is halved after an overflow and doubled after 2,000 steps without one.

        Raises ValueError for an optimizer of other parameters."""
        own = {id(parameter) for parameter in self.parameters()}
        every = (parameter for one in optimizer.param_groups for parameter in one["params"])
        if (stray := next((p for p in every if id(p) not in own), None)) is not None:
            raise ValueError(
                f"the optimizer has a parameter of {tuple(stray.shape)} that is none of this "
                "stage's; make it of model.parameters()"
            )
        self.checkpoints.optimizer = optimizer
        if self._dtype == torch.float16:
            self.scale.dynamic, self.scale.least = loss_scale == "dynamic", min_loss_scale
            self.scale.value = init_loss_scale if self.scale.dynamic else float(loss_scale)

    def step(self, inputs: Inputs, clip_grad_max_norm: float | None = None) -> Stepped:
        """Forward and backward passes of a global batch, of which `inputs` are the rows of `share`,
        equal on all stages of a replica. Gradients begin at zero and end as those of the mean loss,
        reduced and clipped, in each parameter's `grad`. Raises ValueError where the module has been
        changed from outside since stages were made of it."""
        if self._unchanged is not None:
            self._unchanged.check()
        if self._begins:
            self._lifeline.check_begins(self.steps)
            self._begins = False
        if self._due:
            self._due = False
            self._lifeline.answer(lambda: self.checkpoint().wait())
        began = time.monotonic()
        self._weights.attach()
        micros = self._begin(inputs, self._shares, self.scale.value, training=True)
        self._norms.begin(len(micros))
        self._stepping.run(len(micros), self.steps, training=True)
        self._norms.end(len(micros))
        losses, weight = mean_loss(self._engine.losses, micros)
        ended = agree(
            self._weights.gradients, self._ties, losses=losses, weight=weight,
            first=self.replica == 0, wanted=self._lifeline.wanted(), scale=self.scale.value,
            nominal=self._shares.batch, clip=clip_grad_max_norm, everybody=self._everybody,
        )  # fmt: skip
        scale, self._due = self.scale.value, ended.wanted
        self.scale.update(overflow=ended.overflow)
        seconds = time.monotonic() - began
        self.checkpoints.progress.add(ended, seconds)
        self._lifeline.progress(
            self.steps, seconds, self._stepping.forward_s(), f"{ended.loss:.4f}"
        )
        if self._logs is not None:
            self._logs.step(
                self._stepping.events, began,
                scale=scale, rate=self.checkpoints.rate, loss=ended.loss,
            )  # fmt: skip
        return Stepped(ended.loss, ended.overflow)

    def forget(self) -> None:
        """Let go of what a step has left that failed; for a pipeline of one process."""
        self._engine.forget()
        self._norms.forget()

    def evaluate(self, inputs: Inputs, batch_size: int | None = None) -> float:
        """Mean loss of a batch of `batch_size` rows, by default that of training, in evaluation
        mode, equal on all ranks; `inputs` are this replica's rows of it."""
        shares = self._shares
        if batch_size is not None:
            shares = Shares(batch=batch_size, replicas=shares.replicas, chunk=shares.chunk)
        micros = self._begin(inputs, shares, 1.0, training=False)
        self._stepping.run(len(micros), self.steps, training=False)
        sums = torch.tensor(mean_loss(self._engine.losses, micros), dtype=torch.float64)
        dist.all_reduce(sums, group=self._everybody)
        total, weight = sums.tolist()
        return total / weight

    # -- checkpoints ----------------------------------------------------------------------------

    def keep(self, *stateful: Stateful) -> None:
        """Have checkpoints hold the states of schedulers, samplers and the like."""
        self.checkpoints.keep(*stateful)

    def checkpoint(self, global_store: str | Path | None = None) -> Saving:
        """Begin to write ``step-N`` in a folder that all processes share, by default the one of the
        last checkpoint or of the launcher's job; every process calls it after the same step, when
        the optimizer has stepped. Training may go on meanwhile; `wait` says when it is whole.
        Raises ValueError for what no checkpoint holds."""
        folder = self._store(global_store)
        saving = self.checkpoints.save(folder, partial(self._lifeline.may_commit, folder))
        step = self.steps
        if self.rank == 0:
            saving.then(lambda: self._lifeline.committed(step))
        return saving

    def load_checkpoint(self, global_store: str | Path | None = None) -> int | None:
        """Take up the newest whole checkpoint of a folder, by default that of the launcher's job,
        which is looked into in any case: it has what was saved before the script named a folder. Of
        any number of stages and replicas; returns the steps done by it, None where there is
        none. Later rounds of a job take the one of their --resume_step, and no other. Every process
        calls it. Raises ValueError for a checkpoint of another module or batch, for a damaged one,
        and where there is none though the launcher's job goes on from one."""
        folder, told = self._store(global_store), self._lifeline.told if self._begins else None
        try:
            found = self.checkpoints.load(folder, self._lifeline.folder, told)
        except Damaged as damaged:
            if told is not None:  # the next round begins from an older one
                put = int if self.rank else partial(set_aside, damaged.path)
                as_one(put, self._everybody)
            raise
        if self._begins:
            self._lifeline.loaded(folder, found)
        self._lifeline.busy()
        return found

    def _store(self, given: str | Path | None) -> Path:
        folder = given or self._folder or self._lifeline.folder
        if folder is None:
            raise ValueError("no folder is known for checkpoints; give one")
        self._folder = Path(folder)
        return self._folder

    def close(self) -> None:
        """Wait for a checkpoint that is being written, and let go of all tensors."""
        self.checkpoints.wait()
        self._stepping.close()

    def _begin(
        self, inputs: Inputs, shares: Shares, scale: float, *, training: bool
    ) -> list[MicroBatch]:
        """Divide this replica's rows into micro-batches."""
        share, rows = shares.share(self.replica), shares.rows(self.replica)
        tensors = check_inputs(inputs, len(share))
        self._stages[0].check(inputs)
        first = self.steps * shares.batch + share.start
        given, micros = [], []
        for own in rows:
            taken = own or range(1)  # an empty micro-batch repeats a row, which does not count
            part = {
                name: value[taken.start : taken.stop] if len(value) == len(share) else value
                for name, value in tensors.items()
            }
            weight = float(len(own))
            if own and self._weight_of is not None and self._stages[-1].last:
                weight = float(self._weight_of({**inputs, **part}))
            here = {name: value.to(self._device) for name, value in part.items()}
            samples = tuple(first + row for row in taken)
            ctx = Context(
                seed=self._seed, step=self.steps, unit=0, samples=samples, training=training
            )
            given.append(Given(here, ctx))
            micros.append(MicroBatch(samples=samples, weight=weight))
        for stage in self._stages:
            stage.begin(given)
        self._engine.begin(micros, scale / shares.batch, training=training)
        return micros
