"""A few units of a model, laid out and run as the engine does, one compute action at a time.

The bench keeps to `passes/engine.py`: parameters are views of flat slabs, a forward pass runs
without autograd and is repeated with it before the backward pass; the head alone keeps its graph
from the start. Gradients of the embedding and the head add up in slabs, those of a block are what
autograd returns, and a block that is not resident copies them into a slab. A whole small step is
run in order, so that each action finds the caches as it will in training. Who looks on (a clock, a
memory meter) is called around every action.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from workbench.model.base import Context, LayeredModel
from workbench.runtime.memory.device_budget import DeviceMeter
from workbench.runtime.memory.storage import Flat
from workbench.runtime.passes.template import Template

Visit = Callable[[str, int, Callable[[], None]], None]
"""``visit(phase, unit, action)`` calls ``action()`` once. Phases: forward, recompute, backward,
gradient, which is what a unit's gradients cost once a step (their norm, and being zeroed where they
have a slab), and copy, what a block's gradients cost on their way to a slab."""

WEIGHT_STD = 0.02
NOISE = 1 << 20
"""Different values in the weights."""


class Bench:
    """`units` of a model, a chain of which the first embeds and the last is the head."""

    def __init__(
        self,
        model: LayeredModel,
        units: list[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        meter: DeviceMeter,
        compiled: bool = False,
    ) -> None:
        self._template = Template(model, compiled=compiled)
        self.model, self.units, self.device, self.meter = model, units, device, meter
        # On a GPU a product of zeros draws less power, and so runs faster, than one of numbers.
        noise = torch.randn(NOISE, device=device).mul_(WEIGHT_STD).to(dtype)
        self._slabs: dict[int, Tensor] = {}
        """Gradients."""
        self._grads: dict[int, list[Tensor]] = {}
        """Views of the slab, one for each parameter."""
        self._modules: dict[int, nn.Module] = {}
        self._parameters: dict[int, list[nn.Parameter]] = {}
        self._fresh: dict[int, list[Tensor]] = {}
        """A block's gradients as autograd returned them."""
        for unit in units:
            flat = Flat.of(model, unit)
            weights = meter.zeros(flat.numel, dtype)
            for part in weights.split(NOISE):
                part.copy_(noise[: len(part)])
            slab = self._slabs[unit] = meter.zeros(flat.numel, dtype)
            self._grads[unit] = [view for _, view in flat.views(slab)]
            module = self._modules[unit] = model.empty_module(unit, device=device, dtype=dtype)
            flat.point_weights(module, weights)
            if self._is_block(unit):
                self._parameters[unit] = flat.parameters(module)
            else:
                flat.point_gradients(module, self._grads[unit])
        for (unit, local), (owner, owners) in model.tied().items():
            if unit in self._modules:
                path, _, leaf = local.rpartition(".")
                shared = self._modules[owner].get_parameter(owners)
                setattr(self._modules[unit].get_submodule(path), leaf, shared)
        self._inputs: dict[int, Tensor] = {}
        self._graphs: dict[int, tuple[Tensor, Tensor]] = {}
        self._output_grads: dict[int, Tensor] = {}

    def step(self, microbatch: int, seq: int, visit: Visit) -> None:
        """All actions of one step on random tokens [microbatch, seq], in order."""
        with self.meter.on_host():
            words = torch.randint(self.model.vocab, (2, microbatch, seq), device=self.device)
        self._tokens, self._targets = words
        self._samples = tuple(range(microbatch))
        head, below = self.units[-1], self.units[-2::-1]
        for unit in self.units:
            visit("forward", unit, lambda unit=unit: self._forward(unit))
        visit("backward", head, lambda: self._backward(head))
        visit("gradient", head, lambda: self._gradient(head))
        for unit in below:
            visit("recompute", unit, lambda unit=unit: self._recompute(unit))
            visit("backward", unit, lambda unit=unit: self._backward(unit))
            visit("gradient", unit, lambda unit=unit: self._gradient(unit))
            if self._is_block(unit):
                visit("copy", unit, lambda unit=unit: self._copy(unit))
        self._output_grads.clear()

    def _forward(self, unit: int) -> None:
        head = unit == self.units[-1]
        x = self._input(unit, grad=head)
        with torch.set_grad_enabled(head):
            y = self._run(unit, x)
        if head:
            self._graphs[unit] = (x, y)
        else:
            self._inputs[self._next(unit)] = y.detach()

    def _recompute(self, unit: int) -> None:
        x = self._input(unit, grad=True)
        with torch.enable_grad():
            self._graphs[unit] = (x, self._run(unit, x))

    def _backward(self, unit: int) -> None:
        x, y = self._graphs.pop(unit)
        if self._is_block(unit):
            input_grad, *self._fresh[unit] = torch.autograd.grad(
                y, (x, *self._parameters[unit]), self._output_grads.pop(self._next(unit))
            )
            self._output_grads[unit] = input_grad
        elif unit == self.units[-1]:
            y.backward()
            self._output_grads[unit] = x.grad
        else:
            y.backward(self._output_grads.pop(self._next(unit)))
        self._inputs.pop(unit, None)

    def _gradient(self, unit: int) -> None:
        torch.stack(
            torch._foreach_norm(self._fresh.get(unit, self._grads[unit]), 2, dtype=torch.float32)
        )
        if not self._is_block(unit):
            self._slabs[unit].zero_()

    def _copy(self, unit: int) -> None:
        torch._foreach_copy_(self._grads[unit], self._fresh.pop(unit))

    def _is_block(self, unit: int) -> bool:
        return unit not in (self.units[0], self.units[-1])

    def _run(self, unit: int, x: Tensor) -> Tensor:
        ctx = Context(seed=0, step=0, unit=unit, samples=self._samples)
        targets = self._targets if unit == self.units[-1] else None
        return self._template.forward(unit, self._modules[unit], x, ctx, targets)

    def _input(self, unit: int, *, grad: bool) -> Tensor:
        if unit == self.units[0]:
            return self._tokens
        x = self._inputs[unit]
        return x.detach().requires_grad_() if grad else x

    def _next(self, unit: int) -> int:
        return self.units[self.units.index(unit) + 1]
