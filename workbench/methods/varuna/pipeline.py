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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from workbench.core.bytesize import parse_bytes
from workbench.core.stage_map import StageMap
from workbench.methods.pipeline.checkpoints import Stateful
from workbench.methods.pipeline.making import StageJob, has_room
from workbench.methods.pipeline.stage_pipeline import StagePipeline
from workbench.methods.pipeline.stepping import StepPlan
from workbench.methods.varuna.lifeline import Lifeline
from workbench.methods.varuna.logs import WorkerLogs
from workbench.model.slices import Inputs
from workbench.model.unchanged import Unchanged
from workbench.runtime.checkpoint.distributed_checkpoint import Saving
from workbench.runtime.checkpoint.manifest import Damaged, set_aside
from workbench.runtime.executor.executor import Perturb
from workbench.runtime.passes.stage import dtype_of
from workbench.runtime.transport.groups import as_one, device_of
from workbench.runtime.transport.neighbours import carrier
from workbench.schedule.action import Action


class Stepped(NamedTuple):
    """The outcome of a step."""

    loss: float
    """Mean over the global batch, equal on all ranks."""
    overflow: bool
    """Whether a gradient was not finite: the optimizer must not step."""


class Varuna(StagePipeline):
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
        compile: str = "off",
        replay: bool = True,
        device_memory: int | str | None = None,
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
        counts, such as its number of labels; by default its rows. `compile` "on": layers in 16
        bits are compiled on a GPU. `replay`: there a stage's passes in 16 bits are recorded as CUDA
        graphs where they can be, with equal results. `device_memory` is what a process may use of
        its device, in bytes or as ``20GiB``: a step is proved to need no more. `perturb` is called
        around every action, and `latency` of a receive says how late its message is to come, for
        tests and paced runs.

        `stages` are the slices of each stage, such as ``5 4 4 3``: by default those that a
        launcher has chosen, else the first rank measures slices for them.
        Raises ValueError, one sentence, for what cannot be trained."""
        self._lifeline = Lifeline()
        plan = StepPlan(
            map=StageMap.parse(stage_to_rank_map), order=order, chunks=chunks,
            activations=activations, stash=stash, stash_on=stash_on,
        )  # fmt: skip
        worker = self._lifeline.worker
        if batch_size is None and worker is None:
            raise ValueError("batch_size is None, and no launcher's job tells it; give the samples")
        samples: int = worker.batch if batch_size is None else batch_size
        shares = plan.shares(samples, chunk_size)
        if worker is not None and worker.batch != samples:
            raise ValueError(
                f"batch_size is {batch_size}, and the launcher's --batch_size {worker.batch}; both "
                "are the samples of a whole step"
            )
        on = device_of(device, local_rank)
        chosen = worker.cut if worker is not None and plan.one_each else ""
        job = StageJob(
            get_batch=get_batch_fn, plan=plan, shares=shares, device=on,
            dtype=dtype_of(fp16=fp16, bf16=bf16), backend=carrier(transport, on),
            cut=stages or chosen, shared_weights=shared_weights or (), seed=seed,
            weight_of=weight_of, compile=compile, records=replay, perturb=perturb,
            device_memory=None if device_memory is None else parse_bytes(device_memory),
            latency=latency,
        )  # fmt: skip
        alone = isinstance(model, nn.Module) or (worker is not None and has_room(worker.nbytes))
        logs = logs or self._lifeline.logs
        self._busy = getattr(worker, "working", int)
        """Tells a launcher, where there is one, that this process gets on."""
        super().__init__(
            model, job, turn=0 if alone else max(0, local_rank), records=bool(logs),
            busy=self._busy, job_id=worker.job if worker else "",
            began=worker.began if worker else None,
        )  # fmt: skip
        if worker is not None and self.rank == 0 and plan.one_each:
            worker.has_cut(self.stages, self._own.nbytes)
        self._logs = WorkerLogs(Path(logs), self.map, self.rank, chunk_size) if logs else None
        self._unchanged = Unchanged(model) if isinstance(model, nn.Module) else None
        self._due, self._begins = False, True
        """Whether a checkpoint was wanted during the last step; whether there was none yet."""
        self._folder: Path | None = None

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
        self.checkpoints.optimizers = [optimizer]
        if self._job.dtype == torch.float16:
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
        began, scale = time.monotonic(), self.scale.value
        ended = self.passes(inputs, clip_grad_max_norm, wanted=self._lifeline.wanted)
        self._due = ended.wanted
        if (worker := self._lifeline.worker) is not None:
            forward_s = self._stepping.forward_s()
            worker.progress(self.steps, self.step_seconds, forward_s, f"{ended.loss:.4f}")
        if self._logs is not None:
            self._logs.step(
                self._stepping.events, began,
                scale=scale, rate=self.checkpoints.rate, loss=ended.loss,
            )  # fmt: skip
        return Stepped(ended.loss, ended.overflow)

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
        if (worker := self._lifeline.worker) is not None and self.rank == 0:
            saving.then(partial(worker.committed, self.steps))
        return saving

    def load_checkpoint(self, global_store: str | Path | None = None) -> int | None:
        """Take up the newest whole checkpoint of a folder, by default that of the launcher's job,
        which is looked into in any case: it has what was saved before the script named a folder. Of
        any number of stages and replicas; returns the steps done by it, None where there is
        none. Later rounds of a job take the one of their --resume_step, and no other. Every process
        calls it. Raises ValueError for a checkpoint of another module or batch, for a damaged one,
        and where there is none though the launcher's job goes on from one."""
        folder, step = self._store(global_store), self._lifeline.resume_step
        step = step if self._begins else None
        try:
            found = self.checkpoints.load(folder, self._lifeline.folder, step)
        except Damaged as damaged:
            if step is not None:  # the next round begins from an older one
                put = int if self.rank else partial(set_aside, damaged.path)
                as_one(put, self._everybody)
            raise
        if self._begins:
            self._lifeline.loaded(folder, found)
        self._busy()
        return found

    def _store(self, given: str | Path | None) -> Path:
        folder = given or self._folder or self._lifeline.folder
        if folder is None:
            raise ValueError("no folder is known for checkpoints; give one")
        self._folder = Path(folder)
        return self._folder
