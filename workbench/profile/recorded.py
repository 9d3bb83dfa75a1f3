"""Times of a block's passes as recordings, which the GPU launches by itself (passes/replay.py).

A launched pass of a few samples takes as long as one thread needs to launch its kernels, on an H100
0.6 ms for 0.2 ms of work. Who knows only that time plans micro-batches that are too large where
passes will be recorded. So a block is recorded as a run does it, and its recordings are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.profile.bench import WEIGHT_STD
from workbench.profile.footprint import give_back_workspaces
from workbench.profile.profile import RECORDED_BELOW_S, UnitCost
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.storage import Flat
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.passes.replay import Chain, Replays
from workbench.runtime.passes.template import Template

WARM_UP, TIMES = 3, 20
"""Rounds of all passes."""
CLOSE = 0.01
"""Relative difference of two gradients that are one: some kernels add up in any order."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of a model, and the micro-batches that its passes are recorded for."""

    model: LayeredModel
    unit: int
    microbatch: int
    seq: int
    dtype: torch.dtype
    device: torch.device
    compiled: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of its input, and of its output."""
        return self.microbatch, self.seq, self.model.hidden

    def values(self) -> tuple[Tensor, Tensor]:
        """Random inputs, and gradients of its outputs."""
        x, above = (torch.randn(self.shape, device=self.device).to(self.dtype) for _ in range(2))
        return x, above


def with_recorded(cost: UnitCost, block: Block) -> UnitCost:
    """The block's costs, with seconds and memory of its passes as recordings. Passes that are too
    long to be recorded, or for whose recordings the device has no room, take their launched time.
    """
    seconds, nbytes = (cost.forward_s, cost.recompute_s, cost.backward_s), 0
    if cost.forward_s < RECORDED_BELOW_S:
        try:
            seconds, nbytes = _measured(block)
        except (OutOfMemory, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
    forward, recompute, backward = seconds
    return replace(
        cost,
        recorded_forward_s=forward,
        recorded_recompute_s=recompute,
        recorded_backward_s=backward,
        recorded_bytes=nbytes,
    )


def with_recorded_checkpoint(cost: UnitCost, block: Block) -> UnitCost:
    """The block's costs, with seconds of a recorded backward pass that begins at a checkpoint. None
    are known, so that it is not recorded, where passes are too long or the device has no room, and
    where it reads more of its forward pass than the input: then its gradients are those of other
    samples than the ones it is given."""
    seconds, unit = 0.0, block.unit
    if cost.forward_s < RECORDED_BELOW_S:
        try:
            with _recorded(block, back=True) as made:
                x, above = block.values()
                (again,) = _timed((lambda: made.from_checkpoint(unit, x, above),))
                first, grads = made.from_checkpoint(unit, x, above)
                found = [grad.clone() for grad in (first, *grads)]
                made.recompute(unit, x)
                first, grads = made.backward(unit, above)
                seconds = again if all(map(_close, found, (first, *grads))) else 0.0
        except (OutOfMemory, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
    return replace(cost, recorded_checkpointed_s=seconds)


def _measured(block: Block) -> tuple[tuple[float, ...], int]:
    """Median seconds of a forward pass, of one that keeps what is needed, and of the backward pass;
    and the bytes of their recordings."""
    with _recorded(block) as replays:
        (x, above), unit = block.values(), block.unit
        passes: tuple[Callable[[], object], ...] = (
            lambda: replays.forward(unit, x),
            lambda: replays.recompute(unit, x),
            lambda: replays.backward(unit, above),
        )
        return _timed(passes), replays.nbytes


@contextmanager
def _recorded(block: Block, *, back: bool = False) -> Iterator[Replays]:
    """Recordings of a block as a run makes them, on weights of some size, with `back` those of a
    backward pass from a checkpoint, too."""
    model, unit, dtype, device = block.model, block.unit, block.dtype, block.device
    meter = device_meter(device)
    flat = Flat.of(model, unit)
    weights = meter.zeros(flat.numel, dtype)
    weights.normal_(std=WEIGHT_STD)  # a product of zeros draws less power, and runs faster
    module = model.empty_module(unit, device=device, dtype=dtype)
    flat.point_weights(module, weights)
    chain = Chain(modules=(module,), parameters=(flat.parameters(module),), rows=block.microbatch)
    run = Template(model, compiled=block.compiled)
    replays = Replays(run.block, block.shape, dtype, meter, checkpointed=run.checkpointed_block)
    try:
        each = {unit: chain}
        replays.record(each, each, each if back else {})
        yield replays
    finally:
        replays.close()
        give_back_workspaces(device)
        torch.cuda.empty_cache()


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one.float() - other.float()).norm() <= CLOSE * other.float().norm())


def _timed(passes: tuple[Callable[[], object], ...]) -> tuple[float, ...]:
    """Median seconds of each, all done one after the other, on the device's clock."""
    rounds = []
    for _ in range(WARM_UP + TIMES):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(passes) + 1)]
        marks[0].record()
        for action, mark in zip(passes, marks[1:], strict=True):
            action()
            mark.record()
        rounds.append(marks)
    torch.cuda.synchronize()
    took = [
        [first.elapsed_time(last) / 1e3 for first, last in zip(marks, marks[1:], strict=False)]
        for marks in rounds[WARM_UP:]
    ]
    return tuple(median(column) for column in zip(*took, strict=True))
