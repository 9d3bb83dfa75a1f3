"""Feeds one of our runs to a library: shared by the adapters of other people's systems.

A library is compared fairly when nothing but the library differs: the same initial weights, the
same samples in the same micro-batches, the same decay groups and learning rates, the same clock.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from baselines.stages import share_of
from workbench.core.bytesize import format_bytes
from workbench.core.division import even_share
from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel, set_parameter
from workbench.model.text import Batches
from workbench.model.weighing import weights_of
from workbench.model.whole import Whole
from workbench.runtime.memory.storage import DTYPES


class DeviceRows(NamedTuple):
    """A micro-batch on the device."""

    tokens: Tensor | tuple[Tensor, ...]
    """[B / K, S], or what else the model takes; several tensors as a tuple."""
    targets: Tensor
    """[B / K, S], or one label a sample."""
    samples: tuple[int, ...]
    """Global number of each row, the key of its random numbers."""
    weight: float = 1.0
    """Weight of the micro-batch's mean loss among those of the step, which are 1 on the mean."""


def micro_batches(
    batches: Batches,
    spec: RunSpec,
    step: int,
    device: torch.device,
    model: LayeredModel | None = None,
) -> Iterator[DeviceRows]:
    """The K parts of a step's batch, in order, the first ones larger where they cannot be equal;
    with a model, weighed by the labels that count for it. Raises ValueError where none counts."""
    samples, weights = batches.samples(step), [1.0] * spec.microbatches
    spans = [even_share(len(samples), k, spec.microbatches) for k in range(spec.microbatches)]
    parts = [samples[first:end] for first, end in spans]
    read = map(batches.rows, parts)
    if model is not None and (model.counts_differ or len(samples) % spec.microbatches):
        read = [*read]
        weights = weights_of(model, batches, step, [rows[-1] for rows in read])
    for rows, tensors, weight in zip(parts, read, weights, strict=True):
        *inputs, targets = (part.to(device) for part in tensors)
        inputs = tuple(
            part.to(DTYPES[spec.dtype]) if part.is_floating_point() else part for part in inputs
        )
        yield DeviceRows(inputs[0] if len(inputs) == 1 else inputs, targets, rows, weight)


def share(batch: DeviceRows, model: LayeredModel) -> DeviceRows:
    """This rank's rows of a micro-batch: contiguous, and at most one more than another's. Their
    weight is that of the micro-batch, by the labels that count in them."""
    rows = share_of(len(batch.samples), dist.get_rank(), dist.get_world_size())
    part, tokens = slice(rows.start, rows.stop), batch.tokens
    mine = tuple(each[part] for each in tokens) if isinstance(tokens, tuple) else tokens[part]
    counts = model.counted(batch.targets)
    weight = batch.weight * sum(counts[part]) / max(1, sum(counts))
    return DeviceRows(mine, batch.targets[part], batch.samples[part], weight)


def unit_by_unit(
    model: LayeredModel,
    spec: RunSpec,
    finish: Callable[[int, nn.Module], object],
    dtype: torch.dtype = torch.float32,
) -> Whole:
    """The whole model with everyone's initial weights, on the CPU. `finish` gets each unit as soon
    as it is made, and puts it where it is to stay: so a model is never in memory twice."""
    units: list[nn.Module] = []
    for unit in range(model.num_units):
        module = model.build(unit, seed=spec.seed, dtype=dtype)
        for (tied, name), (owner, owner_name) in model.tied().items():
            if tied == unit:
                set_parameter(module, name, units[owner].get_parameter(owner_name))
        finish(unit, module)
        units.append(module)
    return Whole(model, units, seed=spec.seed, checkpoint=spec.activations != "keep")


def resident_note() -> str:
    """How much memory this process had at most, in words."""
    nbytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return f"the process's resident memory peaked at {format_bytes(nbytes)}"


def named_units(whole: Whole) -> Iterator[tuple[int, str, nn.Parameter]]:
    """(unit, local name, parameter) of every parameter once, in the order of the units."""
    tied = whole.layered.tied()
    for unit, module in enumerate(whole.units):
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if (unit, name) not in tied:
                yield unit, name, parameter


def decay_groups(model: LayeredModel, whole: Whole, weight_decay: float) -> list[dict]:
    """Parameter groups of an optimizer: those that decay, and those that do not."""
    decayed, plain = [], []
    for unit, name, parameter in named_units(whole):
        (decayed if model.decays(unit, name) else plain).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def cap_device(device: torch.device, budget: int | None) -> None:
    """Let this process have `budget` bytes of the GPU, if it is one."""
    if budget is not None and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), device)


def now_s(device: torch.device) -> float:
    """The clock, read when the device has done all that it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
