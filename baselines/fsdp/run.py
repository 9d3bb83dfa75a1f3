"""Train with FSDP2 (`fully_shard`) and its CPU offload, as torch offers it, on one device.

fp32 weights rest in pinned host memory. When a block is called FSDP copies its weights to the
device and casts them there; its gradients, widened on the device, leave while the backward pass
goes on; after it the host takes their norm and runs AdamW on the weights themselves. On one device
nothing has to be gathered or reduced, so no collective is ever issued; torch (2.11 to 2.13) then
fetches weights on the compute stream, and prefetching settings change nothing about it.

Three things are done better than by the usual recipe, since a peer is to run at its best. Weights
that came for the forward pass stay for the backward pass where the device has room (`kept_blocks`),
or each would be copied twice, in fp32, while compute waits. The optimizer and the norm work on the
local tensors, which are the whole parameters here: a DTensor costs the host a dispatch per
parameter and operation. And the norm is summed in rows (`baselines.adamw`), since torch's norm of a
large tensor on a CPU is off by a percent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from baselines.adamw import global_norm
from baselines.blocks import compile_blocks
from baselines.common import (
    cap_device,
    decay_groups,
    named_units,
    resident_note,
    unit_by_unit,
)
from baselines.fsdp.planner import LABEL, kept_blocks
from baselines.host_adam import fastest
from baselines.stepping import Stepping
from baselines.transfer_counter import TransferCounter
from workbench.core.bytesize import format_bytes
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.model.text import Batches
from workbench.model.whole import Whole
from workbench.runtime.executor.threads import use_device_threads
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.transport.loopback import join
from workbench.training.run import resolve_device


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with FSDP2; its process group is gone when this returns or raises.

    Raises OutOfMemory when a budget is too small.
    """
    with single_rank(resolve_device(spec.device)):
        run = FsdpTraining(spec, report, folder)
        run.run()
        return run.outcome()


@contextmanager
def single_rank(device: torch.device) -> Iterator[None]:
    """A process group of this process alone."""
    join(device)
    try:
        yield
    finally:
        distributed.destroy_process_group()


class FsdpTraining(Stepping):
    """One training by FSDP2, inside a process group."""

    norm_of = staticmethod(global_norm)

    def __init__(
        self,
        spec: RunSpec,
        report: Reporter,
        folder: Path,
        *,
        given: tuple[LayeredModel, Batches] | None = None,
        over: distributed.ProcessGroup | None = None,
    ) -> None:
        """`given`: a model and data that the spec does not name. `over` which processes weights
        are sharded, by default all, in their own group."""
        super().__init__(spec, report, folder, given)
        self.on_gpu = self.device.type == "cuda"
        use_device_threads(self.device.type)
        cap_device(self.device, spec.device_memory)
        self.host_bytes = host_bytes(self.model, pinned=self.on_gpu)
        if spec.host_memory is not None and self.host_bytes > spec.host_memory:
            raise OutOfMemory(
                tier="host",
                what=f"training by {LABEL}",
                asked=self.host_bytes,
                in_use=0,
                budget=spec.host_memory,
            )
        maker, self.update = fastest(spec, self.device)
        report.phase("sharding the model")
        self.whole = _sharded(self.model, spec, self.device, keeps=given is None, over=over)
        self.blocks = compile_blocks(self.whole, spec, self.device)
        report.phase(f"training with {self.blocks}, update by {self.update}")
        with torch.no_grad():
            self.masters = {p: p.to_local() for _, _, p in named_units(self.whole)}
        groups = decay_groups(self.model, self.whole, spec.weight_decay)
        for group in groups:
            group["params"] = [self.masters[parameter] for parameter in group["params"]]
        self.optimizer = maker(groups, spec)
        self._hold()
        self.moved: dict[str, int | None] = dict.fromkeys(("load", "store"))

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        peak = torch.cuda.max_memory_allocated(self.device) if self.on_gpu else None
        return self.measured(
            f"FSDP2 of torch {torch.__version__}, {self.blocks}, update by {self.update}",
            [*self.history.notes, *self._notes(), resident_note()],
            peak={"device": peak, "host": self.host_bytes},
            moved=self.moved,
        )

    def _notes(self) -> list[str]:
        if not self.on_gpu:
            return [
                "device peak and bytes moved: not measured on a CPU, where FSDP's copies are "
                "aliases and it frees weights by resizing their storage",
                "host peak: weights, gradients and moments",
            ]
        reserved = format_bytes(torch.cuda.max_memory_reserved(self.device))
        return [
            f"device peak: torch's allocator, which had reserved {reserved}",
            "host peak: weights, gradients and moments; torch rounds each pinned tensor up to a "
            "power of two, and so does this figure",
        ]

    # -- a step ---------------------------------------------------------------------------------

    @torch.no_grad()
    def _update(self, lr: float) -> Tensor:
        for parameter, master in self.masters.items():
            assert parameter.to_local().data_ptr() == master.data_ptr()
            master.grad, parameter.grad = parameter.grad.to_local(), None
        norm = self.norm_of([master.grad for master in self.masters.values()])
        self.optimizer.step(lr, norm)
        return norm

    @contextmanager
    def _watched(self, nth: int) -> Iterator[None]:
        """Enter the bytes that cross the link in the second step: the first one also compiles and
        pins."""
        if not self.on_gpu or nth != 1:
            yield
            return
        with TransferCounter() as counter:
            yield
        counts = counter.close_step(None)
        self.moved = {"load": counts.load_bytes, "store": counts.store_bytes}

    # -- checkpoints ----------------------------------------------------------------------------

    def forget(self) -> bool:
        """As `Stepping.forget`. Raises ValueError where torch cannot."""
        if not hasattr(self.whole, "reset_iter_state"):
            raise ValueError(
                f"FSDP2 of torch {torch.__version__} takes no step after one that failed; make "
                "another engine, and load a checkpoint there"
            )
        self.whole.reset_iter_state()
        return super().forget()


