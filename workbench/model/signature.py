"""Descriptions of layers, which are equal where layers do the same operations."""

from __future__ import annotations

from typing import Any

import torch

from workbench.model.decompose import Layer

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def work_of(layer: Layer) -> str:
    """Its parameters and calls."""
    plan = layer.module.plan
    own = [
        (name, tuple(parameter.shape), layer.shared.get(name))
        for name, parameter in layer.module.named_parameters(remove_duplicate=False)
    ]
    children = [type(child) for child in layer.module.modules()]
    calls = [
        (call.target if callable(call.target) else layer.module.slots[call.target], call.results)
        for call in plan.calls
    ]
    return str((own, children, [(str(t), len(r)) for t, r in calls]))


def ends_of(layer: Layer) -> str:
    """Tensors that it takes and puts out."""
    ends = [
        [(v.shape, v.dtype, v.differentiable) for v in e] for e in (layer.inputs, layer.outputs)
    ]
    return str(ends)


def attributes_of(layer: Layer) -> str | None:
    """All that modules of a layer have as plain attributes: layers with equal ones do alike. None
    where something among them cannot be told from its words, such as a function."""
    found = []
    for path, part in layer.module.named_modules():
        for name, value in vars(part).items():
            if name in HOOKS and value:
                return None
            if name.startswith("_") or name in ("plan", "slots", "criterion", "training"):
                continue
            if not _is_plain(value):
                return None
            found.append((path, name, value))
    return str(found)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    return isinstance(value, int | float | str | torch.dtype | None)
