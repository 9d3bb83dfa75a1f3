"""Memory of a DeepSpeed run on each tier, its transfers between them, and the budgets it must keep.

On a GPU: the device tier is the memory of torch's allocator, capped for the process; the host tier
is the CPU memory of tensors that DeepSpeed's optimizer owns. On a CPU alone the tiers are told
apart by ownership (`TransferCounter`): tensors of DeepSpeed's offloaded optimizer are the host's,
all others are the device's. Two things need help there. DeepSpeed's fetch of a ZeRO-3 parameter is
a copy on a GPU but an alias on a CPU, so its memory and its transfer are entered by the size of the
parameter. (Of several ranks each fetches its part, an alias too, and gathers the others' into
memory that is seen like any other.) And nothing stops an allocation on the spot, so budgets are
enforced at the end of each step.

The host is one for all ranks: its peak is the sum of what theirs have at the end of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baselines.transfer_counter import TransferCounter, bytes_of, tensors_in
from workbench.core.bytesize import format_bytes
from workbench.core.spec import RunSpec
from workbench.model.whole import Whole
from workbench.runtime.memory.tiers import OutOfMemory

HOST_STATE = (
    # ZeRO-2: masters with their gradients, staging of weights, of gradients, accumulated gradients
    "single_partition_of_fp32_groups",
    "param_buffer_of_bit16_for_cpu_offload_groups",
    "temp_grad_buffer_for_cpu_offload",
    "accumulated_grads_in_cpu",
    # ZeRO-3: masters with their gradients, offloaded weights, gradients, buffers of the disk tier
    "fp32_partitioned_groups_flat",
    "param_groups_fp16_flat_cpu_memory",
    "grad_partitions_flat_buffer",
    "optimizer_swapper",
)
"""Where DeepSpeed's ZeRO optimizers keep what is offloaded; the inner optimizer has the moments."""
DISK_BUFFERS = ("deepspeed.runtime.swap_tensor",)


class Account:
    """Peaks and traffic of one run, and its budgets."""

    def __init__(
        self,
        spec: RunSpec,
        optimizer: Any,
        whole: Whole,
        device: torch.device,
        *,
        label: str,
        scratch: Path | None,
    ) -> None:
        """`optimizer` is DeepSpeed's wrapper around the inner one.

        Raises OutOfMemory if what is there before the first step is too much already.
        """
        self.spec, self.label = spec, label
        self._optimizer, self._device, self._scratch = optimizer, device, scratch
        self._emulated = device.type == "cpu"
        self._fetches = hasattr(next(whole.parameters()), "ds_id")
        """Whether parameters are ZeRO-3's."""
        self.counted_step = 0
        """On a GPU copies are counted in this step only, since counting costs a little time; one
        after the first, which is unlike the others."""
        self._counter = TransferCounter()
        self.peak_bytes: dict[str, int | None] = {"device": 0, "host": 0, "disk": 0}
        self.moved_bytes: dict[str, int | None] = dict.fromkeys(("load", "store", "read", "write"))
        if scratch is None:
            self.moved_bytes |= {"read": 0, "write": 0}
        if self._emulated:
            if self._fetches:
                _observe_fetches(whole, self._counter, spec.ranks)
            _observe_updates(optimizer.optimizer, self._counter)
            everything = tensors_in(vars(optimizer), inside=("deepspeed.runtime",))
            self._counter.adopt([*everything, *tensors_in(list(whole.parameters()))])
        self.close_step(None)

    @contextmanager
    def watching(self, step: int) -> Iterator[None]:
        """Around the work of a step."""
        before = _storage_io()
        if self._emulated or step == self.counted_step:
            with self._counter:
                yield
        else:
            yield
        if self._scratch is not None and step >= self.counted_step:
            after = _storage_io()
            self.moved_bytes |= {way: after[way] - count for way, count in before.items()}

    def close_step(self, step: int | None) -> None:
        """Enter a step that is done (None: the start); raises OutOfMemory if it passed a budget."""
        host = [tensor for tensor in self._host_tensors() if tensor.device.type == "cpu"]
        counts = self._counter.close_step(host if self._emulated else None)
        steady = step is not None and step >= self.counted_step
        if steady and (self._emulated or step == self.counted_step):
            self.moved_bytes |= {"load": counts.load_bytes, "store": counts.store_bytes}
        if self._emulated:
            self._enter("device", counts.device_peak_bytes, counts.device_bytes)
        else:
            self._enter("device", torch.cuda.max_memory_allocated(self._device))
        self._enter("host", self._of_all_ranks(bytes_of(host)))
        if self._scratch is not None:
            files = [path for path in self._scratch.rglob("*") if path.is_file()]
            self._enter("disk", sum(path.stat().st_size for path in files))

    @property
    def notes(self) -> list[str]:
        """How the figures were obtained."""
        told = [
            "host peak: tensors that DeepSpeed's offloaded optimizer owns, at the end of any step"
        ]
        if self._emulated:
            told += [
                "device peak: storages alive in a step that the offloaded optimizer does not own, "
                "held against the budget after the step",
            ]
            if self._fetches:
                told.append(
                    "fetched weights are aliases on a CPU, counted as the copies of a GPU; "
                    "gradients, which a GPU moves back and forth once more, as they moved here"
                )
        else:
            reserved = format_bytes(torch.cuda.max_memory_reserved(self._device))
            told.append(f"device peak: torch's allocator, which had reserved {reserved}")
        if self._scratch is not None:
            known = self.moved_bytes["read"] is not None
            account = "the kernel's account of this process" if known else "not known to the kernel"
            told.append(f"bytes read and written: {account}")
        return told

    def _enter(self, tier: str, nbytes: int, before: int = 0) -> None:
        """A tier had `nbytes` in use, `before` of them when the step began."""
        self.peak_bytes[tier] = max(self.peak_bytes[tier], nbytes)
        budget = getattr(self.spec, f"{tier}_memory")
        if budget is not None and nbytes > budget:
            raise OutOfMemory(
                tier=tier,
                what=f"training by {self.label}",
                asked=nbytes - before,
                in_use=before,
                budget=budget,
            )

    def _of_all_ranks(self, nbytes: int) -> int:
        if self.spec.ranks == 1:
            return nbytes
        total = torch.tensor(nbytes, device=self._device)
        dist.all_reduce(total)
        return int(total)

    def _host_tensors(self) -> list[Tensor]:
        optimizer = self._optimizer
        owned = [getattr(optimizer, name, None) for name in HOST_STATE]
        return list(tensors_in(*owned, optimizer.optimizer.state, inside=DISK_BUFFERS))


