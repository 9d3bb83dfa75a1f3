"""DeepSpeed's ZeRO: how a run of ours is trained by the real library.

Both adapters, ZeRO-Offload (Ren et al., USENIX ATC 2021) and ZeRO-Infinity (Rajbhandari et al., SC
2021), are this file under two configurations. It runs without a launcher: on one rank in the
worker's process, with a process group that needs no port; on several in those of `ranks`, in the
group where they met, each with an equal share of every micro-batch.

What DeepSpeed is given is what every method gets (`common`): initial weights of the same seed,
batches, micro-batches, decay groups, and before every step the learning rate of the spec.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baselines.blocks import compile_blocks, why_eager
from baselines.common import (
    cap_device,
    decay_groups,
    micro_batches,
    named_units,
    resident_note,
    share,
)
from baselines.deepspeed_rank import FilesOfRanks, be_a_rank, make_operators
from baselines.host_adam import torchs_is_faster
from baselines.stepping import Stepping
from baselines.zero_memory import Account, tell_deepspeed_the_cap
from baselines.zero_weights import build, set_masters
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.runtime.executor.threads import use_rank_threads
from workbench.runtime.transport.groups import of_first
from workbench.training import trained_ranks
from workbench.training.history import History
from workbench.training.run import resolve_device


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Settings in which the methods differ."""

    label: str
    settings: Callable[[RunSpec, int], dict[str, Any]]
    """DeepSpeed's configuration from the spec and the elements of one block."""
    sharded: bool = False
    """Whether parameters are born where they are offloaded to (ZeRO-3)."""
    scratch: Path | None = None
    """Folder for what goes to the disk."""
    own_adam: bool = False
    """Whether DeepSpeed takes no other host optimizer than its own."""
    notes: tuple[str, ...] = ()
    """Sentences on the configuration for readers of the record."""


def train(
    spec: RunSpec, report: Reporter, folder: Path, adapter: Adapter, *, work: str = ""
) -> Outcome:
    """Train with DeepSpeed under the adapter's configuration; `work` is the module whose `training`
    each of several ranks enters.

    Raises OutOfMemory when a budget was passed, RankFailed.
    """
    if spec.ranks == 1 or not work:
        with training(spec, report, folder, adapter) as run:
            run.run()
            return run.outcome()
    # Before two ranks build the same.
    make_operators(report, resolve_device(spec.device), adapter.label, disk=bool(adapter.scratch))
    with _scratch(adapter):
        return trained_ranks.train(work, spec, report, folder)


@contextmanager
def training(
    spec: RunSpec, report: Reporter, folder: Path, adapter: Adapter
) -> Iterator[ZeroTraining]:
    """A run ready to start; what it put on the disk is removed at the end, however it ends.

    DeepSpeed itself is left standing: tearing it down has been seen to abort the process, and the
    process is the worker's, which ends anyway once its record is written.
    """
    device = resolve_device(spec.device)
    use_rank_threads(device.type, spec.ranks)
    make_operators(report, device, adapter.label, disk=bool(adapter.scratch))
    be_a_rank(device)
    # Several ranks share a folder, which the process that started them makes and removes.
    with _scratch(adapter) if spec.ranks == 1 else nullcontext():
        yield ZeroTraining(spec, report, folder, adapter)


def base_config(spec: RunSpec) -> dict[str, Any]:
    """The part of DeepSpeed's configuration that is the experiment's and not the method's."""
    return {
        "train_batch_size": spec.batch,
        "train_micro_batch_size_per_gpu": spec.microbatch // spec.ranks,
        "gradient_accumulation_steps": spec.microbatches,
        "gradient_clipping": spec.clip or 0.0,
        "bf16": {"enabled": spec.dtype == "bf16"},
        "optimizer": {
            "type": "AdamW",  # with an offloaded optimizer this is DeepSpeedCPUAdam
            "params": {
                "lr": spec.lr,
                "betas": (spec.beta1, spec.beta2),
                "eps": spec.eps,
                "weight_decay": spec.weight_decay,
            },
        },
    }


