"""Parameters that no gradient reaches: torch's own loop leaves them as they are.

They are found on the meta device, where tensors have shapes and no values, from the last layer to
the first: a gradient comes back for a tensor between layers if one does in the layers above.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from workbench.model.base import Context
from workbench.model.decompose import Layer
from workbench.model.drawn import Seen, drawing
from workbench.model.traits import SAMPLES, blank_copy, blank_inputs

Found = tuple[frozenset[str], tuple[bool, ...]]
"""Local names of parameters that no gradient reaches, and of each input whether one does."""


def unreached(
    layers: Sequence[Layer], kinds: Sequence[str], devices: Sequence[str], targets: Tensor
) -> list[frozenset[str]]:
    """By unit, the local names of the parameters that nothing is learned from; of a tied one, that
    is so wherever it is used. `devices`: where each layer runs without the data's values;
    `targets`: those of `SAMPLES` samples."""
    known: dict[tuple, Found] = {}
    above: tuple[bool, ...] = ()
    missing: list[frozenset[str]] = [frozenset()] * len(layers)
    for layer in reversed(layers):
        asked = kinds[layer.index], above
        if asked not in known:
            known[asked] = _reached(layer, devices[layer.index], above, targets)
        missing[layer.index], above = known[asked]
    learning = {
        layer.shared.get(name, (layer.index, name))
        for layer in layers
        for name, _ in layer.module.named_parameters(remove_duplicate=False)
        if name not in missing[layer.index]
    }
    return [
        frozenset(n for n in names if layer.shared.get(n, (layer.index, n)) not in learning)
        for layer, names in zip(layers, missing, strict=True)
    ]


def _reached(layer: Layer, device: str, above: tuple[bool, ...], targets: Tensor) -> Found:
    """Where the layer cannot be differentiated without values, all count as reached."""
    with unset_fake_temporarily(), torch.random.fork_rng(devices=[]), torch.enable_grad():
        module = blank_copy(layer.module, device)
        module.criterion = layer.module.criterion
        inputs = blank_inputs(layer, SAMPLES, device)
        for tensor, value in zip(inputs, layer.inputs, strict=True):
            tensor.requires_grad_(value.differentiable)
        named = [*module.named_parameters(remove_duplicate=False)]
        leaves = [t for t in inputs if t.requires_grad] + [p for _, p in named]
        try:
            ctx = Context(seed=0, step=0, unit=0, samples=(0,) * SAMPLES)
            with warnings.catch_warnings(action="ignore"), drawing(Seen(ctx)):
                # a view, since a layer may write to what it is given
                given = [t.view_as(t) if t.requires_grad else t for t in inputs]
                made = module(*given, targets=targets.to(device))
            ends = [
                tensor
                for tensor, learns in zip(made, above or [True] * len(made), strict=True)
                if learns and tensor.requires_grad
            ]
            ones = [torch.ones_like(tensor) for tensor in ends]
            grads = torch.autograd.grad(ends, leaves, ones, allow_unused=True) if ends else []
        except Exception:  # whatever its code raises
            return frozenset(), tuple(value.differentiable for value in layer.inputs)
    learns = {id(leaf) for leaf, grad in zip(leaves, grads, strict=False) if grad is not None}
    return (
        frozenset(name for name, parameter in named if id(parameter) not in learns),
        tuple(id(tensor) in learns for tensor in inputs),
    )
