"""Layers that are any sets of a module's calls, and where each of them draws random numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.call_sets import CallSets
from workbench.model.base import LayeredModel
from workbench.model.decompose import Layer
from workbench.model.decompose.call_stages import call_stages
from workbench.model.traits import traits_of

Places = list[list[int]]
"""Of each layer, of its draws among all draws in the module's order."""


def call_layers(
    module: nn.Module, inputs: tuple[Tensor, ...], calls: CallSets, criterion: Callable,
    named: Mapping[str, Any] | None = None,
) -> tuple[list[Layer], Places]:  # fmt: skip
    """The layers of sets of calls, and the places of their draws, which stay those of the module as
    it is written; `inputs` and `named` as for `call_stages`. Raises ValueError for sets that cannot
    run."""
    layers, own = call_stages(module, inputs, calls, criterion, named)
    drawing = sorted((one for ones in own for one in ones if one.draws), key=lambda one: one.number)
    of: dict[int, range] = {}
    done = 0
    for one in drawing:
        of[one.number] = range(done, done + len(traits_of(one.layer()).draws))
        done = of[one.number].stop
    return layers, [[p for one in ones for p in of.get(one.number, ())] for ones in own]


class LayerWeights:
    """Initial weights of sets of calls: those of the model's own layers, made one by one."""

    def __init__(self, layers: Sequence[Layer], own: Callable[[], LayeredModel]) -> None:
        """`own` makes the model that is cut at its layers."""
        self._layers, self._make = layers, own

    @cached_property
    def _own(self) -> LayeredModel:
        return self._make()

    @cached_property
    def _owner(self) -> dict[str, tuple[int, str]]:
        """Name of a parameter in the model -> the layer that makes it, and its name there."""
        own = self._own
        places = [(unit, local) for unit in range(own.num_units) for local in own.shapes(unit)]
        pairs = {place: place for place in places} | own.tied()
        return {own.state_name(*place): owner for place, owner in pairs.items()}

    @torch.no_grad()
    def __call__(self, module: nn.Module, unit: int, seed: int) -> None:
        layer, wanted = self._layers[unit], defaultdict(dict)
        for local, parameter in module.named_parameters(remove_duplicate=False):
            if local not in layer.shared:
                of, name = self._owner[layer.state[local]]
                wanted[of][name] = parameter
        for of, named in wanted.items():
            built = self._own.build(of, seed=seed)
            for name, parameter in named.items():
                parameter.copy_(built.get_parameter(name))
