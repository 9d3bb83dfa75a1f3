"""How many bytes each pass of a decoder's units needs, seen by the meter of the runtime itself.

Units are run and the meter asked, on CUDA the allocator. On a CPU they may be run on fake tensors
under the same meter: the counts are the same, nothing is computed, and a layer of any size can be
asked about on any laptop.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.model.modules import Decomposed
from workbench.profile.alone import Alone, Setting
from workbench.profile.as_on_gpu import AttentionAsOnGpu, EmbeddingAsOnGpu
from workbench.runtime.memory.device_budget import CudaMeter, DeviceMeter, device_meter


def footprints(
    setting: Setting, *, fake: bool = False, as_on_gpu: bool = False
) -> tuple[dict[str, dict[str, int]], int]:
    """The fields of UnitCost that end in ``_bytes``, by kind of a decoder's unit, as the engine of
    a single device runs them; and the bytes that are there beside all units (`Standing`).

    `fake` chooses fake tensors (CPU only): they cost torch's compiler, which takes a second or two
    to import, and then next to nothing. `as_on_gpu`: these take the memory that a GPU would.
    """
    meter = device_meter(setting.device)
    with ExitStack() as stack:
        stack.enter_context(fake_tensors() if fake else nullcontext())
        for mode in (meter, *([AttentionAsOnGpu(), EmbeddingAsOnGpu()] if as_on_gpu else [])):
            stack.enter_context(mode)
        standing = Standing(setting, meter)
        units = [Alone(setting, unit, meter, slabs=True) for unit in setting.units()]
        found = {alone.kind: alone.weighed() for alone in units}
        for alone in units:
            standing.see(alone)
        del units, alone
        return found, standing.nbytes()


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Operations on them compute nothing; their devices and sizes are those of real ones."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), _GroupedOfAnyType():
        yield


class _GroupedOfAnyType(TorchDispatchMode):
    """Has grouped products, by which experts are computed, take fake tensors of all types that they
    take with values: without values torch takes bfloat16 alone."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.ops.aten._grouped_mm.default or args[0].dtype is torch.bfloat16:
            return func(*args, **(kwargs or {}))
        return self._made(*args, **(kwargs or {}))

    @staticmethod
    def _made(one: Tensor, other: Tensor, offs: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """The product of `one` [rows, k] or [groups, rows, k] and `other`; where both are matrices
        their k is divided."""
        groups = [] if one.dim() != other.dim() else [len(one) if offs is None else len(offs)]
        return one.new_empty(*groups, one.shape[-2], other.shape[-1])


class Standing:
    """Device bytes that lie there beside units' weights and activations all the time: workspaces of
    libraries, what a model keeps for the passes of all its layers (tables of positions, masks), and
    buffers of modules."""

    def __init__(self, setting: Setting, meter: DeviceMeter) -> None:
        """Begin to count: no unit is there yet."""
        library_bytes_of(meter)
        self._setting, self._meter, self._before, self._buffers = setting, meter, meter.now, 0

    def see(self, alone: Alone) -> None:
        """Count the buffers of a unit's module. Decomposed units have one each, units of a decoder
        one for each kind."""
        model, kind = self._setting.model, alone.kind
        alike = sum(model.kind(unit) == kind for unit in range(model.num_units))
        own = sum(buffer.nbytes for buffer in alone.module.buffers())
        self._buffers += own * (alike if isinstance(model, Decomposed) else 1)

    def nbytes(self) -> int:
        """The bytes; all units are gone."""
        libraries = library_bytes_of(self._meter)
        if self._meter.now > self._before:
            gc.collect()  # modules may refer to themselves
        return libraries + max(0, self._meter.now - self._before) + self._buffers


def library_bytes_of(meter: DeviceMeter) -> int:
    """Device bytes of matrix products' workspaces, which are given back here."""
    if not isinstance(meter, CudaMeter):
        return 0
    before = meter.now
    give_back_workspaces(meter.device)
    return before - meter.now


def give_back_workspaces(device: torch.device) -> None:
    """Free the workspaces of matrix products, of which each stream has one on CUDA: a run in this
    process plans one, for its own stream."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch._C._cuda_clearCublasWorkspaces()
