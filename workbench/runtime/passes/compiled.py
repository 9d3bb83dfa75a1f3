"""Layers of a user's module through compiled graphs, one for all layers of a kind.

A layer is a program (model/decompose/program.py). Layers of a kind do the same operations, so the
first one of them is compiled, as a function of its weights too, and runs with those of the others.
A layer that draws random numbers or has BatchNorm reads state beside its tensors, and stays as it
is, and so does one that torch cannot compile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from workbench.model.decompose.program import Program
from workbench.model.slices import Slices
from workbench.runtime.passes.template import allow_graphs

Tensors = dict[str, Tensor]
Call = Callable[[Program, Tensors, Sequence[Tensor], Any], tuple[Tensor, ...]]


def _call(program: Program, own: Tensors, inputs: Sequence[Tensor], targets: Any) -> Any:
    return functional_call(program, own, tuple(inputs), {"targets": targets})


class CompiledProgram:
    """A layer, called as its program is."""

    def __init__(self, program: Program, first: Program, call: Call) -> None:
        """`first`: the program of the first layer of its kind."""
        self._program, self._first, self._run = program, first, call
        places = [
            (f"{path}{'.' if path else ''}{name}", own, name)
            for path, part in program.named_modules(remove_duplicate=False)
            for own in (part._parameters, part._buffers)
            for name in own
        ]
        self._places = [(local, own, name) for local, own, name in places if own[name] is not None]

    @property
    def training(self) -> bool:
        """The mode of the program."""
        return self._program.training

    def train(self, mode: bool = True) -> None:
        """Set the mode."""
        self._program.train(mode)

    def __call__(self, *inputs: Tensor, targets: Any = None) -> tuple[Tensor, ...]:
        if self._run is None:
            return self._program(*inputs, targets=targets)
        if self._first.training != self.training:
            self._first.train(self.training)
        own = {local: tensors[name] for local, tensors, name in self._places}
        try:
            return self._run(self._first, own, inputs, targets)
        except torch._dynamo.exc.TorchDynamoException:
            self._run = None
            return self(*inputs, targets=targets)


def compiled(slices: Slices, units: Sequence[int]) -> list[Program | CompiledProgram]:
    """The programs of some layers, compiled where they can be."""
    allow_graphs()
    call, first = torch.compile(_call, dynamic=False), {}
    found: list[Program | CompiledProgram] = []
    for unit in units:
        program = slices.layers[unit].module
        if slices.model.draws_in(unit) or slices.model.normalizes_in(unit):
            found.append(program)
            continue
        of_kind = first.setdefault(slices.model.kind(unit), program)
        found.append(CompiledProgram(program, of_kind, call))
    return found
