"""megatron-core on several GPUs: how one of our runs is trained by its own tensor parallelism,
1F1B, data parallelism and optimizer.

Ranks are numbered as Megatron-LM does it: those that share tensors are neighbours, then come
replicas, then stages. Each rank has its shard of its stage's layers (gpt.py), with our initial
weights. Sums over replicas run beside the backward pass. Without Apex and Transformer Engine
sequence parallelism is not to be had, and Adam is torch's, here fused.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from baselines.common import cap_device, micro_batches
from baselines.megatron import gpt
from baselines.stages import share_of
from baselines.stepping import NOTHING_MOVES, Stepping
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.runtime.memory.storage import DTYPES
from workbench.training.history import History


@contextmanager
def training(spec: RunSpec, report: Reporter, folder: Path) -> Iterator[MegatronRank]:
    """In a rank's process: the training of its shard."""
    yield MegatronRank(spec, report, folder)


class MegatronRank(Stepping):
    """The training of a rank's shard by megatron-core."""

    holder = None
    """Nobody: there are no checkpoints."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path) -> None:
        super().__init__(spec, report, folder)
        options, dtype = spec.options, DTYPES[spec.dtype]
        cap_device(self.device, spec.device_memory)
        parallel_state.initialize_model_parallel(
            options.tp, options.pp, create_gloo_process_groups=False
        )
        self.dp = parallel_state.get_data_parallel_world_size()
        self._first = parallel_state.is_pipeline_first_stage()
        self._last = parallel_state.is_pipeline_last_stage()
        if self.device.type == "cuda":
            tensor_parallel.model_parallel_cuda_manual_seed(spec.seed)
        report.phase("building the shard")
        shard = gpt.build(
            spec.model, device=self.device, dtype=dtype, tp=options.tp, pp=options.pp,
            recompute=spec.activations != "keep", first=self._first, last=self._last,
        )  # fmt: skip
        self._set_weights(shard)
        several = self.dp > 1
        own = DistributedDataParallelConfig(
            grad_reduce_in_fp32=dtype != torch.float32,
            overlap_grad_reduce=several,
            use_distributed_optimizer=options.distributed_optimizer,
            overlap_param_gather=several and options.distributed_optimizer,
        )
        self.whole = DistributedDataParallel(shard.config, own, shard)
        self.optimizer = get_megatron_optimizer(
            optimizer_config(spec), [self.whole], use_gloo_process_groups=False
        )
        for group in self.optimizer.param_groups:
            group["fused"] = True
        shard.config.finalize_model_grads_func = finalize_model_grads
        shard.config.no_sync_func = self.whole.no_sync
        self._passes = get_forward_backward_func()
        self._positions = torch.arange(spec.model.seq, device=self.device)
        self.history = History(spec, folder, self.batches, form="megatron-core")

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        options, on_gpu = self.spec.options, self.device.type == "cuda"
        split = f"tp {options.tp} x pp {options.pp} x dp {self.dp}"
        kept = "divided among replicas" if options.distributed_optimizer else "on every replica"
        begun = ["masters begin from weights in bf16"] * (self.spec.dtype == "bf16")
        return self.measured(
            f"megatron-core {importlib.metadata.version('megatron-core')}, {split}",
            [f"device peak: {'torch' if on_gpu else 'not measured on a CPU'}", NOTHING_MOVES,
             f"the optimizer's states are {kept}", *begun, *self.history.notes],
            peak={"device": torch.cuda.max_memory_allocated(self.device) if on_gpu else None},
        )  # fmt: skip

    # -- a step ---------------------------------------------------------------------------------

    def _step(self, step: int) -> tuple[float, float | None]:
        """One optimizer step; returns the mean loss of all replicas and the norm."""
        spec = self.spec
        self.whole.zero_grad_buffer()
        self.optimizer.zero_grad()
        told = self._passes(
            forward_step_func=self._forward, data_iterator=self._rows(step), model=[self.whole],
            num_microbatches=spec.microbatches, seq_length=spec.model.seq,
            micro_batch_size=spec.microbatch // self.dp, forward_only=False,
        )  # fmt: skip
        for group in self.optimizer.param_groups:
            group["lr"] = spec.learning_rate(step)
            group["weight_decay"] = spec.weight_decay * group["wd_mult"]
        _, norm, _ = self.optimizer.step()
        total = torch.zeros((), device=self.device)
        if self._last and parallel_state.get_tensor_model_parallel_rank() == 0:
            total += torch.stack([each["loss"] for each in told]).mean() / self.dp
        dist.all_reduce(total)
        return float(total), None if spec.clip is None else float(norm)

    def _skipped(self, norm: float | None) -> bool:
        """Without a loss scale megatron-core leaves no step out."""
        return False

    def _rows(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Tokens and targets of this replica, [m / dp, S] each, of each micro-batch."""
        replica = parallel_state.get_data_parallel_rank()
        for rows in micro_batches(self.batches, self.spec, step, self.device):
            own = share_of(len(rows.samples), replica, self.dp)
            part = slice(own.start, own.stop)
            yield rows.tokens[part], rows.targets[part]

    def _forward(self, rows: Iterator[tuple[Tensor, Tensor]], shard: torch.nn.Module) -> Any:
        tokens, targets = next(rows)
        positions = self._positions.expand_as(tokens)
        return shard(tokens, positions, None, labels=targets), _mean

    # -- set-up ---------------------------------------------------------------------------------

    @torch.no_grad()
    def _set_weights(self, shard: gpt.PaddedGPT) -> None:
        """Our initial weights, of each its part. Megatron's own initialization is left out, so it
        is said here along which dimension a weight lies in parts: norms count it by that."""
        spec, weights = self.spec, dict(shard.named_parameters())
        rank = parallel_state.get_tensor_model_parallel_rank()
        first = shard.decoder.layers[0].layer_number - 1
        for name, value, _ in gpt.initial_weights(
            self.model, spec.model, spec.seed, tp=spec.options.tp
        ):
            for local in gpt.local_names(name, first, tied=spec.model.tied):
                if (weight := weights.get(local)) is None:
                    continue
                sizes = zip(weight.shape, value.shape, strict=True)
                for dim, (part, whole) in enumerate(sizes):
                    if part != whole:
                        value = value.chunk(spec.options.tp, dim)[rank]
                        if not hasattr(weight, "tensor_model_parallel"):
                            tensor_parallel.set_tensor_model_parallel_attributes(
                                weight, True, dim, 1
                            )
                weight.copy_(value)


def optimizer_config(spec: RunSpec) -> OptimizerConfig:
    """Megatron's AdamW as the spec has it."""
    return OptimizerConfig(
        optimizer="adam", lr=spec.lr, min_lr=spec.min_lr, weight_decay=spec.weight_decay,
        adam_beta1=spec.beta1, adam_beta2=spec.beta2, adam_eps=spec.eps,
        clip_grad=spec.clip or 0.0, bf16=spec.dtype == "bf16", params_dtype=DTYPES[spec.dtype],
        use_distributed_optimizer=spec.options.distributed_optimizer,
        overlap_param_gather=spec.options.distributed_optimizer,
    )  # fmt: skip


def _mean(losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """A micro-batch's mean loss, from those of its tokens, and what is told of it."""
    loss = losses.mean()
    return loss, {"loss": loss.detach().clone()}
