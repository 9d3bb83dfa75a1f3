"""What a layer does, seen before anything is trained.

Layers run on the meta device, where tensors have shapes and no values, so that a look costs
nothing. What makes tensors without naming a device makes them on the CPU there, beside the others:
a layer that runs when they are made beside its inputs is run so ever after. Some functions of torch
refuse to run without values though nothing follows them: their layers run once on the CPU, on
made-up numbers.

A layer whose calls follow the values of tensors is refused: what it takes for one batch says
nothing of another.
"""

from __future__ import annotations

import copy
from collections.abc import Container
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from workbench.model.base import Context, set_parameter
from workbench.model.decompose import Layer
from workbench.model.decompose.layer import local_tensors
from workbench.model.decompose.program import Program, flatten
from workbench.model.decompose.record import Dice
from workbench.model.keyed import running

SAMPLES = 2
FOLLOWS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
NUMPY = "meta device type tensor to numpy"
"""In the error of code that looks at values where no function of torch's shows it."""
WEIGHT_STD = 0.02
NOTHING_DROPPED = Context(seed=0, step=0, unit=0, samples=(0, 1), training=False)


COUNTED = {
    torch.ops.aten._grouped_mm: lambda one, other, *_, **__: 2 * prod(one) * other[-1],
}
"""Operations of functions that torch's counter does not know, by the shapes they are given."""


class Look(NamedTuple):
    flops: float
    """Of one sample."""
    draws: bool
    """Whether it draws random numbers otherwise than by keyed dropout."""
    device: str
    """``meta``, or ``cpu`` for a layer that runs on values only."""
    outputs: tuple[Tensor, ...]
    """What it puts out for two samples, on the meta device."""


def look_at(layer: Layer) -> Look:
    """Run a layer without its criterion. Sets `at_home` of its plan where it needs that.

    Raises ValueError where it does not run, follows values, or writes to a buffer.
    """
    plan = layer.module.plan
    plan.at_home = False
    try:
        return _look(layer, "meta")
    except _Failed as failed:
        first = failed
    plan.at_home = True
    try:
        return _look(layer, "meta")
    except _Failed:
        plan.at_home = False
    if bare := _bare(layer.module):
        why = f"{bare} is a tensor that does not move with its module; make it a buffer"
        raise _refusal(layer, why) from first.error
    if any(buffer.is_meta for buffer in layer.module.buffers()):
        raise _refusal(layer, _said(first.error)) from first.error
    try:
        return _look(layer, "cpu")
    except _Failed as failed:
        raise _refusal(layer, _said(failed.error)) from failed.error


class _Failed(Exception):
    """Of the module's own code."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _look(layer: Layer, device: str) -> Look:
    counter, dice, asks = (
        FlopCounterMode(display=False, custom_mapping=COUNTED),
        Dice(),
        _Asks(device),
    )
    with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
        module = _copy(layer.module, device)
        written = _Written(module, layer.state)  # others are caches
        inputs = [
            _filled(torch.empty(value.full_shape(SAMPLES), dtype=value.dtype, device=device))
            for value in layer.inputs
        ]
        failed = None
        try:
            with torch.no_grad(), running(NOTHING_DROPPED), counter, dice, asks:
                made = module(*inputs)
        except Exception as error:  # whatever it raises
            failed = error
    if asks.asked or NUMPY in str(failed):
        said = f" ({_said(failed)})" if failed else ""
        why = f"it asks for values, which are not known before it runs{said}"
        raise _refusal(layer, why) from failed
    if failed is not None:
        raise _Failed(failed)
    if buffer := written.first():
        kind = "buffer" if buffer in dict(module.named_buffers()) else "parameter"
        raise ValueError(
            f"{kind} {layer.state.get(buffer, buffer)!r} of layer {layer.index} is written in "
            "forward passes, and this would not be the training of the module: passes are "
            "repeated, and parts of a batch are on several ranks. The statistics of BatchNorm are "
            "what is kept"
        )
    flops = max(1.0, counter.get_total_flops() / SAMPLES)
    return Look(flops, dice.thrown, device, tuple(tensor.to("meta") for tensor in made))


def _copy(module: Program, device: str) -> Program:
    """The module without its criterion, its weights random numbers where there are numbers."""
    module = copy.deepcopy(module).train()
    module.criterion = None
    if device == "meta":
        return module.to("meta")
    found: dict[int, nn.Parameter] = {}
    for name, old in [*module.named_parameters(remove_duplicate=False)]:
        if id(old) not in found:
            found[id(old)] = nn.Parameter(torch.empty_like(old, device=device))
            nn.init.normal_(found[id(old)], std=WEIGHT_STD)
        set_parameter(module, name, found[id(old)])
    return module


def _filled(tensor: Tensor) -> Tensor:
    """Numbers that any layer takes."""
    if tensor.is_floating_point():
        return tensor.uniform_()
    return tensor.fill_(tensor.dtype == torch.bool)


def _bare(module: Program) -> str:
    """The name of a tensor in it that is neither parameter nor buffer."""
    for child in module.children():
        for part in child.modules():
            for name, value in vars(part).items():
                if isinstance(value, Tensor):
                    return f"{type(part).__name__}.{name}"
    return ""


def _said(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def _refusal(layer: Layer, why: str) -> ValueError:
    return ValueError(f"layer {layer.index}, {layer.name!r}: {why}")


class _Asks(TorchDispatchMode):
    """Notices functions whose results' sizes, or what is done with them, follow values: those of
    tensors on the meta device, or of any on another, where nobody knows what they came from."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device, self.asked = device, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self.asked and _follows_values(func, args, kwargs):
            leaves, _ = flatten((args, kwargs))
            tensors = (leaf for leaf in leaves if isinstance(leaf, Tensor))
            self.asked = any(tensor.device.type == self._device for tensor in tensors)
        return func(*args, **kwargs)


def _follows_values(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    if func is torch.ops.aten.index.Tensor:  # by a mask, or by numbers
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if func is torch.ops.aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None
    return not FOLLOWS_VALUES.isdisjoint(func.tags)


class _Written:
    """Buffers and parameters of these names, and what they were."""

    def __init__(self, module: nn.Module, names: Container[str]) -> None:
        self._module = module
        self._before = {
            name: (buffer, buffer._version)
            for name, buffer in local_tensors(module).items()
            if name in names
        }

    def first(self) -> str | None:
        """The name of one that was written since, or put in another's place."""
        now = local_tensors(self._module)
        for name, (buffer, version) in self._before.items():
            if now.get(name) is not buffer or buffer._version != version:
                return name
        return None