def tell_deepspeed_the_cap(device: torch.device, budget: int | None) -> None:
    """DeepSpeed flattens the weights on the GPU if twice their size is free there by the driver's
    word, which knows no cap of the process; without this a model that fits would fail."""
    if budget is not None:
        from deepspeed.accelerator import get_accelerator

        free = get_accelerator().available_memory
        get_accelerator().available_memory = lambda index=None: min(
            free(index), budget - torch.cuda.memory_allocated(device)
        )


def _observe_updates(inner: torch.optim.Optimizer, counter: TransferCounter) -> None:
    """Count memory that the host optimizer's step allocates (moments, at first) as the host's."""
    step = inner.step

    def step_on_host(*args: Any, **kwargs: Any) -> Any:
        with counter.host_work():
            return step(*args, **kwargs)

    inner.step = step_on_host


def _observe_fetches(whole: Whole, counter: TransferCounter, ranks: int) -> None:
    """Enter the fetches and releases of ZeRO-3 parameters in the counter, as they happen."""
    parameters = list(whole.parameters())
    if ranks == 1:
        counter.alias(_fetched_bytes(parameters), loaded=False)
    for parameter in parameters:
        for name in ("all_gather", "all_gather_coalesced", "partition"):
            method = getattr(parameter, name)
            setattr(parameter, name, partial(_observed, counter, ranks, parameter, method))


def _observed(
    counter: TransferCounter, ranks: int, owner: Tensor, method: Callable, *args: Any, **kwargs: Any
) -> Any:
    params = args[0] if args else kwargs.get("param_list")
    params = [owner] if params is None else params
    before = _fetched_bytes(params)
    result = method(*args, **kwargs)
    change = _fetched_bytes(params) - before
    if ranks == 1:
        counter.alias(change, loaded=change > 0)
    elif change > 0:  # the whole was seen; this rank's part was there until it was gathered
        counter.alias(change // ranks, loaded=True)
        counter.alias(-(change // ranks), loaded=False)
    return result


def _fetched_bytes(parameters: Iterable[Tensor]) -> int:
    """Bytes of those parameters that are on the device, or on their way to it."""
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    away = ZeroParamStatus.NOT_AVAILABLE
    return sum(p.ds_numel * p.element_size() for p in parameters if p.ds_status != away)


def _storage_io() -> dict[str, int]:
    """Bytes this process has read from and written to storage; empty where the kernel keeps no
    such account (it is Linux's, and some containers lack it)."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return {}
    counts = dict(line.split(": ") for line in lines)
    return {"read": int(counts["read_bytes"]), "write": int(counts["write_bytes"])}