def host_bytes(model: LayeredModel, *, pinned: bool) -> int:
    """Bytes of weights, gradients and moments on the host, known before a run starts.

    Weights and gradients are pinned, where torch's allocator rounds up to a power of two.
    """
    total = 0
    for unit in range(model.num_units):
        for shape in model.shapes(unit).values():
            nbytes = 4 * shape.numel()
            held = 1 << (nbytes - 1).bit_length() if pinned else nbytes
            total += 2 * held + 2 * nbytes
    return total


def _sharded(
    model: LayeredModel, spec: RunSpec, device: torch.device, *,
    keeps: bool, over: distributed.ProcessGroup | None,
) -> Whole:  # fmt: skip
    """The whole model, each block sharded as soon as it is made; what is outside the blocks is the
    root's. With `keeps` blocks' weights stay for the backward pass where there is room, which is
    known of a decoder only."""
    settings = _settings(spec, device, over)
    parameters = [model.unit_parameters(unit) for unit in range(model.num_units)]
    fetched_again = (
        model.head - 1 - kept_blocks(spec, parameters, _room(device, spec) if keeps else 0)
    )

    def shard(unit: int, module: nn.Module) -> None:
        if 0 < unit < model.head:
            fully_shard(module, reshard_after_forward=unit <= fetched_again, **settings)

    whole = unit_by_unit(model, spec, shard)
    if not keeps:  # the tree of a module that is cut into layers has their parts, not the layers
        settings["ignored_params"] = {p for block in whole.blocks for p in block.parameters()}
    fully_shard(whole, **settings)
    return whole


def _room(device: torch.device, spec: RunSpec) -> int | None:
    """Bytes of the device; None where nobody counts."""
    if device.type != "cuda":
        return None
    return spec.device_memory or torch.cuda.get_device_properties(device).total_memory


def _settings(
    spec: RunSpec, device: torch.device, over: distributed.ProcessGroup | None
) -> dict[str, Any]:
    """Arguments of `fully_shard`.

    Gradients are reduced in fp32: with one rank that is the same values as in bf16, widened by the
    copy there is anyway instead of by a pass of its own.
    """
    policy = MixedPrecisionPolicy()
    if spec.dtype != "fp32":
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[spec.dtype], reduce_dtype=torch.float32)
    mesh = (
        init_device_mesh(device.type, (distributed.get_world_size(),))
        if over is None
        else DeviceMesh.from_group(over, device.type)
    )
    return {
        "mesh": mesh,
        "mp_policy": policy,
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda"),
    }
