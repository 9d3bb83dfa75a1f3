"""A user's module as slices between its cut points.

The slices call the module's own submodules on the module's own parameters (model/decompose), so a
process keeps its stage's and lets go of the rest. Random numbers belong to samples
(model/drawn.py), and no mask depends on stages, replicas or micro-batches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.call_sets import CallSets
from workbench.core.division import packs_of
from workbench.model.base import set_parameter
from workbench.model.call_layers import call_layers
from workbench.model.cut_point import cut_points
from workbench.model.decompose import Undecomposed, decompose
from workbench.model.decompose.layer import local_tensors
from workbench.model.drawn import generators, unkeyed
from workbench.model.frozen import thaw
from workbench.model.keyed import make_keyed
from workbench.model.modules import Decomposed
from workbench.model.refused import refuse

EXAMPLE = 2
"""Samples of the example a module is looked at with; the number is free afterwards."""
Inputs = Mapping[str, Any]
"""Keyword arguments of a module's forward pass."""


class Slices:
    """The slices of a module."""

    def __init__(
        self, module: nn.Module, get_batch: Callable[..., Inputs], calls: CallSets | None = None
    ) -> None:
        """`get_batch` gives keyword arguments of so many samples. A module without cut points is
        cut at its blocks, or into sets of `calls`. Raises ValueError, one sentence, for a module
        that cannot be cut."""
        name = type(module).__name__
        refuse(module, name)
        self.module = make_keyed(module.train())
        self.frozen = thaw(module)
        with generators(0):
            self.example = dict(get_batch(EXAMPLE))
        self.inputs = check_inputs(self.example, EXAMPLE)
        at = cut_points(module) or None
        places = None
        with unkeyed():
            try:
                if calls is None:
                    self.layers = decompose(module, (), self.example, criterion=loss_of, at=at)
                else:
                    self.layers, places = call_layers(module, (), calls, loss_of, self.example)
            except Undecomposed as error:
                raise ValueError(error.reason) from error
        self.model = Decomposed(
            module, self.layers, _no_initialize, hidden=0, vocab=0, max_seq=0,
            targets=torch.zeros(EXAMPLE), frozen=self.frozen, foreign=True,
            places=places,
        )  # fmt: skip

        self.names: dict[int, str] = {}
        """Parameter, by its id -> its name in the module, where the first slice has it."""
        for layer in self.layers:
            for local, parameter in layer.module.named_parameters():
                self.names.setdefault(id(parameter), layer.state[local])

        every = module.named_parameters(remove_duplicate=False)
        self.aliases = {name: self.names[id(parameter)] for name, parameter in every}
        """All names of parameters in the module -> the one that is used for each."""

    @property
    def count(self) -> int:
        """Number of slices: cut points and one."""
        return len(self.layers)

    def stages(self, stages: int, cut: str = "") -> tuple[range, ...]:
        """Slices of each stage, of which `cut` says how many, such as ``5 4 4 3``; by default about
        as many in each. Raises ValueError for more stages than slices, and for another cut."""
        if not 1 <= stages <= self.count:
            raise ValueError(
                f"{stages} stages are asked for, and the model is cut into {self.count} slices; "
                f"use 1 to {self.count} stages, or more cut points"
            )
        even = [len(range(stage, self.count, stages)) for stage in range(stages)]
        given = [int(word) if word.isdecimal() else 0 for word in cut.split()] or even
        if len(given) != stages or sum(given) != self.count or 0 in given:
            raise ValueError(
                f"stages is {cut!r}; give the slices of {stages} stages, {self.count} in all, such "
                f"as {' '.join(map(str, even))!r}"
            )
        return packs_of(given)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter of the module, by its name."""
        return {name: tuple(p.shape) for name, p in self.module.named_parameters()}

    def owners(self, units: Iterable[int]) -> dict[int, dict[str, nn.Parameter]]:
        """Parameters of slices: the first slice of the module that has one -> its name -> it."""
        first: dict[int, int] = {}
        for layer in reversed(self.layers):
            first |= {id(parameter): layer.index for parameter in layer.module.parameters()}
        found: dict[int, dict[str, nn.Parameter]] = {}
        for unit in units:
            for parameter in self.layers[unit].module.parameters():
                own = found.setdefault(first[id(parameter)], {})
                own[self.names[id(parameter)]] = parameter
        return found

    def holders(self, stages: Sequence[Iterable[int]]) -> dict[str, list[int]]:
        """Parameters by their names in the module: the stages that hold each."""
        found: dict[str, list[int]] = {}
        for stage, units in enumerate(stages):
            every = (p for unit in units for p in self.layers[unit].module.parameters())
            for name in dict.fromkeys(self.names[id(parameter)] for parameter in every):
                found.setdefault(name, []).append(stage)
        return found

    def lent(self, stages: Sequence[range]) -> dict[tuple[int, int], dict[str, int]]:
        """Weights that several stages use and that are trained: the first of these stages and
        another one -> name in the module -> elements."""
        found: dict[tuple[int, int], dict[str, int]] = {}
        learning = [self.learning(units) for units in stages]
        elements = {name: math.prod(shape) for name, shape in self.shapes().items()}
        sizes = {self.aliases[name]: count for name, count in elements.items()}
        for name, (owner, *others) in self.holders(stages).items():
            if any(learning[stage][name] for stage in (owner, *others)):
                for other in others:
                    found.setdefault((owner, other), {})[name] = sizes[name]
        return found

    def borrow(self, units: range, names: Collection[str]) -> dict[str, nn.Parameter]:
        """Have slices use copies of some parameters, in modules of their own; the copies, by the
        names of these in the module."""
        copies: dict[str, nn.Parameter] = {}
        for unit in units:
            layer = self.layers[unit]
            stay = layer.module.plan, *local_tensors(layer.module).values()
            memo = {id(one): one for one in stay}
            for parameter in layer.module.parameters():
                if (name := self.names[id(parameter)]) in names:
                    made = copies.setdefault(name, nn.Parameter(parameter.detach().clone()))
                    memo[id(parameter)] = made
            self.layers[unit] = replace(layer, module=copy.deepcopy(layer.module, memo))
        self.names |= {id(made): name for name, made in copies.items()}
        return copies

    def learning(self, units: range) -> dict[str, bool]:
        """Parameters of slices by their names in the module: whether each is trained. Raises
        ValueError where slices have none."""
        found: dict[str, bool] = {}
        for unit in units:
            for local, parameter in self.layers[unit].module.named_parameters():
                name = self.names[id(parameter)]
                found[name] = found.get(name, False) or self.model.learns(unit, local)
        if not any(found.values()):
            raise ValueError(
                f"slices {units.start} to {units.stop - 1} of {self.count} have no weights that "
                "are trained; use fewer stages, or move the cut points"
            )
        return found

    def keep(self, units: Collection[int]) -> None:
        """Let go of the parameters of all other slices."""
        kept = {id(p) for unit in units for p in self.layers[unit].module.parameters()}
        for layer in self.layers:
            if layer.index in units:
                continue
            for name, parameter in [*layer.module.named_parameters(remove_duplicate=False)]:
                if id(parameter) not in kept:
                    bare = torch.empty_like(parameter, device="meta")
                    set_parameter(layer.module, name, nn.Parameter(bare))


def loss_of(out: Any, _: Any) -> Tensor:
    """The mean loss in what a module puts out: the tensor, its `loss`, or the first of several."""
    found = getattr(out, "loss", None)
    if found is None:
        found = out[0] if isinstance(out, tuple | list) and out else out
    if not isinstance(found, Tensor) or found.dim():
        what = f"a tensor of {tuple(found.shape)}" if isinstance(found, Tensor) else "none"
        raise ValueError(f"the module must put out its mean loss, one number; it puts out {what}")
    return found


def check_inputs(inputs: Inputs, rows: int) -> dict[str, Tensor]:
    """The tensors among a module's inputs, by name. Raises ValueError for tensors that are neither
    of so many samples nor of one row, which is passed whole."""
    found = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    for name, value in found.items():
        if value.dim() and len(value) not in (1, rows):
            raise ValueError(
                f"input {name!r} has {len(value)} rows; {rows} samples were asked for (one row is "
                "passed whole)"
            )
    if not any(value.dim() and len(value) == rows for value in found.values()):
        raise ValueError(f"no input is a tensor of {rows} samples")
    return found


def _no_initialize(module: nn.Module, unit: int, seed: int) -> None:
    raise AssertionError("a user's module comes with its weights")
