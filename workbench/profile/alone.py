"""One unit of a model by itself, on made-up values, run as a rank of Harmony runs it.

Forward without autograd, forward again with it, and backward to its inputs and parameters. Used to
time and weigh each kind of unit (kinds.py), and to see whether a device has room for it (probe.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter

import torch
from torch import Tensor

from workbench.model.base import Context, LayeredModel, Part
from workbench.profile.bench import NOISE, WEIGHT_STD
from workbench.profile.footprint import library_bytes_of
from workbench.profile.loads import torch_device
from workbench.profile.profile import UnitCost
from workbench.runtime.executor.threads import use_device_threads
from workbench.runtime.memory.device_budget import DeviceMeter, device_meter
from workbench.runtime.memory.storage import Flat
from workbench.runtime.passes.bundle import Boundary, Bundle, bundled, single
from workbench.runtime.passes.template import Template, compiles


class Alone:
    """A unit with weights, and a micro-batch of what flows into it."""

    def __init__(
        self,
        model: LayeredModel,
        unit: int,
        inputs: tuple[Tensor, ...],
        targets: Tensor,
        *,
        seq: int,
        dtype: torch.dtype,
        device: torch.device,
        meter: DeviceMeter,
        noise: bool = True,
        compiled: bool = False,
    ) -> None:
        """`inputs` and `targets` are one micro-batch of the data. Weights and what other units put
        out are random numbers, or zeros without `noise`."""
        self.model, self.unit, self.meter, self.device = model, unit, meter, device
        self.samples, self.seq = len(targets), seq
        self._noise, self._template = noise, Template(model, compiled=compiled)
        flat = Flat.of(model, unit)
        weights = meter.zeros(flat.numel, dtype)
        if noise:
            values = torch.randn(NOISE, device=device).mul_(WEIGHT_STD).to(dtype)
            for part in weights.split(NOISE):
                part.copy_(values[: len(part)])
        self.module = model.empty_module(unit, device=device, dtype=dtype)
        flat.point_weights(self.module, weights)
        self.parameters = flat.parameters(self.module)
        for (borrower, local), (owner, name) in model.tied().items():
            if borrower == unit != owner:
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

    def forward(self) -> Bundle:
        """Without autograd."""
        with torch.no_grad():
            return self._run(self.x)

    def graph(self) -> tuple[Bundle, Bundle]:
        """Inputs and outputs of a forward pass with autograd."""
        x = self.x
        if self.boundary is not None:
            wanted = zip(x, self.boundary.differentiable, strict=True)
            x = tuple(t.detach().requires_grad_(d) for t, d in wanted)
        with torch.enable_grad():
            return x, self._run(x)

    def checkpoint(self) -> tuple[Bundle, Bundle]:
        """Inputs and outputs of a forward pass with autograd that keeps its inputs alone."""
        ctx = self._context()
        x = self.x[0].detach().requires_grad_()
        with torch.enable_grad():
            return (x,), bundled(self._template.checkpointed(self.unit, self.module, x, ctx))

    def backward(self, x: Bundle, y: Bundle) -> None:
        """Run the backward pass of a `graph`."""
        ends = [t for t in y if t.requires_grad]
        through = [t for t in x if t.requires_grad]
        above = None if self.targets is not None else [torch.ones_like(t) for t in ends]
        if ends:  # a layer may have nothing to learn, nor to pass on
            wanted = [*through, *self.parameters]
            torch.autograd.grad(ends, wanted, above, materialize_grads=True)

    def there_and_back(self) -> None:
        """Forward with autograd, and backward."""
        self.backward(*self.graph())

    def seconds(self, passes: Callable[[], object], *, times: int = 1) -> float:
        """Wall-clock seconds of one of `times` passes, done one behind the other as in training: a
        GPU is waited for before the first and after the last alone."""
        self._wait()
        start = perf_counter()
        for _ in range(times):
            passes()
        self._wait()
        return (perf_counter() - start) / times

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _made_up(self, part: Part, dtype: torch.dtype) -> Tensor:
        shape = part.full_shape(self.samples)
        if not dtype.is_floating_point:
            return torch.ones(shape, dtype=dtype, device=self.device)
        if not self._noise:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return torch.randn(shape, device=self.device).to(dtype)

    def _run(self, x: Bundle) -> Bundle:
        ctx = self._context()
        return bundled(self._template.forward(self.unit, self.module, single(x), ctx, self.targets))

    def _context(self) -> Context:
        return Context(seed=0, step=0, unit=self.unit, samples=tuple(range(self.samples)))


def of_each_kind(
    measure: Callable[[str, Alone], UnitCost],
    model: LayeredModel,
    inputs: tuple[Tensor, ...],
    targets: Tensor,
    units: Iterable[int],
    *,
    seq: int,
    dtype: torch.dtype,
    device: str,
    compile: str = "off",
    tell: Callable[[int, int], None] = lambda done, count: None,
) -> tuple[dict[str, UnitCost], int]:
    """Costs of the first of `units` of each kind, measured alone one after the other, and the bytes
    that libraries keep. `inputs` and `targets` are one micro-batch of the data, [samples, ...];
    `tell` is told how many kinds are measured, of how many."""
    target, costs = torch_device(device), {}
    use_device_threads(target.type)
    first = {model.kind(unit): unit for unit in reversed([*units])}
    with device_meter(target) as meter:
        library_bytes_of(meter)  # what was timed before in this process took some, too
        for kind, unit in first.items():
            costs[kind] = measure(
                kind,
                Alone(
                    model, unit, inputs, targets, seq=seq, dtype=dtype, device=target, meter=meter,
                    compiled=compiles(compile, target.type, dtype),
                ),
            )  # fmt: skip
            tell(len(costs), len(first))
        return costs, library_bytes_of(meter)
