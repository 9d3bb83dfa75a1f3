"""Train megatron-core's GPTModel on one device, everything resident.

What Megatron-LM does with one GPU (SC'22 artifact: no tensor or pipeline parallelism, every layer
recomputed), at its best without Transformer Engine: fused attention, fused bias and GELU, and
torch's fused AdamW, which Megatron itself falls back to. With bf16 the fp32 master weights live
beside the working weights.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path

import torch
from megatron.core import parallel_state, tensor_parallel
from torch import Tensor

from baselines.common import cap_device, micro_batches
from baselines.megatron import gpt
from baselines.plain_training import NOTHING_MOVES
from baselines.stepping import Stepping
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.runtime.checkpoint.manifest import Saved
from workbench.runtime.executor.threads import use_device_threads
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.transport.loopback import join
from workbench.training.history import History
from workbench.training.run import load_batches, resolve_device

STATE_FILE = "state.pt"


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with megatron-core. Recomputation needs CUDA."""
    run = MegatronTraining(spec, report, folder)
    run.run()
    return run.outcome()


class MegatronTraining(Stepping):
    """One training by megatron-core."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path) -> None:
        self.spec, self.report, self.folder = spec, report, folder
        self.device = resolve_device(spec.device)
        use_device_threads(self.device.type)
        _single_rank(self.device, spec.seed)
        cap_device(self.device, spec.device_memory)
        self.model = make_model(spec.model)
        self.batches = load_batches(spec, self.model, folder / "cache")
        self.whole = gpt.build(
            spec.model,
            device=self.device,
            dtype=DTYPES[spec.dtype],
            recompute=spec.activations != "keep",
        )
        self.holder = _MasterAdamW(self.whole, self._groups(), spec)
        self.positions = torch.arange(spec.model.seq, device=self.device)
        self.history = History(spec, folder, self.batches, form="megatron-core")

    def _groups(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Initial weights by megatron-core's names: those that decay, and the others."""
        decayed: dict[str, Tensor] = {}
        plain: dict[str, Tensor] = {}
        weights = gpt.initial_weights(self.model, self.spec.model, seed=self.spec.seed)
        for name, value, decays in weights:
            (decayed if decays else plain)[name] = value.to(self.device)
        return decayed, plain

    def _step(self, step: int) -> tuple[float, float | None]:
        """As `Stepping._step`; the norm is None where a step is left out."""
        spec, total = self.spec, torch.zeros((), device=self.device)
        for tokens, targets, *_ in micro_batches(self.batches, spec, step, self.device):
            positions = self.positions.expand_as(tokens)
            loss = self.whole(tokens, positions, None, labels=targets).mean()
            (loss / spec.microbatches).backward()
            total += loss.detach()
        norm = self.holder.step(spec.learning_rate(step), spec.clip)
        return float(total) / spec.microbatches, norm

    def _skipped(self, norm: float | None) -> bool:
        return norm is None

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the fp32 weights by our names, in our layout."""
        masters, spec = self.holder.masters, self.spec.model
        return {
            self.model.state_name(unit, name): gpt.our_layout(
                name, masters[gpt.their_name(self.model, unit, name)].detach(), spec
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


class _MasterAdamW:
    """AdamW on fp32 weights, global clipping, and working weights of the model's dtype.

    A step with a gradient that is not finite is left out, moments and step number included. A
    `Holder`, of a file of its own.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        groups: tuple[dict[str, Tensor], dict[str, Tensor]],
        spec: RunSpec,
    ) -> None:
        """`groups` are the initial fp32 weights by name: those that decay, and the others."""
        self.working = dict(model.named_parameters())
        self.masters: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, value in (groups[0] | groups[1]).items():
                weight = self.working[name]
                weight.copy_(value)
                self.masters[name] = weight if weight.dtype == value.dtype else value
        assert self.masters.keys() == self.working.keys()
        self.inner = torch.optim.AdamW(
            [
                {"params": [self.masters[name] for name in group], "weight_decay": decay}
                for group, decay in zip(groups, (spec.weight_decay, 0.0), strict=True)
            ],
            lr=spec.lr,
            betas=(spec.beta1, spec.beta2),
            eps=spec.eps,
            fused=True,
        )

    def step(self, lr: float, clip: float | None) -> float | None:
        """Update and clear the gradients; returns their norm, or None when it is not finite."""
        for name, master in self.masters.items():
            weight = self.working[name]
            if weight is not master:
                master.grad, weight.grad = weight.grad.float(), None
        masters = list(self.masters.values())
        norm = torch.nn.utils.get_total_norm([master.grad for master in masters])
        finite = bool(norm.isfinite())
        if finite:
            if clip is not None:
                torch.nn.utils.clip_grads_with_norm_(masters, clip, norm)
            for group in self.inner.param_groups:
                group["lr"] = lr
            self.inner.step()
            self._narrow()
        self.inner.zero_grad()
        return float(norm) if finite else None

    def save(self, save: Callable[[], None]) -> None:
        """Call `save`, which asks for `write`."""
        save()

    def write(self, folder: Path) -> None:
        """As `Holder.write`."""
        state = {"masters": dict(self.masters), "inner": self.inner.state_dict()}
        torch.save(state, folder / STATE_FILE)

    def restore(self, saved: Saved) -> None:
        """As `Holder.restore`."""
        saved.check([STATE_FILE])
        state = torch.load(saved.path / STATE_FILE, weights_only=True)
        with torch.no_grad():
            for name, value in state["masters"].items():
                self.masters[name].copy_(value)
        self.inner.load_state_dict(state["inner"])
        self._narrow()

    @torch.no_grad()
    def _narrow(self) -> None:
        """Working weights from masters."""
        for name, master in self.masters.items():
            if self.working[name] is not master:
                self.working[name].copy_(master)


def _single_rank(device: torch.device, seed: int) -> None:
    """Megatron's process groups, of this process alone."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    if not torch.distributed.is_initialized():
        join(device)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel()
    if device.type == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
