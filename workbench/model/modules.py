"""Any module as a layered model, from the layers it was decomposed into."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.flop_counter import FlopCounterMode

from workbench.model.base import Context, LayeredModel, Part
from workbench.model.decompose import UNREAD, Layer
from workbench.model.decompose.record import Dice
from workbench.model.dropout import seeded
from workbench.model.keyed import OnceNorm, running
from workbench.model.keys import key

Initialize = Callable[[nn.Module, int, int], None]
"""Writes initial weights into a layer, of a number, for a seed."""


class Decomposed(LayeredModel):
    """A module as units that can be made, moved and run one by one.

    The layers' own modules stay as they were found, mostly on the meta device; units are copies.
    """

    def __init__(
        self, layers: list[Layer], initialize: Initialize, *, hidden: int, vocab: int, max_seq: int
    ) -> None:
        """`layers` end with the loss. Raises ValueError for parameters that are not trained or that
        no layer reads: every method here trains all of them; and for what no method here can do
        exactly."""
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
        with running(ctx), self._drawing(unit, inputs[0].device, ctx):
            if unit == self.head:
                return module(*inputs, targets=targets)[0].float()
            made = module(*inputs)
        return made if len(made) > 1 else made[0]

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
            signature = _signature(layer)
            if signature not in first:  # a module that is called twice may see other shapes then
                taken = layer.name in first.values()
                first[signature] = f"{layer.name}@{layer.index}" if taken else layer.name
            kinds.append(first[signature])
        return kinds

    def flops(self, unit: int, batch: int, seq: int) -> float:
        return batch * self._looks[self.kind(unit)].flops

    def _look_at_kinds(self) -> dict[str, _Look]:
        """What kinds of units do, seen on the meta device. Not left for later: what is made
        meanwhile would be counted as memory of a pass."""
        found: dict[str, _Look] = {}
        nothing_dropped = Context(seed=0, step=0, unit=0, samples=(0, 1), training=False)
        for layer in self._units:
            if (kind := self.kind(layer.index)) in found:
                continue
            counter, dice = FlopCounterMode(display=False), Dice()
            with unset_fake_temporarily(), torch.no_grad(), running(nothing_dropped):
                module = copy.deepcopy(layer.module).to("meta").train()
                module.criterion = None
                inputs = [
                    torch.empty(value.full_shape(2), dtype=value.dtype, device="meta")
                    for value in layer.inputs
                ]
                written = _Written(module, layer.state)  # others are caches
                with counter, dice:
                    made = _run(module, inputs, layer)
            if buffer := written.first():
                raise ValueError(
                    f"buffer {layer.state.get(buffer, buffer)!r} of layer {layer.index} is written "
                    "in forward passes, and this would not be the training of the module: passes "
                    "are repeated, and parts of a batch are on several ranks. The statistics of "
                    "BatchNorm are what is kept"
                )
            if layer.index == self.head:
                self.output = module.restore(made)
            found[kind] = _Look(max(1.0, counter.get_total_flops() / 2), dice.thrown)
        return found


def _run(module: nn.Module, inputs: list[Tensor], layer: Layer) -> tuple[Tensor, ...]:
    """What a layer makes of inputs on the meta device. Raises ValueError where that cannot be
    known."""
    try:
        return module(*inputs)
    except RuntimeError as error:
        bare = [
            f"{type(part).__name__}.{name}"
            for child in module.children()
            for part in child.modules()
            for name, value in vars(part).items()
            if isinstance(value, Tensor)
        ]
        why = f"it asks for values, which are not known before it runs ({error})"
        if bare:
            why = f"{bare[0]} is a tensor that does not move with its module; make it a buffer"
        raise ValueError(f"layer {layer.index}, {layer.name!r}: {why}") from error


class _Written:
    """Buffers of these names, and what they were."""

    def __init__(self, module: nn.Module, names: Container[str]) -> None:
        self._module = module
        self._before = {
            name: (buffer, buffer._version)
            for name, buffer in module.named_buffers()
            if name in names
        }

    def first(self) -> str | None:
        """The name of one that was written since, or put in another's place."""
        now = dict(self._module.named_buffers())
        for name, (buffer, version) in self._before.items():
            if now.get(name) is not buffer or buffer._version != version:
                return name
        return None


class _Look(NamedTuple):
    flops: float
    """Of one sample."""
    draws: bool
    """Whether it draws random numbers otherwise than by keyed dropout."""


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
    inputs = [(v.shape, v.dtype, v.differentiable) for v in layer.inputs]
    outputs = [(v.shape, v.dtype, v.differentiable) for v in layer.outputs]
    return str((own, children, [(str(t), len(r)) for t, r in calls], inputs, outputs))
