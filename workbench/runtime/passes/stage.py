"""Consecutive slices of a module that one process runs as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.model.base import Context
from workbench.model.decompose import Value
from workbench.model.slices import Slices
from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.passes.compiled import Programs
from workbench.runtime.passes.template import compiles
from workbench.runtime.passes.working import WorkingWeights
from workbench.runtime.transport.group_transport import Form


class Given(NamedTuple):
    """What the module is called with for a micro-batch of the step."""

    inputs: Mapping[str, Tensor]
    ctx: Context
    """Of the micro-batch's rows; its unit does not matter."""


class Stage:
    """Consecutive slices that one process runs as a whole."""

    def __init__(
        self, slices: Slices, units: range, *, device: torch.device, dtype: torch.dtype,
        compile: str = "off", steady: bool = True,
    ) -> None:  # fmt: skip
        """Floating-point tensors between stages are of `dtype`, which with 16 bits is that of
        autocast. `compile` as in a spec: layers are compiled after their first step. `steady`: the
        weights stay while a step runs, so that its passes may read copies in 16 bits."""
        self.slices, self.units, self.device, self.dtype = slices, units, device, dtype
        self._steps: dict[int, Sequence[Given]] = {}
        self.model = slices.model
        self.modules = [slices.layers[unit].module.to(device) for unit in units]
        self._programs: Sequence[Any] = self.modules
        """They, or their compiled forms."""
        self._compiles = compiles(compile, device.type, dtype)
        self._working = None
        if steady and dtype.itemsize == 2:
            self._working = WorkingWeights(self.modules, dtype)
        self._settled = False
        """Whether a step has used the copies."""
        self.first, self.last = units.start == 0, units.stop == slices.count

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The stage's parameters by their names in the whole module."""
        every = (parameter for module in self.modules for parameter in module.parameters())
        return {self.slices.names[id(parameter)]: parameter for parameter in every}

    @property
    def records(self) -> bool:
        """Whether passes may be recorded now: on a GPU, after a step with copies of weights in 16
        bits, in which layers were compiled; without random numbers and BatchNorm."""
        if self.device.type != "cuda" or not self._settled:
            return False
        model = self.model
        return not any(model.draws_in(unit) or model.normalizes_in(unit) for unit in self.units)

    def addresses(self) -> list[int]:
        """Where the weights, their gradients and buffers lie."""
        own = [tensor for module in self.modules for tensor in module.parameters()]
        grads = [tensor.grad for tensor in own if tensor.grad is not None]
        return [tensor.data_ptr() for tensor in (*own, *grads, *self.buffers())]

    def buffers(self) -> list[Tensor]:
        """Buffers of the stage's modules."""
        return [buffer for module in self.modules for buffer in module.buffers()]

    @property
    def copied_bytes(self) -> int:
        """Bytes of the weights' copies in 16 bits, where passes use some."""
        return 0 if self._working is None else self._working.nbytes

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
        """Tensors that come from the stage before; what the module was called with, every stage
        has by itself."""
        values = [v for v in self.slices.layers[self.units.start].inputs if self._crosses(v)]
        return [_form(value, samples, self.dtype) for value in values]

    def goes(self, samples: int) -> list[Form]:
        """Tensors for the stage behind."""
        values = [v for v in self.slices.layers[self.units.stop].inputs if self._crosses(v)]
        return [_form(value, samples, self.dtype) for value in values]

    def _crosses(self, value: Value) -> bool:
        return value.name not in self.slices.inputs

    def autocast(self) -> AbstractContextManager:
        """Mixed precision, in which passes run."""
        if self.dtype.itemsize > 2:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def given(self, micro: int, step: int) -> Given:
        """Inputs of a micro-batch of a step."""
        return self._steps[step][micro]

    def give(self, step: int, given: Sequence[Given]) -> None:
        """The inputs of each micro-batch of a step."""
        self._steps[step] = given

    def begin(self, step: int, given: Sequence[Given]) -> None:
        """Before a step, of whose micro-batches these are the inputs."""
        self.give(step, given)
        if self._working is None:
            return
        self._settled = self.copied_bytes > 0
        if self._working.refresh() and self._compiles:
            programs = Programs(self.model, self.units)
            self._programs = [
                programs.of(unit, self.slices.layers[unit].module) for unit in self.units
            ]

    def end(self, step: int) -> None:
        """Let go of a step's inputs."""
        del self._steps[step]

    def run(self, came: Bundle, micro: int, step: int) -> Bundle:
        """A pass over a micro-batch of a step, with tensors that `came` from the stage before.
        Returns tensors for the stage behind, or the mean loss, a scalar."""
        (inputs, ctx), others = self._steps[step][micro], iter(came)
        layers = self.slices.layers
        x: Any = tuple(
            next(others) if self._crosses(value) else inputs[value.name]
            for value in layers[self.units.start].inputs
        )
        with self.autocast(), self._working.lent() if self._working else nullcontext():
            for unit, module in zip(self.units, self._programs, strict=True):
                x = self.model.forward(unit, module, x, replace(ctx, unit=unit))
        made = x if isinstance(x, tuple) else (x,)
        if self.last:
            return made
        pairs = zip(made, layers[self.units.stop].inputs, strict=True)
        kept = (t for t, value in pairs if self._crosses(value))
        return tuple(t.to(self.dtype) if t.is_floating_point() else t for t in kept)


def dtype_of(*, fp16: bool, bf16: bool) -> torch.dtype:
    """The precision of passes. Raises ValueError for two of them."""
    if fp16 and bf16:
        raise ValueError("fp16 and bf16 are both on; give one of them")
    return torch.float16 if fp16 else torch.bfloat16 if bf16 else torch.get_default_dtype()


def _form(value: Value, samples: int, dtype: torch.dtype) -> Form:
    own = dtype if value.dtype.is_floating_point else value.dtype
    return value.full_shape(samples), own, value.differentiable
