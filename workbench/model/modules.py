"""Any module as a layered model, from the layers it was decomposed into."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from workbench.model.base import Context, LayeredModel, Part
from workbench.model.decompose import UNREAD, Layer
from workbench.model.dropout import seeded
from workbench.model.frozen import held
from workbench.model.keyed import OnceNorm, running
from workbench.model.keys import key
from workbench.model.look import Look, look_at

Initialize = Callable[[nn.Module, int, int], None]
"""Writes initial weights into a layer, of a number, for a seed."""


class Decomposed(LayeredModel):
    """A module as units that can be made, moved and run one by one.

    The layers' own modules stay as they were found, mostly on the meta device; units are copies.
    """

    def __init__(
        self,
        layers: list[Layer],
        initialize: Initialize,
        *,
        hidden: int,
        vocab: int,
        max_seq: int,
        frozen: Collection[str] = (),
    ) -> None:
        """`layers` end with the loss; `frozen` are names of what is not trained (frozen.py), which
        asks for gradients like the rest. Raises ValueError for parameters that ask for none or that
        no layer reads, and for what no method here can do exactly."""
        self._units, self._initialize = layers, initialize
        self.layers, self.hidden, self.vocab, self.max_seq = len(layers) - 2, hidden, vocab, max_seq
        for layer in layers:
            for name, parameter in layer.module.named_parameters():
                unread = name in layer.idle and name not in layer.shared
                if unread or not parameter.requires_grad:
                    why = "no layer reads it" if unread else "it asks for no gradient"
                    raise ValueError(
                        f"parameter {layer.state.get(name, name)!r} cannot be trained: {why}"
                    )
                if parameter.dtype != torch.float32:
                    raise ValueError(
                        f"parameter {layer.state.get(name, name)!r} is {_word(parameter.dtype)}; "
                        "all are float32, of which a run computes with bfloat16 copies if it is "
                        "asked to"
                    )

        self.output: Any = None
        """What the model puts out for two samples, on the meta device."""
        self._frozen = [
            tuple(name for name in _parameters(layer) if layer.state.get(name) in frozen)
            for layer in layers
        ]
        self._looks = self._look_at_kinds()

    def skeleton(self, unit: int) -> nn.Module:
        with unset_fake_temporarily():  # buffers cannot be copied there
            module = copy.deepcopy(self._units[unit].module)
            for part in module.modules():
                if isinstance(part, OnceNorm) and part.running_mean is not None:
                    part.running_mean = torch.zeros_like(part.running_mean, device="cpu")
                    part.running_var = torch.ones_like(part.running_var, device="cpu")
                    part.num_batches_tracked = torch.tensor(0)
        for name, buffer in module.named_buffers():
            if buffer.is_meta:
                raise ValueError(
                    f"buffer {name!r} of layer {unit} has no values: decompose a model that is "
                    "not on the meta device"
                )
        return module

    def initialize(self, unit: int, module: nn.Module, *, seed: int) -> None:
        self._initialize(module, unit, seed)

    def tied(self) -> dict[tuple[int, str], tuple[int, str]]:
        return self._tied

    @cached_property
    def _tied(self) -> dict[tuple[int, str], tuple[int, str]]:
        return {
            (layer.index, local): owner
            for layer in self._units
            for local, owner in layer.shared.items()
            if local in dict(layer.module.named_parameters(remove_duplicate=False))
        }

    def state_name(self, unit: int, local_name: str) -> str:
        return self._units[unit].state[local_name]

    def parts(self, unit: int, module: nn.Module) -> dict[str, nn.Module | nn.Parameter]:
        slots = module.slots.items()
        return {key.removesuffix(UNREAD): getattr(module, slot) for key, slot in slots}

    def boundary(self, unit: int, seq: int) -> tuple[Part, ...]:
        return tuple(
            Part(
                shape=value.shape,
                dtype=None if value.dtype == torch.float32 else value.dtype,
                differentiable=value.differentiable,
                batch_dim=value.batch_dim,
                rows=value.rows,
            )
            for value in self._units[unit].inputs
        )

    def forward(
        self,
        unit: int,
        module: nn.Module,
        x: Tensor | tuple[Tensor, ...],
        ctx: Context,
        targets: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """Run a unit; what it takes and puts out is its `boundary`, of the last one the loss."""
        inputs = x if isinstance(x, tuple) else (x,)
        module.train(ctx.training)
        drawing, frozen = self._drawing(unit, inputs[0].device, ctx), self._frozen[unit]
        with running(ctx), drawing, held(module, frozen):
            if unit == self.head:
                return module(*inputs, targets=targets)[0].float()
            made = module(*inputs)
        return made if len(made) > 1 else made[0]

    def decays(self, unit: int, local_name: str) -> bool:
        return local_name not in self._frozen[unit] and super().decays(unit, local_name)

    def _drawing(
        self, unit: int, device: torch.device, ctx: Context
    ) -> AbstractContextManager[None]:
        """Numbers that a unit draws by itself belong to the micro-batch, so that a repetition draws
        the same; those of keyed dropout belong to each sample."""
        if not ctx.training or not self._looks[self.kind(unit)].draws:
            return nullcontext()
        return seeded(device, key(ctx.seed, "drawn", ctx.step, ctx.samples[0], ctx.unit))

    @cached_property
    def couples(self) -> str:
        parts = (part for layer in self._units for part in layer.module.modules())
        if any(isinstance(part, OnceNorm) for part in parts):
            return "BatchNorm takes its statistics from a micro-batch"
        if any(look.draws for look in self._looks.values()):
            return "a layer draws random numbers for a whole micro-batch"
        return ""

    def kind(self, unit: int) -> str:
        return self._kinds[unit]

    @cached_property
    def _kinds(self) -> list[str]:
        """Units are alike when they make the same calls on the same shapes; a kind is named after
        the first of them."""
        first: dict[Any, str] = {}
        kinds = []
        for layer in self._units:
            signature = _signature(layer), self._frozen[layer.index]
            if signature not in first:  # a module that is called twice may see other shapes then
                taken = layer.name in first.values()
                first[signature] = f"{layer.name}@{layer.index}" if taken else layer.name
            kinds.append(first[signature])
        return kinds

    def flops(self, unit: int, batch: int, seq: int) -> float:
        return batch * self._looks[self.kind(unit)].flops

    def bare_device(self, unit: int) -> str:
        """Where a unit runs without the data's values: ``meta``, or ``cpu`` if it needs some."""
        return self._looks[self.kind(unit)].device

    def _look_at_kinds(self) -> dict[str, Look]:
        """What kinds of units do, seen without weights. Not left for later: what is made
        meanwhile would be counted as memory of a pass."""
        found: dict[str, Look] = {}
        at_home: dict[str, bool] = {}
        for layer in self._units:
            kind = self.kind(layer.index)
            if kind not in found:
                found[kind], at_home[kind] = look_at(layer), layer.module.plan.at_home
            layer.module.plan.at_home = at_home[kind]
            if layer.index == self.head:
                self.output = layer.module.restore(found[kind].outputs)
        return found


def _parameters(layer: Layer) -> list[str]:
    return [name for name, _ in layer.module.named_parameters(remove_duplicate=False)]


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _signature(layer: Layer) -> Any:
    plan = layer.module.plan
    own = [
        (name, tuple(parameter.shape), layer.shared.get(name))
        for name, parameter in layer.module.named_parameters(remove_duplicate=False)
    ]
    children = [str(child) for child in layer.module.children()]
    calls = [
        (call.target if callable(call.target) else layer.module.slots[call.target], call.results)
        for call in plan.calls
    ]
    chances = [  # such as how much a block drops, which may be nothing: it draws nothing then
        (path, name, value)
        for path, part in layer.module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, float | bool)
    ]
    inputs = [(v.shape, v.dtype, v.differentiable) for v in layer.inputs]
    outputs = [(v.shape, v.dtype, v.differentiable) for v in layer.outputs]
    return str((own, children, chances, [(str(t), len(r)) for t, r in calls], inputs, outputs))
