"""Train megatron-core's GPTModel on one device, everything resident.

What Megatron-LM does with one GPU (SC'22 artifact: no tensor or pipeline parallelism, every layer
recomputed), at its best without Transformer Engine: fused attention, fused bias and GELU, and
torch's fused AdamW, which Megatron itself falls back to. With bf16 the fp32 master weights live
beside the working weights.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from megatron.core import parallel_state, tensor_parallel
from torch import Tensor

from baselines.adamw import ClippedAdamW
from baselines.common import DeviceRows, cap_device
from baselines.megatron import gpt
from baselines.megatron.names import our_layout, their_name
from baselines.megatron.reading import STATE_FILE
from baselines.stepping import NOTHING_MOVES, Resident
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.runtime.checkpoint.checkpoint import (
    KINDS,
    ByUnit,
    in_memory,
    write_weights,
)
from workbench.runtime.checkpoint.manifest import Saved
from workbench.runtime.executor.threads import use_device_threads
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.transport.loopback import join
from workbench.training.history import History


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with megatron-core. Recomputation needs CUDA."""
    run = MegatronTraining(spec, report, folder)
    run.run()
    return run.outcome()


class MegatronTraining(Resident):
    """One training by megatron-core."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path) -> None:
        super().__init__(spec, report, folder)
        use_device_threads(self.device.type)
        _single_rank(self.device, spec.seed)
        cap_device(self.device, spec.device_memory)
        self.whole = gpt.build(
            spec.model,
            device=self.device,
            dtype=DTYPES[spec.dtype],
            recompute=spec.activations != "keep",
        )
        self._weights = dict(self.whole.named_parameters())
        self.optimizer = ClippedAdamW(self._groups(), spec)
        assert len(self.masters) == len(self._weights)
        self.positions = torch.arange(spec.model.seq, device=self.device)
        self.holder = _OneFile(self)
        self.history = History(spec, folder, self.batches, form="megatron-core")

    @torch.no_grad()
    def _groups(self) -> list[dict]:
        """Set the initial weights, and make masters of them: those that decay, and the others."""
        pairs: dict[bool, list[tuple[Tensor, Tensor]]] = {True: [], False: []}
        for name, value, decays in gpt.initial_weights(self.model, self.spec.model, self.spec.seed):
            weight = self._weights[name]
            weight.copy_(value)
            same = weight.dtype == value.dtype
            pairs[decays].append((weight, weight if same else value.to(self.device)))
        self.masters = dict(pairs[True] + pairs[False])
        return [
            {"params": [master for _, master in those], "weight_decay": decay}
            for those, decay in zip(pairs.values(), (self.spec.weight_decay, 0.0), strict=True)
        ]

    def _loss(self, rows: DeviceRows, step: int) -> Tensor:
        positions = self.positions.expand_as(rows.tokens)
        return self.whole(rows.tokens, positions, None, labels=rows.targets).mean()

    @torch.no_grad()
    def _update(self, lr: float) -> Tensor:
        """With torch's own norm and clipping; a step whose norm is not finite is left out."""
        for weight, master in self.masters.items():
            if weight is not master:
                master.grad, weight.grad = weight.grad.float(), None
        masters, clip, inner = [*self.masters.values()], self.spec.clip, self.optimizer.inner
        norm = torch.nn.utils.get_total_norm([master.grad for master in masters])
        if bool(norm.isfinite()):
            if clip is not None:
                torch.nn.utils.clip_grads_with_norm_(masters, clip, norm)
            for group in inner.param_groups:
                group["lr"] = lr
            inner.step()
            self._narrow()
        inner.zero_grad()
        return norm

    def named_masters(self) -> dict[str, Tensor]:
        """fp32 weights by megatron-core's names."""
        return {name: self.masters[weight] for name, weight in self._weights.items()}

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the fp32 weights by our names, in our layout."""
        masters, spec = self.named_masters(), self.spec.model
        return {
            self.model.state_name(unit, name): our_layout(
                name, masters[their_name(self.model, unit, name)].detach(), spec
            ).clone()
            for unit in range(self.model.num_units)
            for name in self.model.shapes(unit)
        }

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        on_gpu = self.device.type == "cuda"
        how = "torch's allocator" if on_gpu else "not measured on a CPU"
        return self.measured(
            f"megatron-core {importlib.metadata.version('megatron-core')}",
            [f"device peak: {how}", NOTHING_MOVES, *self.history.notes],
            peak={"device": torch.cuda.max_memory_allocated(self.device) if on_gpu else None},
        )


class _OneFile:
    """Has megatron-core's weights and moments, in a file of its own. A `Holder`."""

    def __init__(self, training: MegatronTraining) -> None:
        self._training = training
        self._masters, self._optimizer = training.named_masters(), training.optimizer.inner

    def save(self, save: Callable[[], None]) -> None:
        """Call `save`, which asks for `write`."""
        save()

    def weights(self) -> ByUnit:
        """As `Holder.weights`."""
        return in_memory(self._training.parameters())

    def write(self, folder: Path, kinds: Sequence[str] = KINDS) -> None:
        """As `Holder.write`."""
        if len(kinds) < len(KINDS):
            write_weights(folder, self._training.model, self._training.parameters())
            return
        state = {"masters": self._masters, "inner": self._optimizer.state_dict()}
        torch.save(state, folder / STATE_FILE)

    @torch.no_grad()
    def restore(self, saved: Saved) -> None:
        """As `Holder.restore`."""
        saved.check([STATE_FILE])
        state = torch.load(saved.path / STATE_FILE, weights_only=True)
        for name, value in state["masters"].items():
            self._masters[name].copy_(value)
        self._optimizer.load_state_dict(state["inner"])


def _single_rank(device: torch.device, seed: int) -> None:
    """Megatron's process groups, of this process alone."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    if not torch.distributed.is_initialized():
        join(device)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel()
    if device.type == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
