"""What each kind of unit of any model costs, each by itself on made-up values.

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

from workbench.model.base import Context, LayeredModel, Part
from workbench.profile.bench import NOISE, WEIGHT_STD
from workbench.profile.footprint import LOSS_BYTES, library_bytes_of
from workbench.profile.loads import torch_device
from workbench.profile.profile import UnitCost
from workbench.profile.timing import Sample, summarize
from workbench.runtime.bundle import Boundary, Bundle, bundled, bytes_of, single
from workbench.runtime.device_budget import DeviceMeter, device_meter
from workbench.runtime.storage import Flat
from workbench.runtime.threads import use_device_threads

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
) -> tuple[dict[str, UnitCost], int]:
    """Cost by kind of unit for a micro-batch, and the bytes that libraries keep.

    `inputs` and `targets` are one micro-batch of the data: of it come the number of samples and
    what the first unit takes.
    """
    target = torch_device(device)
    use_device_threads(target.type)
    first = {model.kind(unit): unit for unit in reversed(range(model.num_units))}
    costs = {}
    with device_meter(target) as meter:
        for kind, unit in first.items():
            alone = _Alone(model, unit, inputs, targets, seq, dtype, target, meter)
            costs[kind] = alone.cost(kind)
            del alone
        return costs, library_bytes_of(meter)


class _Alone:
    """One unit with random weights and inputs."""

    def __init__(
        self,
        model: LayeredModel,
        unit: int,
        inputs: tuple[Tensor, ...],
        targets: Tensor,
        seq: int,
        dtype: torch.dtype,
        device: torch.device,
        meter: DeviceMeter,
    ) -> None:
        self.model, self.unit, self.meter, self.device = model, unit, meter, device
        self.samples, self.seq = len(targets), seq
        flat = Flat.of(model, unit)
        noise = torch.randn(NOISE, device=device).mul_(WEIGHT_STD).to(dtype)
        weights = meter.zeros(flat.numel, dtype)
        for part in weights.split(NOISE):
            part.copy_(noise[: len(part)])
        self.module = model.shell(unit, device=device, dtype=dtype)
        flat.point_weights(self.module, weights)
        self.parameters = flat.parameters(self.module)
        for (borrower, local), (owner, name) in model.tied().items():
            if borrower == unit:
                shape = model.shapes(owner)[name]
                lent = meter.zeros(shape.numel(), dtype).view(shape)
                self.module.get_parameter(local).data = lent
                self.parameters.append(self.module.get_parameter(local))
        self.boundary = Boundary(model.boundary(unit, seq), dtype) if unit else None
        if self.boundary is None:
            moved = (t.to(device) for t in inputs)
            self.x = tuple(t.to(dtype) if t.is_floating_point() else t for t in moved)
        else:
            parts = zip(self.boundary.parts, self.boundary.dtypes, strict=True)
            self.x = tuple(self._made_up(part, of) for part, of in parts)
        self.targets = targets.to(device) if unit == model.head else None

    def _made_up(self, part: Part, dtype: torch.dtype) -> Tensor:
        shape = part.full_shape(self.samples)
        if dtype.is_floating_point:
            return torch.randn(shape, device=self.device).to(dtype)
        return torch.ones(shape, dtype=dtype, device=self.device)

    def cost(self, kind: str) -> UnitCost:
        """Bytes first, which warms up, then seconds."""
        self._forward()
        self._there_and_back()
        bytes_of_ = self._bytes()
        forward = self._seconds(self._forward)
        again = self._seconds(lambda: self._graph() and None)
        whole = self._seconds(self._there_and_back)
        return UnitCost(
            kind=kind,
            parameters=self.model.unit_parameters(self.unit),
            forward_s=forward,
            recompute_s=again,
            backward_s=max(whole - again, 0.1 * forward),
            flops=self.model.flops(self.unit, self.samples, self.seq),
            **bytes_of_,
        )

    def _forward(self) -> Bundle:
        with torch.no_grad():
            return self._run(self.x)

    def _graph(self) -> tuple[Bundle, Bundle]:
        x = self.x
        if self.boundary is not None:
            wanted = zip(x, self.boundary.differentiable, strict=True)
            x = tuple(t.detach().requires_grad_(d) for t, d in wanted)
        with torch.enable_grad():
            return x, self._run(x)

    def _backward(self, x: Bundle, y: Bundle) -> None:
        ends = [t for t in y if t.requires_grad]
        through = [t for t in x if t.requires_grad]
        above = None if self.targets is not None else [torch.ones_like(t) for t in ends]
        torch.autograd.grad(ends, [*through, *self.parameters], above, materialize_grads=True)

    def _there_and_back(self) -> None:
        self._backward(*self._graph())

    def _run(self, x: Bundle) -> Bundle:
        ctx = Context(seed=0, step=0, unit=self.unit, samples=tuple(range(self.samples)))
        return bundled(self.model.forward(self.unit, self.module, single(x), ctx, self.targets))

    def _seconds(self, action: Callable[[], object]) -> float:
        """Median of a few, on the device's clock where it has one."""
        found: list[float] = []
        until = perf_counter() + SECONDS
        while len(found) < FEWEST or (perf_counter() < until and len(found) < MOST):
            self._wait()
            start = perf_counter()
            action()
            self._wait()
            found.append(perf_counter() - start)
        return summarize([Sample(s, s) for s in found]).seconds if len(found) > 3 else median(found)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _bytes(self) -> dict[str, int]:
        """As UnitCost counts them: see footprint.py."""
        made: list = []
        forward = self._marked(lambda: made.append(self._forward()))
        head = self.targets is not None
        output = LOSS_BYTES if head else bytes_of(made.pop())
        made.clear()
        graph = self._marked(lambda: made.append(self._graph()))
        x, y = made.pop()
        backward = self._marked(lambda: self._backward(x, y))
        entering = bytes_of(self.x)
        returning = 0 if self.boundary is None else self.boundary.gradients().nbytes(self.samples)
        gradients = sum(p.numel() * p.element_size() for p in self.parameters)
        kept = max(0, graph.after - graph.before - output)
        return {
            "input_bytes": entering,
            "output_bytes": output,
            "kept_bytes": kept,
            "forward_scratch_bytes": max(0, forward.peak - forward.before - output),
            "recompute_scratch_bytes": max(0, graph.peak - graph.before - kept),
            "backward_scratch_bytes": max(
                0, backward.peak - (backward.before - output) - gradients - returning
            ),
        }

    def _marked(self, action: Callable[[], object]) -> _Marks:
        before = self.meter.now
        self.meter.reset_peak()
        action()
        return _Marks(before=before, peak=self.meter.peak, after=self.meter.now)
