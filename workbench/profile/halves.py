"""Costs of the two halves of a unit's backward pass (passes/halves.py), each measured by itself.

Only orders with halved backward passes ask for it. The halves of a unit by itself are timed beside
its whole backward pass; the profile's own backward time is then divided as they divide it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.profile.alone import Alone, of_each_kind
from workbench.profile.footprint import LOSS_BYTES
from workbench.profile.profile import UnitCost
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.bundle import bytes_of
from workbench.runtime.passes.halves import WeightHalf, input_half

TIMES, IN_TURN = 3, 5
"""Timings, and passes in each."""
Tensors = tuple[Tensor, ...]


def with_halves(
    costs: Mapping[str, UnitCost],
    model: LayeredModel,
    inputs: Tensors,
    targets: Tensor,
    *,
    seq: int,
    dtype: str,
    device: str,
) -> dict[str, UnitCost]:
    """Costs by kind of unit, with seconds and bytes of both halves. `inputs` and `targets` are one
    micro-batch of the data, [samples, ...]; `dtype` is ``fp32`` or ``bf16``."""
    found, _ = of_each_kind(
        lambda kind, alone: _Halves(alone).of(costs[kind]), model, inputs, targets,
        range(1, model.num_units), seq=seq, dtype=DTYPES[dtype], device=device,
    )  # fmt: skip
    return {**costs, **found}


class _Halves:
    """Backward passes of one unit, whole and halved."""

    def __init__(self, alone: Alone) -> None:
        self._alone = alone

    def of(self, cost: UnitCost) -> UnitCost:
        """The unit's cost with its halves."""
        alone = self._alone
        timed = alone.graph, self._first, self._both, alone.there_and_back
        for passes in timed:
            passes()
        graph, first, both, whole = (
            median(alone.seconds(passes, times=IN_TURN) for _ in range(TIMES)) for passes in timed
        )
        seconds = max(first - graph, 0.0), max(both - first, 0.0)
        share = cost.backward_s / (whole - graph) if whole > graph else 1.0
        return replace(
            cost,
            input_half_s=share * seconds[0],
            weight_half_s=share * seconds[1],
            **self._bytes(),
        )

    def _first(self) -> None:
        """A forward pass, and the first half."""
        self._run(lambda action: action(), both=False)

    def _both(self) -> None:
        """A forward pass, and both halves."""
        self._run(lambda action: action())

    def _run(self, look: Callable[[Callable[[], object]], None], *, both: bool = True) -> None:
        """Both halves, or the first; `look` does each of them."""
        alone = self._alone
        x, y = alone.graph()
        ends = [t for t in y if t.requires_grad]
        above = [torch.ones_like(t) for t in ends]  # there until the second half is done
        through = [t for t in x if t.requires_grad]
        graph, halves = [ends], []
        del y, ends

        def first() -> Tensors:
            grads, half = input_half(graph.pop(), above, through, alone.parameters)
            halves.append(half)
            return grads

        look(first)
        if both:
            look(lambda: self._finish(halves))

    @staticmethod
    def _finish(halves: list[WeightHalf]) -> Tensors:
        return halves.pop().gradients()

    def _bytes(self) -> dict[str, int]:
        """As UnitCost counts them. The unit's output is autograd's until the first half is done."""
        alone, marks = self._alone, []
        output = LOSS_BYTES if alone.targets is not None else bytes_of(alone.forward())

        def mark(action: Callable[[], object]) -> None:
            before = alone.meter.now
            alone.meter.reset_peak()
            made = action()
            marks.append((before, alone.meter.peak, alone.meter.now, bytes_of(made)))

        self._run(mark)
        (before, peak, after, returned), (start, high, _, gradients) = marks
        held = max(0, after - (before - output) - returned)
        return {
            "half_bytes": held,
            "input_half_scratch_bytes": max(0, peak - (before - output) - returned - held),
            "weight_half_scratch_bytes": max(0, high - start - gradients),
        }
