"""DeepSpeed's pipeline engine: how a run of ours is trained by the real library.

Of P x D ranks D hold each stage, neighbours, as DeepSpeed numbers them. Every rank builds its stage
(stage.py) and calls `train_batch` once a step with an iterator over its micro-batches; 1F1B,
messages, sums over replicas, norm, clipping and update are DeepSpeed's. The loss of a step comes
back on all ranks. Nothing of ours waits for the device before the end of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baselines import zero
from baselines.blocks import compile_blocks
from baselines.common import decay_groups
from baselines.deepspeed_pipe.planner import LABEL, stages_of
from baselines.deepspeed_rank import FilesOfRanks, be_a_rank, make_operators
from baselines.plain_training import PlainTraining
from baselines.stage_modules import Stages
from baselines.stages import share_of
from baselines.stepping import Stepping
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.runtime.executor.threads import use_rank_threads
from workbench.runtime.memory.device_budget import device_meter
from workbench.schedule.mesh import Mesh
from workbench.training import trained_ranks
from workbench.training.history import History
from workbench.training.run import resolve_device


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with a stage on every rank's device.

    Raises OutOfMemory past a device's budget, RankFailed.
    """
    # Before two ranks build the same.
    make_operators(report, resolve_device(spec.device), LABEL, offload=False)
    return trained_ranks.train(__name__, spec, report, folder)


@contextmanager
def training(spec: RunSpec, report: Reporter, folder: Path) -> Iterator[DeepSpeedStageTraining]:
    """In a rank's process: the training of its stage. DeepSpeed is left standing (zero.py)."""
    device = resolve_device(spec.device)
    use_rank_threads(device.type, spec.ranks)
    make_operators(report, device, LABEL, offload=False)
    be_a_rank(device)
    yield DeepSpeedStageTraining(spec, report, folder)


def config_of(spec: RunSpec) -> dict[str, Any]:
    """DeepSpeed's configuration. That of bf16 is its usual one for pipelines: sums of gradients in
    fp32, masters and moments divided among replicas (ZeRO-1)."""
    config = zero.base_config(spec) | {
        "train_micro_batch_size_per_gpu": spec.microbatch // spec.options.copies,
        # A clock that waits for the device before each micro-batch.
        "timers": {"throughput": {"enabled": False}},
    }
    # torch's kernel; its own would be compiled first.
    config["optimizer"]["params"] |= {"torch_adam": True, "fused": True}
    if spec.dtype == "bf16":
        # Else bf16 gradients stay beside the sums, and are set to zero before each micro-batch.
        config["bf16"] |= {"immediate_grad_update": True}
        config["data_types"] = {"grad_accum_dtype": "fp32"}
        config["zero_optimization"] = {"stage": 1}
    return config


