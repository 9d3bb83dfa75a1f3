"""Costs of each kind of unit of any model, each measured by itself on made-up values.

The counterpart of measure.py for models that are no chain of one kind of block: a decomposed module
may have dozens of kinds, whose outputs fit the unit behind them only. So every kind runs alone, on
random numbers of the shapes that flow into it, as a rank of Harmony would run it: forward without
autograd, forward again with it, and backward to its inputs and parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.profile.alone import Alone, of_each_kind
from workbench.profile.footprint import LOSS_BYTES
from workbench.profile.profile import UnitCost
from workbench.profile.timing import Sample, lasting, summarize
from workbench.runtime.passes.bundle import bytes_of

SECONDS = 0.15
"""About what the timing of one phase of one kind takes."""
FEWEST, MOST = 3, 50
"""Samples of a timing."""


@dataclass(frozen=True, kw_only=True)
class _Marks:
    """Device bytes around one action."""

    before: int
    peak: int
    after: int


def kind_costs(
    model: LayeredModel,
    inputs: tuple[Tensor, ...],
    targets: Tensor,
    *,
    seq: int,
    dtype: torch.dtype,
    device: str,
    tell: Callable[[int, int], None] = lambda done, count: None,
) -> tuple[dict[str, UnitCost], int]:
    """Cost by kind of unit for a micro-batch, and the bytes that libraries keep.

    `inputs` and `targets` are one micro-batch of the data: of it come the number of samples and
    what the first unit takes. `tell` is told how many kinds are measured, of how many.
    """
    return of_each_kind(
        lambda kind, alone: _Costs(alone).cost(kind), model, inputs, targets,
        range(model.num_units), seq=seq, dtype=dtype, device=device, tell=tell,
    )  # fmt: skip


class _Costs:
    """Measured costs of one unit."""

    def __init__(self, alone: Alone) -> None:
        self._alone = alone

    def cost(self, kind: str) -> UnitCost:
        """Bytes first, which warms up, then seconds."""
        alone = self._alone
        alone.forward()
        alone.there_and_back()
        bytes_of_ = self._bytes()
        forward = self._seconds(alone.forward)
        again = self._seconds(lambda: alone.graph() and None)
        whole = self._seconds(alone.there_and_back)
        return UnitCost(
            kind=kind,
            parameters=alone.model.unit_parameters(alone.unit),
            forward_s=forward,
            recompute_s=again,
            backward_s=max(whole - again, 0.1 * forward),
            flops=alone.model.flops(alone.unit, alone.samples, alone.seq),
            **bytes_of_,
        )

    def _seconds(self, action: Callable[[], object]) -> float:
        """Median of a few, on the device's clock where it has one."""
        found: list[float] = []
        until = perf_counter() + lasting(SECONDS)
        while len(found) < FEWEST or (perf_counter() < until and len(found) < MOST):
            found.append(self._alone.seconds(action))
        return summarize([Sample(s, s) for s in found]).seconds if len(found) > 3 else median(found)

    def _bytes(self) -> dict[str, int]:
        """As UnitCost counts them: see footprint.py."""
        alone = self._alone
        made: list = []
        forward = self._marked(lambda: made.append(alone.forward()))
        head = alone.targets is not None
        output = LOSS_BYTES if head else bytes_of(made.pop())
        made.clear()
        graph = self._marked(lambda: made.append(alone.graph()))
        x, y = made.pop()
        backward = self._marked(lambda: alone.backward(x, y))
        entering = bytes_of(alone.x)
        returning = (
            0 if alone.boundary is None else alone.boundary.gradients().nbytes(alone.samples)
        )
        own = alone.model.unit_parameters(alone.unit)  # gradients of borrowed ones are added up
        gradients = own * alone.parameters[0].element_size() if alone.parameters else 0
        kept = max(0, graph.after - graph.before - output)
        return {
            "input_bytes": entering,
            "output_bytes": output,
            "kept_bytes": kept,
            "forward_scratch_bytes": max(0, forward.peak - forward.before - output),
            "recompute_scratch_bytes": max(0, graph.peak - graph.before - kept),
            "backward_scratch_bytes": (
                backward.peak - (backward.before - output) - gradients - returning
            ),
        }

    def _marked(self, action: Callable[[], object]) -> _Marks:
        before = self._alone.meter.now
        self._alone.meter.reset_peak()
        action()
        return _Marks(before=before, peak=self._alone.meter.peak, after=self._alone.meter.now)
