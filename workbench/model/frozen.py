"""Parameters that are not trained, in a model all of whose parameters every method trains.

A frozen parameter lies among the others and gets a gradient of zeros, and it does not decay: its
moments stay zero, its update is nothing, and the global norm is that of the others. Gradients pass
it as they pass any weight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class _Held(torch.autograd.Function):
    """Numbers of a parameter that does not learn."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor) -> Tensor:
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


def thaw(model: nn.Module) -> frozenset[str]:
    """Have all floating-point parameters ask for gradients; all names of those that did not.

    Raises ValueError for a module that has its parameters elsewhere too.
    """
    for path, part in model.named_modules():
        if isinstance(part, nn.RNNBase) and not all(p.requires_grad for p in part.parameters()):
            raise ValueError(f"{path!r} is a {type(part).__name__}, and such cannot be frozen")
    named = dict(model.named_parameters(remove_duplicate=False))
    found = {n for n, p in named.items() if p.is_floating_point() and not p.requires_grad}
    for name in found:
        named[name].requires_grad_(True)
    return frozenset(found)


@contextmanager
def held(module: nn.Module, names: Collection[str]) -> Iterator[None]:
    """Within, the module computes with the parameters of these names and teaches them nothing."""
    places = [name.rpartition(".") for name in names]
    owners = [(module.get_submodule(path), leaf) for path, _, leaf in places]
    own = [owner._parameters[leaf] for owner, leaf in owners]
    try:
        for (owner, leaf), parameter in zip(owners, own, strict=True):
            owner._parameters[leaf] = _Held.apply(parameter)
        yield
    finally:
        for (owner, leaf), parameter in zip(owners, own, strict=True):
            owner._parameters[leaf] = parameter
