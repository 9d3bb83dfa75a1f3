"""Consecutive slices of a module that one process runs as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.methods.varuna.slices import Slices
from workbench.model.base import Context
from workbench.model.decompose import Value
from workbench.model.keyed import STATISTICS, OnceNorm, norms_in
from workbench.runtime.bundle import Bundle
from workbench.runtime.group_transport import Form
from workbench.runtime.statistics import name_of


class Given(NamedTuple):
    """What the module is called with for a micro-batch of the step."""

    inputs: Mapping[str, Tensor]
    ctx: Context
    """Of the micro-batch's rows; its unit does not matter."""


class Stage:
    """Consecutive slices that one process runs as a whole."""

    def __init__(
        self, slices: Slices, units: range, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Floating-point tensors between stages are of `dtype`, which with 16 bits is that of
        autocast."""
        self.slices, self.units, self.device, self.dtype = slices, units, device, dtype
        self._micros: Sequence[Given] = ()
        self._model = slices.model
        self.modules = [slices.layers[unit].module.to(device) for unit in units]
        self.first, self.last = units.start == 0, units.stop == slices.count
        values = [] if self.first else slices.layers[units.start].inputs
        self._given = [value.name in slices.inputs for value in values]
        self.parts = [v for v, own in zip(values, self._given, strict=True) if not own]
        """Tensors that come from the stage before; what the module was called with, every stage
        has by itself."""
        if units.stop < slices.count:
            self.sent = [v.name not in slices.inputs for v in slices.layers[units.stop].inputs]

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The stage's parameters by their names in the whole module."""
        every = (parameter for module in self.modules for parameter in module.parameters())
        return {self.slices.names[id(parameter)]: parameter for parameter in every}

    def buffers(self) -> list[Tensor]:
        """Buffers of the stage's modules."""
        return [buffer for module in self.modules for buffer in module.buffers()]

    def norms(self) -> Counter[OnceNorm]:
        """BatchNorms with running statistics, and their calls in a pass."""
        found: Counter[OnceNorm] = Counter()
        for unit, module in zip(self.units, self.modules, strict=True):
            for path, norm in norms_in(module).items():
                found[norm] += self._model.norm_calls(unit, path)
        return found

    def statistics(self) -> dict[str, Tensor]:
        """BatchNorm's running statistics, by their names in the whole module."""
        return {
            name_of(self._model, unit, path, what): getattr(norm, what)
            for unit, module in zip(self.units, self.modules, strict=True)
            for path, norm in norms_in(module).items()
            for what in STATISTICS
        }

    def check(self, inputs: Mapping[str, Any]) -> None:
        """Raise ValueError for inputs of other names, or other flags, than those that the module
        was looked at with."""
        known = self.slices.example
        if inputs.keys() != known.keys():
            raise ValueError(f"inputs are {', '.join(inputs)}; the module takes {', '.join(known)}")
        for name, value in inputs.items():
            if isinstance(value, Tensor) != isinstance(known[name], Tensor) or (
                not isinstance(value, Tensor) and value != known[name]
            ):
                raise ValueError(
                    f"input {name!r} is {value!r}, and was {known[name]!r} when the module was "
                    "cut; flags stay as they are"
                )

    def came(self, samples: int) -> list[Form]:
        """Tensors that come from the stage before."""
        return [_form(value, samples, self.dtype) for value in self.parts]

    def goes(self, samples: int) -> list[Form]:
        """Tensors for the stage behind."""
        values = self.slices.layers[self.units.stop].inputs
        kept = [v for v, sent in zip(values, self.sent, strict=True) if sent]
        return [_form(value, samples, self.dtype) for value in kept]

    def autocast(self) -> AbstractContextManager:
        """Mixed precision, in which passes run."""
        if self.dtype.itemsize > 2:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def begin(self, given: Sequence[Given]) -> None:
        """Before a step: what each of its micro-batches is."""
        self._micros = given

    def run(self, came: Bundle, micro: int) -> Bundle:
        """A pass over a micro-batch. `came` from the stage before. Returns tensors for the stage
        behind, or the mean loss, a scalar."""
        inputs, ctx = self._micros[micro]
        first = self.slices.layers[self.units.start]
        if self.first:
            x: Any = tuple(inputs[value.name] for value in first.inputs)
        else:
            others = iter(came)
            x = tuple(
                inputs[value.name] if given else next(others)
                for value, given in zip(first.inputs, self._given, strict=True)
            )
        for unit, module in zip(self.units, self.modules, strict=True):
            taken = x if isinstance(x, tuple) else (x,)
            x = self._model.forward(unit, module, taken, replace(ctx, unit=unit))
        made = x if isinstance(x, tuple) else (x,)
        if self.last:
            return made
        kept = (t for t, sent in zip(made, self.sent, strict=True) if sent)
        return tuple(t.to(self.dtype) if t.is_floating_point() else t for t in kept)


def dtype_of(*, fp16: bool, bf16: bool) -> torch.dtype:
    """The precision of passes. Raises ValueError for two of them."""
    if fp16 and bf16:
        raise ValueError("fp16 and bf16 are both on; give one of them")
    return torch.float16 if fp16 else torch.bfloat16 if bf16 else torch.get_default_dtype()


def _form(value: Value, samples: int, dtype: torch.dtype) -> Form:
    own = dtype if value.dtype.is_floating_point else value.dtype
    return value.full_shape(samples), own, value.differentiable
