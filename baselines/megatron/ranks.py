"""A rank of megatron-core on several GPUs, by its own tensor parallelism, 1F1B, sums and optimizer.

Ranks are numbered as Megatron-LM does it: neighbours share tensors, then come replicas, then
stages. Gradients are added up beside the backward pass. Without Apex and Transformer Engine Adam is
torch's, here fused, and there is no sequence parallelism, which would need their norms.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as groups
from megatron.core import tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from baselines.common import cap_device, micro_batches
from baselines.megatron import gpt
from baselines.megatron.names import local_names
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
    """The training of a rank's shard."""

    holder = None
    """Nobody: there are no checkpoints."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path) -> None:
        super().__init__(spec, report, folder)
        options, dtype = spec.options, DTYPES[spec.dtype]
        cap_device(self.device, spec.device_memory)
        groups.initialize_model_parallel(options.tp, options.pp, create_gloo_process_groups=False)
        self.dp = groups.get_data_parallel_world_size()
        if self.device.type == "cuda":
            tensor_parallel.model_parallel_cuda_manual_seed(spec.seed)
        shard = gpt.build(
            spec.model, device=self.device, dtype=dtype, recompute=spec.activations != "keep",
            tp=options.tp, pp=options.pp, first=groups.is_pipeline_first_stage(),
            last=groups.is_pipeline_last_stage(),
        )  # fmt: skip
        self._set_weights(shard)
        sharded = options.distributed_optimizer
        sums = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, overlap_grad_reduce=self.dp > 1,
            use_distributed_optimizer=sharded, overlap_param_gather=sharded and self.dp > 1,
        )  # fmt: skip
        self.whole = DistributedDataParallel(shard.config, sums, shard)
        adam = OptimizerConfig(
            lr=spec.lr, weight_decay=spec.weight_decay, adam_beta1=spec.beta1,
            adam_beta2=spec.beta2, adam_eps=spec.eps, clip_grad=spec.clip or 0.0,
            bf16=spec.dtype == "bf16", params_dtype=dtype, use_distributed_optimizer=sharded,
            overlap_param_gather=sums.overlap_param_gather,
        )  # fmt: skip
        chunks, gloo = [self.whole], {"use_gloo_process_groups": False}
        self.optimizer = get_megatron_optimizer(adam, chunks, **gloo)
        for group in self.optimizer.param_groups:
            group["fused"] = True
        shard.config.finalize_model_grads_func = finalize_model_grads
        shard.config.no_sync_func = self.whole.no_sync
        self._passes = get_forward_backward_func()
        self._positions = torch.arange(spec.model.seq, device=self.device)
        self.history = History(spec, folder, self.batches, form="megatron-core")

    @torch.no_grad()
    def _set_weights(self, shard: gpt.PaddedGPT) -> None:
        """Our initial weights, of each its part. Megatron's own initialization is left out, so it
        is said here along which dimension a weight lies in parts: norms count it by that."""
        model, tp, weights = self.spec.model, self.spec.options.tp, dict(shard.named_parameters())
        rank, first = groups.get_tensor_model_parallel_rank(), shard.decoder.layers[0].layer_number
        for name, value, _ in gpt.initial_weights(self.model, model, self.spec.seed, tp):
            for local in local_names(name, first - 1, tied=model.tied) & weights.keys():
                weight, part = weights[local], value
                for dim, size in enumerate(weight.shape):
                    if size != value.shape[dim]:
                        part = value.chunk(tp, dim)[rank]
                        if not hasattr(weight, "tensor_model_parallel"):
                            told = weight, True, dim, 1
                            tensor_parallel.set_tensor_model_parallel_attributes(*told)
                weight.copy_(part)

    def _step(self, step: int) -> tuple[float, float | None]:
        """One optimizer step; returns the mean loss of all replicas and the norm."""
        spec, total = self.spec, torch.zeros((), device=self.device)
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
        if told and groups.get_tensor_model_parallel_rank() == 0:  # of the last stage
            total += torch.stack([each["loss"] for each in told]).mean() / self.dp
        dist.all_reduce(total)
        return float(total), None if spec.clip is None else float(norm)

    def _skipped(self, norm: float | None) -> bool:
        """Without a loss scale megatron-core leaves no step out."""
        return False

    def _rows(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Tokens and targets of this replica, [m / dp, S] each, of each micro-batch."""
        for rows in micro_batches(self.batches, self.spec, step, self.device):
            own = share_of(len(rows.samples), groups.get_data_parallel_rank(), self.dp)
            part = slice(own.start, own.stop)
            yield rows.tokens[part], rows.targets[part]

    def _forward(self, rows: Iterator[tuple[Tensor, Tensor]], shard: nn.Module) -> Any:
        tokens, targets = next(rows)
        return shard(tokens, self._positions.expand_as(tokens), None, labels=targets), _mean

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        options, on_gpu = self.spec.options, self.device.type == "cuda"
        shape = f"tp {options.tp} x pp {options.pp} x dp {self.dp}"
        states = "divided among replicas" if options.distributed_optimizer else "on every replica"
        notes = ["device peak: torch's allocator", NOTHING_MOVES, f"optimizer's states {states}"]
        begun = ["masters begin from weights in bf16"] * (self.spec.dtype == "bf16")
        return self.measured(
            f"megatron-core {importlib.metadata.version('megatron-core')}, {shape}",
            [*notes, *begun, *self.history.notes],
            peak={"device": torch.cuda.max_memory_allocated(self.device) if on_gpu else None},
        )


def _mean(losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """A micro-batch's mean loss, from those of its tokens, and what is told of it."""
    loss = losses.mean()
    return loss, {"loss": loss.detach().clone()}
