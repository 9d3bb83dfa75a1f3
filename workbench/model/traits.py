"""Traits of a layer, found before anything is trained.

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
import hashlib
from collections.abc import Container
from contextlib import ExitStack
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from workbench.core.mistakes import line_of_users
from workbench.model.base import Context, set_parameter
from workbench.model.decompose import Layer
from workbench.model.decompose.layer import local_tensors
from workbench.model.decompose.plan import flatten
from workbench.model.decompose.program import Program
from workbench.model.drawn import Draw, Seen, drawing, draws_of

SAMPLES, MORE = 2, 3
FOLLOWS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
NUMPY = "meta device type tensor to numpy"
"""In the error of code that looks at values where no function of torch's shows it."""
WEIGHT_STD = 0.02

COUNTED = {
    torch.ops.aten._grouped_mm: lambda one, other, *_, **__: 2 * prod(one) * other[-1],
}
"""Operations of functions that torch's counter does not know, by the shapes they are given."""


class LayerTraits(NamedTuple):
    """A layer's work and needs, which hold for any batch."""

    flops: float
    """Floating-point operations for one sample."""
    made_bytes: int
    """Bytes that its operations put out for one sample."""
    draws: tuple[Draw, ...]
    """Where it draws random numbers in training, in order."""
    device: str
    """``meta``, or ``cpu`` for a layer that runs on values only."""
    outputs: tuple[Tensor, ...]
    """Outputs for two samples, on the meta device."""
    norms: dict[str, int]
    """How often a pass calls a BatchNorm that trains, by its path."""
    did: str
    """Its operations, and on which of its tensors and numbers: layers that do alike are alike."""


def traits_of(layer: Layer) -> LayerTraits:
    """Run a layer without its criterion. Sets `at_home` of its plan where it needs that.

    Raises ValueError where it does not run, follows values, or writes to a buffer.
    """
    plan = layer.module.plan
    plan.at_home = False
    try:
        return _traits(layer, "meta")
    except _Failed as failed:
        first = failed
    plan.at_home = True
    try:
        return _traits(layer, "meta")
    except _Failed:
        plan.at_home = False
    if bare := _bare(layer.module):
        why = f"{bare} is a tensor that does not move with its module; make it a buffer"
        raise _refusal(layer, why) from first.error
    if any(buffer.is_meta for buffer in layer.module.buffers()):
        raise _refusal(layer, _said(first.error)) from first.error
    try:
        return _traits(layer, "cpu")
    except _Failed as failed:
        raise _refusal(layer, _said(failed.error)) from failed.error


class _Failed(Exception):
    """Failure of the module's own code."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _traits(layer: Layer, device: str) -> LayerTraits:
    counter = FlopCounterMode(display=False, custom_mapping=COUNTED)
    did = _Did()
    made, drawn = _ran(layer, device, SAMPLES, counter, did)
    draws: tuple[Draw, ...] = ()
    if drawn.shapes:
        _, more = _ran(layer, device, MORE)
        try:
            draws = draws_of(drawn, more)
        except ValueError as error:
            raise _refusal(layer, str(error)) from error
    flops = max(1.0, counter.get_total_flops() / SAMPLES)
    bare = tuple(tensor.to("meta") for tensor in made)
    return LayerTraits(flops, did.nbytes // SAMPLES, draws, device, bare, drawn.norms, did.digest())


def _ran(
    layer: Layer, device: str, samples: int, *watching: TorchDispatchMode
) -> tuple[tuple[Tensor, ...], Seen]:
    """(outputs, draws) of a layer for so many samples."""
    asks, seen = _Asks(device), Seen(Context(seed=0, step=0, unit=0, samples=(0,) * samples))
    with unset_fake_temporarily(), torch.random.fork_rng(devices=[]), ExitStack() as stack:
        module = blank_copy(layer.module, device)
        written = _Written(module, layer.state)  # others are caches
        inputs = blank_inputs(layer, samples, device)
        failed = None
        try:
            for mode in (torch.no_grad(), drawing(seen), *watching, asks):
                stack.enter_context(mode)
            made = module(*inputs)
        except Exception as error:  # whatever it raises
            failed = error
        stack.close()
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
    paths = {id(part): path for path, part in module.named_modules()}
    seen.norms = {paths[norm]: calls for norm, calls in seen.calls.items()}
    return made, seen


def blank_copy(module: Program, device: str) -> Program:
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


def blank_inputs(layer: Layer, samples: int, device: str) -> list[Tensor]:
    """Something for a layer to take."""
    return [
        _filled(torch.empty(value.full_shape(samples), dtype=value.dtype, device=device))
        for value in layer.inputs
    ]


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
    said = str(error).strip().split("\n")[0] or type(error).__name__
    line = line_of_users(error)
    return f"{said}, at {line}" if line else said


def _refusal(layer: Layer, why: str) -> ValueError:
    return ValueError(f"layer {layer.index}, {layer.name!r}: {why}")


class _Did(TorchDispatchMode):
    """Notes operations; tensors are numbered in the order in which they appear."""

    def __init__(self) -> None:
        super().__init__()
        self._noted = hashlib.sha256()
        self.nbytes = 0
        """Of all tensors that operations put out."""
        self._numbers: dict[int, int] = {}
        self._held: list[Tensor] = []  # an id means nothing once its tensor is gone

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given, form = flatten((args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        made, _ = flatten(out)
        self.nbytes += sum(leaf.nbytes for leaf in made if isinstance(leaf, Tensor))
        self._noted.update(f"{func} {form} {[*map(self._name, given + made)]}".encode())
        return out

    def _name(self, leaf: Any) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self._numbers:
            self._numbers[id(leaf)] = len(self._held)
            self._held.append(leaf)
        return self._numbers[id(leaf)], tuple(leaf.shape), leaf.dtype

    def digest(self) -> str:
        return self._noted.hexdigest()


class _Asks(TorchDispatchMode):
    """Notices functions whose results' sizes, or what is done with them, follow values: those of
    tensors on the meta device, or of any on another, where nobody knows what they came from; and
    of what was made of random numbers, wherever it is."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device, self.asked = device, False
        self._random: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        drawn = any(id(tensor) in self._random for tensor in tensors)
        if not self.asked and _follows_values(func, args, kwargs):
            self.asked = drawn or any(tensor.device.type == self._device for tensor in tensors)
        out = func(*args, **kwargs)
        if drawn or torch.Tag.nondeterministic_seeded in func.tags:
            self._random |= {id(leaf): leaf for leaf in flatten(out)[0] if isinstance(leaf, Tensor)}
        return out


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
