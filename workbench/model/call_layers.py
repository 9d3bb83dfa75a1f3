"""Layers that are any sets of a module's calls, and where each of them draws random numbers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from workbench.core.call_sets import read_sets
from workbench.model.decompose import Layer
from workbench.model.decompose.call_stages import call_stages
from workbench.model.traits import traits_of

Places = list[list[int]]
"""Of each layer, of its draws among all draws in the module's order."""


def call_layers(
    module: nn.Module, inputs: tuple[Tensor, ...], calls: str, criterion: Callable
) -> tuple[list[Layer], Places]:
    """The layers of sets in words (core/call_sets.py), and the places of their draws, which stay
    those of the module as it is written. Raises ValueError for sets that cannot run."""
    layers, own = call_stages(module, inputs, read_sets(calls), criterion)
    drawing = sorted((one for ones in own for one in ones if one.draws), key=lambda one: one.number)
    of: dict[int, range] = {}
    done = 0
    for one in drawing:
        of[one.number] = range(done, done + len(traits_of(one.layer()).draws))
        done = of[one.number].stop
    return layers, [[p for one in ones for p in of.get(one.number, ())] for ones in own]