class ZeroTraining(Stepping):
    """One training by DeepSpeed."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path, adapter: Adapter) -> None:
        import deepspeed

        super().__init__(spec, report, folder)
        self.adapter, device = adapter, self.device
        cap_device(device, spec.device_memory)
        if device.type == "cuda":
            tell_deepspeed_the_cap(device, spec.device_memory)
        config = base_config(spec) | adapter.settings(spec, self.model.unit_parameters(1))
        config["optimizer"]["params"] |= self._host_adam()
        if adapter.sharded and why_eager(spec, device) is None:
            # Its own linear layer asks each weight for its number, which torch compiles in: blocks
            # could not share a graph, and the ninth would be one too many.
            config["zero_optimization"]["memory_efficient_linear"] = False
        report.phase(f"starting DeepSpeed {deepspeed.__version__}")
        self.whole = build(self.model, spec, config if adapter.sharded else None)
        if adapter.sharded:
            from deepspeed.utils import set_z3_leaf_module

            for block in self.whole.blocks:  # fetched at once, instead of module by module
                set_z3_leaf_module(block, True)
        self.blocks = compile_blocks(self.whole, spec, device)
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=self.whole,
            model_parameters=decay_groups(self.model, self.whole, spec.weight_decay),
            config=config,
        )
        if spec.dtype != "fp32":
            set_masters(self.model, self.whole, spec.seed)
        self.account = Account(
            spec, self.optimizer, self.whole, device, label=adapter.label, scratch=adapter.scratch
        )
        self.holder = FilesOfRanks(self.engine, self.model, self._first_weights)
        self.history = History(spec, folder, self.batches, form="DeepSpeed")

    def _host_adam(self) -> dict[str, bool]:
        """DeepSpeed's word for torch's fused AdamW, where that is faster on this machine; the ranks
        take what the first of them found. Without a GPU nothing is timed."""
        self.update = "not timed"
        if self.device.type != "cuda" or self.adapter.own_adam:
            return {}
        faster, self.update = torchs_is_faster(self.spec)
        return {"torch_adam": True, "fused": True} if of_first(faster, None) else {}

    def resume(self) -> int:
        first = super().resume()
        self.account.counted_step = min(first + 1, self.spec.steps - 1)
        return first

    def step(self, step: int, number: int = 0) -> None:
        """As `Stepping.step`. Raises OutOfMemory where the step has passed a budget."""
        super().step(step, number)
        self.account.close_step(step)

    def _watched(self, number: int) -> AbstractContextManager[None]:
        return self.account.watching(len(self.history.losses))

    def _skipped(self, norm: float | None) -> bool:
        return self.optimizer.overflow

    def _step(self, step: int) -> tuple[float, float | None]:
        """As `Stepping._step`."""
        # Twin-Flow's update on the device has an optimizer of its own, which nobody else tells.
        others = getattr(self.optimizer, "backup_optimizer", None)
        for group in (*self.optimizer.param_groups, *(others.param_groups if others else ())):
            group["lr"] = self.spec.learning_rate(step)
        total = torch.zeros((), device=self.device)
        for whole in micro_batches(self.batches, self.spec, step, self.device, self.model):
            part = share(whole, self.model)
            loss = self.engine(part.tokens, part.targets, step=step, samples=part.samples)
            loss = loss * (part.weight * self.spec.ranks)  # of the ranks the mean is taken
            self.engine.backward(loss)
            self.engine.step()
            total += loss.detach()
        dist.all_reduce(total)
        norm = self.engine.get_global_grad_norm()
        loss = float(total) / (self.spec.microbatches * self.spec.ranks)
        return loss, None if norm is None else float(norm)

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the fp32 weights by their names in the whole model."""
        from deepspeed.utils import safe_get_full_fp32_param

        return {
            self.model.state_name(unit, name): safe_get_full_fp32_param(parameter).clone()
            for unit, name, parameter in named_units(self.whole)
        }

    def _first_weights(self) -> dict[str, Tensor]:
        """All weights, on the first rank; the others have helped to gather them."""
        gathered = self.parameters()
        return {} if dist.get_rank() else gathered

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        import deepspeed

        return self.measured(
            f"deepspeed {deepspeed.__version__}",
            [
                *self.adapter.notes,
                *self.history.notes,
                *self.account.notes,
                self.blocks,
                f"host update by {type(self.optimizer.optimizer).__name__} ({self.update})",
                f"{resident_note()}, libraries included",
            ],
            peak=self.account.peak_bytes,
            moved=self.account.moved_bytes,
        )


@contextmanager
def _scratch(adapter: Adapter) -> Iterator[None]:
    """The folder for what goes to the disk, empty; gone at the end."""
    if adapter.scratch is not None:
        shutil.rmtree(adapter.scratch, ignore_errors=True)
        adapter.scratch.mkdir(parents=True)
    try:
        yield
    finally:
        if adapter.scratch is not None:
            shutil.rmtree(adapter.scratch, ignore_errors=True)
