"""Layers of a user's module through compiled graphs, one for all layers of a kind.

A layer is a program (model/decompose/program.py). Layers that do the same operations, whatever they
hand on beside (core.py), are one function of their weights too, which is compiled once, and runs
with those of each. A layer that draws random numbers or has BatchNorm reads state beside its
tensors, and stays as it is, and so does one that torch cannot compile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from workbench.model.decompose.core import Core
from workbench.model.decompose.program import Program
from workbench.model.modules import Decomposed

GRAPHS = 64
"""Compiled graphs that may be kept, two for each number of samples: torch's 8 are soon used up
where a process profiles several micro-batch sizes, and later ones run eagerly, with no more than a
warning."""
Tensors = dict[str, Tensor]
Call = Callable[[Program, Tensors, Sequence[Tensor], Any], tuple[Tensor, ...]]


def allow_graphs() -> None:
    """Let torch keep as many compiled graphs as runs need."""
    from torch._dynamo import config  # a second of imports, which only who compiles waits for

    config.recompile_limit = max(config.recompile_limit, GRAPHS)


def _call(program: Program, own: Tensors, inputs: Sequence[Tensor], targets: Any) -> Any:
    return functional_call(program, own, tuple(inputs), {"targets": targets})


class CompiledProgram:
    """A layer, called as its program is."""

    def __init__(self, program: Program, core: Core, bare: Program, call: Call) -> None:
        """`core`: its calls; `bare`: a program of such calls, without weights."""
        self._program, self._core, self._bare, self._run = program, core, bare, call
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
        if self._bare.training != self.training:
            self._bare.train(self.training)
        own = {local: tensors[name] for local, tensors, name in self._places}
        try:
            read = [inputs[place] for place in self._core.reads]
            return self._core.outputs(inputs, self._run(self._bare, own, read, targets))
        except torch._dynamo.exc.TorchDynamoException:
            self._run = None
            return self(*inputs, targets=targets)


class Programs:
    """Programs of a module's layers, some of which are compiled where they can be."""

    def __init__(self, model: Decomposed, units: Collection[int]) -> None:
        """`units` are the layers to be compiled."""
        allow_graphs()
        self._model, self._call = model, torch.compile(_call, dynamic=False)
        self._units = {u for u in units if not (model.draws_in(u) or model.normalizes_in(u))}
        self._bare: dict[str, Program] = {}
        """Programs without weights. Were it the first layer's, its own pass would be compiled anew:
        the compiler notes which tensors are one."""
        self._made: dict[Program, CompiledProgram] = {}

    def of(self, unit: int, program: Program) -> Program | CompiledProgram:
        """The program of a layer, as it is to be called."""
        if unit not in self._units:
            return program
        if program not in self._made:
            work, core = self._model.work(unit), self._model.core(unit)
            if work not in self._bare:
                self._bare[work] = bare = self._model.skeleton(unit)
                bare.have(core.written)
            self._made[program] = CompiledProgram(program, core, self._bare[work], self._call)
        return self._made[program]
