"""How many bytes each compute action of a unit needs, seen by the meter of the runtime itself.

A small step is run and the meter asked, on CUDA the allocator. On a CPU it may be run on fake
tensors under the same meter: the counts are the same, nothing is computed, and a layer of any size
can be asked about on any laptop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch

from workbench.model.base import LayeredModel
from workbench.profile.as_on_gpu import AttentionAsOnGpu, EmbeddingAsOnGpu
from workbench.profile.bench import Bench
from workbench.runtime.memory.device_budget import CudaMeter, DeviceMeter, device_meter

TOKEN_BYTES = 8
LOSS_BYTES = 4


def footprints(
    model: LayeredModel,
    units: list[int],
    size: tuple[int, int],
    *,
    dtype: torch.dtype,
    device: torch.device,
    compiled: bool = False,
    fake: bool = False,
    as_on_gpu: bool = False,
) -> tuple[dict[str, dict[str, int]], int]:
    """The fields of UnitCost that end in ``_bytes``, by kind of unit; and the bytes that libraries
    keep for themselves (on CUDA, matrix products' workspaces).

    `units` is a chain with one unit of every kind, `size` the micro-batch and its tokens. `fake`
    chooses fake tensors (CPU only): they cost torch's compiler, which takes a second or two to
    import, and then next to nothing. `as_on_gpu`: these take the memory that a GPU would.
    """
    meter = device_meter(device)
    seen: dict[str, dict[str, int]] = defaultdict(dict)
    with ExitStack() as stack:
        stack.enter_context(fake_tensors() if fake else nullcontext())
        for mode in (meter, *([AttentionAsOnGpu(), EmbeddingAsOnGpu()] if as_on_gpu else [])):
            stack.enter_context(mode)
        bench = Bench(model, units, dtype=dtype, device=device, meter=meter, compiled=compiled)

        def visit(phase: str, unit: int, action: Callable[[], None]) -> None:
            marks = seen[model.kind(unit)]
            marks[f"{phase} before"] = meter.now
            meter.reset_peak()
            action()
            marks[f"{phase} peak"], marks[f"{phase} after"] = meter.peak, meter.now

        bench.step(*size, lambda phase, unit, action: action())  # what is made once is made here
        bench.step(*size, visit)
        libraries = library_bytes_of(meter)
    tokens = size[0] * size[1]
    activation = tokens * model.hidden * dtype.itemsize
    gradients = {model.kind(unit): model.unit_parameters(unit) * dtype.itemsize for unit in units}
    found = {
        kind: _bytes(
            marks,
            kind,
            activation=activation,
            tokens=tokens * TOKEN_BYTES,
            gradients=gradients[kind] if kind not in ("embedding", "head") else 0,
        )
        for kind, marks in seen.items()
    }
    return found, libraries


def fake_tensors() -> AbstractContextManager:
    """Operations on them compute nothing; their devices and sizes are those of real ones."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


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


def _bytes(
    marks: dict[str, int], kind: str, *, activation: int, tokens: int, gradients: int
) -> dict[str, int]:
    """Bytes that the meter saw around a unit's actions, as fields of UnitCost.

    A unit's output is held through its backward pass, which starts there. In that pass no buffer of
    the schedule stands for it, so it counts as scratch. A block's gradients are a buffer; where
    most of what was kept is gone before they are all there, that scratch is negative.
    """
    embeds, head = kind == "embedding", "recompute before" not in marks
    graph = "forward" if head else "recompute"
    output = LOSS_BYTES if head else marks["forward after"] - marks["forward before"]
    kept = marks[f"{graph} after"] - marks[f"{graph} before"] - output
    with_graph = marks[f"{graph} peak"] - marks[f"{graph} before"] - kept
    without = marks["forward peak"] - marks["forward before"] - output
    backward = marks["backward peak"] - (marks["backward before"] - output)
    return {
        "input_bytes": tokens if embeds else activation,
        "output_bytes": output,
        "kept_bytes": kept,
        "forward_scratch_bytes": with_graph if head else without,
        "recompute_scratch_bytes": with_graph,
        "backward_scratch_bytes": backward - gradients - (0 if embeds else activation),
    }
