"""Costs of a block's passes where its backward pass begins at a checkpoint (passes/template.py).

A backward pass that computes again only what it needs is shorter than a forward and a backward
pass: the last matrix product of a block is not needed. Blocks are timed one pass behind the other,
as they run in training, so that a GPU is not waited for after each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.profile.alone import Alone, of_each_kind
from workbench.profile.loads import torch_device
from workbench.profile.profile import UnitCost
from workbench.profile.recorded import Block, with_recorded_checkpoint
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.bundle import bytes_of
from workbench.runtime.passes.template import compiles

LONG_S = 0.1
"""Forward passes that take longer are not timed anew: the whole of them is counted again."""
TIMES, IN_TURN = 3, 8
"""Timings, and pairs of passes in each."""


def with_checkpoints(
    costs: Mapping[str, UnitCost],
    model: LayeredModel,
    inputs: tuple[Tensor, ...],
    targets: Tensor,
    *,
    seq: int,
    dtype: str,
    device: str,
    compile: str,
) -> dict[str, UnitCost]:
    """Costs by kind of unit, those of blocks with passes from checkpoints. `inputs` and `targets`
    are one micro-batch of the data, [samples, ...]."""
    first = {model.kind(unit): unit for unit in reversed(range(1, model.head))}
    short = [unit for kind, unit in first.items() if costs[kind].forward_s <= LONG_S]
    measured, _ = of_each_kind(
        lambda kind, alone: _measured(alone, costs[kind]), model, inputs, targets, short, seq=seq,
        dtype=DTYPES[dtype], device=device, compile=compile,
    )  # fmt: skip
    target, found = torch_device(device), {**costs, **measured}
    if target.type == "cuda" and model.compilable:
        for kind, unit in first.items():
            block = Block(
                model=model, unit=unit, microbatch=len(targets), seq=seq, dtype=DTYPES[dtype],
                device=target, compiled=compiles(compile, target.type, DTYPES[dtype]),
            )  # fmt: skip
            found[kind] = with_recorded_checkpoint(found[kind], block)
    return found


def _measured(alone: Alone, cost: UnitCost) -> UnitCost:
    def pair() -> None:
        alone.backward(*alone.checkpoint())

    for _ in range(2):
        pair()
    pair_s = median(alone.seconds(pair, times=IN_TURN) for _ in range(TIMES))
    meter, output = alone.meter, bytes_of(alone.forward())
    before = meter.now
    x, y = alone.checkpoint()
    kept = max(0, meter.now - before - output)
    start = meter.now
    meter.reset_peak()
    alone.backward(x, y)
    gradients = sum(p.nbytes for p in alone.parameters)
    scratch = meter.peak - (start - output) - gradients - bytes_of(alone.x)
    return replace(
        cost,
        checkpointed_backward_s=max(pair_s - cost.forward_s, cost.backward_s),
        checkpoint_bytes=kept,
        checkpointed_scratch_bytes=scratch,
    )
