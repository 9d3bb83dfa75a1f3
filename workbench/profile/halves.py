"""What the two halves of a unit's backward pass cost (runtime/halves.py), each for itself.

Only orders with halved backward passes ask for it. The halves of a unit by itself are timed beside
its whole backward pass; the profile's own backward time is then divided as they divide it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.profile.alone import Alone
from workbench.profile.footprint import LOSS_BYTES, library_bytes_of
from workbench.profile.loads import torch_device
from workbench.profile.profile import UnitCost
from workbench.runtime.bundle import bytes_of
from workbench.runtime.device_budget import device_meter
from workbench.runtime.halves import WeightHalf, input_half
from workbench.runtime.storage import DTYPES
from workbench.runtime.threads import use_device_threads

TIMES = 7
"""Timings of each half, after two that warm up."""
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
    target, found = torch_device(device), dict(costs)
    use_device_threads(target.type)
    first = {model.kind(unit): unit for unit in reversed(range(1, model.num_units))}
    with device_meter(target) as meter:
        library_bytes_of(meter)  # what was timed before in this process took some, too
        for kind, unit in first.items():
            alone = Alone(
                model,
                unit,
                inputs,
                targets,
                seq=seq,
                dtype=DTYPES[dtype],
                device=target,
                meter=meter,
            )
            found[kind] = _Halves(alone).of(costs[kind])
            del alone
        library_bytes_of(meter)
    return found


class _Halves:
    """Backward passes of one unit, whole and halved."""

    def __init__(self, alone: Alone) -> None:
        self._alone = alone

    def of(self, cost: UnitCost) -> UnitCost:
        """The unit's cost with its halves."""
        for _ in range(2):
            self._run(lambda action: action())
            self._alone.there_and_back()
        seconds = [self._timed() for _ in range(TIMES)]
        first, second, whole = (median(times) for times in zip(*seconds, strict=True))
        share = cost.backward_s / whole if whole > 0 else 1.0
        return replace(
            cost, input_half_s=share * first, weight_half_s=share * second, **self._bytes()
        )

    def _run(self, look: Callable[[Callable[[], object]], None]) -> None:
        """Both halves; `look` does each of them."""
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
        look(lambda: self._finish(halves))

    @staticmethod
    def _finish(halves: list[WeightHalf]) -> Tensors:
        return halves.pop().gradients()

    def _timed(self) -> tuple[float, float, float]:
        """Seconds of the first half, the second, and a whole backward pass."""
        found: list[float] = []
        self._run(lambda action: found.append(self._seconds(action)))
        x, y = self._alone.graph()
        found.append(self._seconds(lambda: self._alone.backward(x, y)))
        return tuple(found)

    def _seconds(self, action: Callable[[], object]) -> float:
        self._wait()
        start = perf_counter()
        action()
        self._wait()
        return perf_counter() - start

    def _wait(self) -> None:
        if self._alone.device.type == "cuda":
            torch.cuda.synchronize(self._alone.device)

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