class DeepSpeedStageTraining(PlainTraining):
    """The training of a rank's stage by DeepSpeed."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path) -> None:
        import deepspeed

        from baselines.deepspeed_pipe.stage import Pipe

        Stepping.__init__(self, spec, report, folder)
        rank, replicas = dist.get_rank(), spec.options.copies
        mesh = Mesh(spec.ranks // replicas, replicas)
        self.part = share_of(spec.microbatch, mesh.replica(rank), replicas)
        self.stages = _stages(self.model, spec)
        self.own = self.stages[mesh.position(rank)]
        self.meter = device_meter(self.device, spec.device_memory)
        report.phase(f"starting DeepSpeed {deepspeed.__version__}")
        with self.meter:
            self.whole = Stages(
                self.model, [self.own], seed=spec.seed, device=self.device,
                checkpoint=spec.activations != "keep",
            )  # fmt: skip
            groups = self._groups()
        passes = spec.with_(batch=spec.batch // replicas, replicas=1, stages="auto")
        self.blocks = compile_blocks(self.whole, passes, self.device)
        with self.meter:
            with torch.no_grad():  # DeepSpeed sends shared weights, which torch would warn of
                self.pipe = Pipe(self.whole, self.stages)
            halved = [p for p in self.pipe.parameters() if spec.dtype == "bf16"]
            exact = {p: p.detach().to("cpu", copy=True) for p in halved}
            self.engine, self.optimizer, _, _ = deepspeed.initialize(
                model=self.pipe, model_parameters=groups, config=config_of(spec)
            )
            for parameter, value in exact.items():  # of which bf16 has half of the digits
                deepspeed.utils.safe_set_full_fp32_param(parameter, value)
        report.phase(f"training with {self.blocks}")
        self.masters = {}  # DeepSpeed's own
        self.holder = FilesOfRanks(self.engine, self.model, self._own_weights)
        self._writes = mesh.replica(rank) == 0
        self.history = History(spec, folder, self.batches, form="DeepSpeed")

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        import deepspeed

        spec, told = self.spec, super().outcome()
        lacking = ["no gradient norms: DeepSpeed tells none in fp32"] * (spec.dtype == "fp32")
        units = ", ".join(f"{stage.start} to {stage.stop - 1}" for stage in self.stages)
        split = f"{spec.microbatches} micro-batches on each of {spec.options.copies} replicas"
        return replace(
            told,
            engine=f"PipelineEngine of deepspeed {deepspeed.__version__}, {self.blocks}",
            notes=[*told.notes, f"stages of units {units}; {split}", *lacking],
        )

    # -- a step ---------------------------------------------------------------------------------

    def _step(self, step: int) -> tuple[float, float | None]:
        """One optimizer step; returns its mean loss and, in bf16, the norm of its gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.spec.learning_rate(step)
        self.pipe.step, self.pipe.coming = step, self._samples(step)
        loss = float(self.engine.train_batch(self._micro_batches(step)))
        norm = self.engine.get_global_grad_norm()
        return loss, None if norm is None else float(norm)

    def _samples(self, step: int) -> Iterator[tuple[int, ...]]:
        """Numbers of the samples of each of this rank's micro-batches."""
        samples = self.batches.samples(step)
        for start in range(0, self.spec.batch, self.spec.microbatch):
            yield samples[start + self.part.start : start + self.part.stop]

    def _micro_batches(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Tokens and targets, [m, S] each. DeepSpeed asks on the first and the last stage, just
        before the micro-batch passes."""
        for rows in self._samples(step):
            tokens, targets = (part.to(self.device) for part in self.batches.rows(rows))
            self.pipe.targets = targets
            yield tokens, targets

    def _own_weights(self) -> dict[str, Tensor]:
        """The stage's, on its first replica; the others have helped to gather them."""
        from deepspeed.utils import safe_get_full_fp32_param

        found = {}
        for unit in self.own:
            for local in self.model.shapes(unit):
                weight = self.whole.units[unit].get_parameter(local)
                exact = weight if self.spec.dtype == "fp32" else safe_get_full_fp32_param(weight)
                found[self.model.state_name(unit, local)] = exact.detach()
        return found if self._writes else {}

    # -- set-up and checkpoints -----------------------------------------------------------------

    def _groups(self) -> list[dict]:
        """Parameter groups. A tied weight is one parameter where this rank has both units. Where it
        has only the one that borrows, the weight gets memory: each stage updates its own."""
        groups = decay_groups(self.model, self.whole, self.spec.weight_decay)
        for unit, name in self.whole.share_tied(self.device, torch.float32):
            weight = self.whole.units[unit].get_parameter(name)
            decay = self.spec.weight_decay if self.model.decays(unit, name) else 0.0
            groups.append({"params": [weight], "weight_decay": decay})
        return groups


def _stages(model: LayeredModel, spec: RunSpec) -> tuple[range, ...]:
    units, micro = range(model.num_units), spec.microbatch // spec.options.copies
    flops = [model.flops(unit, micro, spec.model.seq) for unit in units]
    return stages_of(spec, flops, [model.unit_parameters(unit) for unit in units])
