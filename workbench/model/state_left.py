"""State that forward passes leave in a module's attributes, or in variables that its code names.

Passes are repeated here, and a batch is divided, so a module that counts its calls, or keeps an
average of what it has seen, would train otherwise than in torch's loop. Numbers and words may be
anywhere: in containers, arrays and objects within each other. What a pass keeps of its own input,
for people to look at, is as it was after the same input again.
"""

from __future__ import annotations

from array import array
from collections import ChainMap
from collections.abc import Sequence, Set
from itertools import pairwise
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from workbench.model.reachable import CACHED, OWN, PLAIN, contents, variables_of

NAMED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, CACHED, nn.Parameter)
"""Types of what holds no state of a pass."""
MOST = 1 << 22
"""Numbers of an array that are looked at."""
CLOSE = 1e-5
"""Relative difference of tensors that one pass computes twice."""
BESIDE = "variable "
"""Begins the way to what is no attribute of the module."""
Left = dict[str, Any]
"""Content by the way to it."""


def left_in(module: nn.Module | None) -> Left:
    """Content of all attributes of a module and its submodules, but for parameters and buffers, and
    of variables that their code names."""
    parts = [*module.named_modules()] if module else []
    found: Left = {}
    held = {id(part): part for _, part in parts}  # an id means nothing once its object is gone
    named = [
        (f"{path}.{name}" if path else name, value)
        for path, part in parts
        # Its own come first, and hide those of its class.
        for name, value in ChainMap(vars(part), *map(vars, type(part).__mro__)).items()
        if name not in OWN
    ]
    if module is not None:
        named += ((f"{BESIDE}{name}", value) for name, value in variables_of(module).items())
    for begin, whole in named:
        for name, value in contents(begin, whole, held, lambda each: not isinstance(each, NAMED)):
            if isinstance(value, PLAIN):
                found[name] = value if value == value else "not a number"
            elif (content := _content(value)) is not None:
                found[name] = content
    return found


def refuse_changes(kept: Sequence[Left]) -> None:
    """Raise ValueError for a number, word or truth that a pass changed from one to another, and for
    anything that is otherwise after the last pass than after the first, which were of the same
    samples: what a first pass keeps for later ones was nothing before."""
    for before, after in (*pairwise(kept), (kept[0], kept[-1])):
        ends = before is kept[0] and after is kept[-1]
        for name in dict.fromkeys((*before, *after)):
            old, new = before.get(name), after.get(name)
            plain = isinstance(new, PLAIN) and type(old) is type(new)
            if (plain or ends) and not _alike(old, new):
                if name.startswith(BESIDE):
                    raise ValueError(
                        f"the {BESIDE}{name.removeprefix(BESIDE)!r} is another after each forward "
                        "pass of the module, or call of loss_fn; both are looked at, repeated and "
                        "divided here, so they must leave nothing behind: count and log beside "
                        "engine.step, which returns the loss"
                    )
                what = (
                    f"the module changes its attribute {name!r} in every forward pass ({old!r:.40} "
                    f"became {new!r:.40})"
                    if plain
                    else "a forward pass of the module leaves something behind that the next one "
                    f"reads: its attribute {name!r} is another after the same samples"
                )
                raise ValueError(
                    f"{what}, and passes are repeated and divided here; compute it from what the "
                    "module is given"
                )


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        near = CLOSE * float(one.abs().nan_to_num().max())
        return torch.allclose(one, other, rtol=0.0, atol=near, equal_nan=True)
    return type(one) is type(other) and one == other


def _content(value: Any) -> Any:
    """What can be compared of a value; None for one that is all in its parts."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.as_tensor(value.reshape(-1)[:: 1 + value.size // MOST].copy())
    if isinstance(value, torch.Generator):
        value = value.get_state()
    if isinstance(value, FakeTensor):
        return "a tensor without values"
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_meta:
            return None
        flat = value.detach().flatten()[:: 1 + value.numel() // MOST].to("cpu", torch.float64)
        by = torch.linspace(1, 2, len(flat), dtype=flat.dtype)
        return torch.stack([torch.tensor(1.0 * len(flat)), flat.norm(), flat @ by])
    if isinstance(value, Set):
        return " ".join(sorted(map(repr, value)))
    return bytes(value) if isinstance(value, bytearray | array) else None
