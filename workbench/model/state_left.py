"""State that forward passes leave in a module's attributes, or in variables that its code names.

Passes are repeated here, and a batch is divided, so a module that counts its calls, or keeps an
average of what it has seen, would train otherwise than in torch's loop. Numbers and words may be
anywhere: in containers, arrays and objects within each other. What a pass keeps of its own input,
for people to look at, is as it was after the same input again.
"""

from __future__ import annotations

from array import array
from collections import ChainMap, deque
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import pairwise
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from workbench.model.keyed import OnceNorm
from workbench.model.variables import variables_of

PLAIN = (bool, int, float, complex, str, bytes, type(None))
NAMED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, nn.Parameter)
"""Types of what holds no state of a pass."""
OWN = frozenset(dir(nn.Module())) | frozenset(vars(OnceNorm))
"""Attributes of any module, and of one of ours."""
DEEP, MANY = 9, 1 << 16
"""Objects within objects that are looked at, and objects in all."""
LONG, MOST = 4096, 1 << 22
"""Elements of a container, and numbers of an array, that are looked at."""
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
    for path, part in parts:
        # Its own come first, and hide those of its class.
        for name, value in ChainMap(vars(part), *map(vars, type(part).__mro__)).items():
            if name not in OWN:
                _enter(found, held, f"{path}.{name}" if path else name, value)
    for name, value in variables_of(module).items() if module else ():
        _enter(found, held, f"{BESIDE}{name}", value)
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


def _enter(found: Left, held: dict[int, Any], name: str, value: Any, deep: int = 0) -> None:
    """Note what is at a place, and in it."""
    if isinstance(value, PLAIN):
        found[name] = value if value == value else "not a number"
        return
    if isinstance(value, NAMED) or id(value) in held or deep > DEEP or len(held) > MANY:
        return
    held[id(value)] = value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.as_tensor(value.reshape(-1)[:: 1 + value.size // MOST].copy())
    if isinstance(value, torch.Generator):
        value = value.get_state()
    if isinstance(value, FakeTensor):
        found[name] = "a tensor without values"
    elif isinstance(value, Tensor):
        if value.layout == torch.strided and not value.is_meta:
            flat = value.detach().flatten()[:: 1 + value.numel() // MOST]
            flat = flat.to("cpu", torch.float64)
            by = torch.linspace(1, 2, len(flat), dtype=flat.dtype)
            found[name] = torch.stack([torch.tensor(1.0 * len(flat)), flat.norm(), flat @ by])
    elif isinstance(value, bytearray | array):
        found[name] = bytes(value)
    elif isinstance(value, Set):
        found[name] = " ".join(sorted(map(repr, value)))
    else:
        for key, each in _inside(value):
            _enter(found, held, f"{name}{key}", each, deep + 1)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Parts of a container or an object, with their places."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", value[key]) for key in [*value][-LONG:])
    elif isinstance(value, list | tuple | deque):
        yield from [(f"[{at}]", each) for at, each in enumerate(value)][-LONG:]
    elif isinstance(value, GeneratorType):
        if value.gi_frame is not None:
            yield from ((f".{key}", each) for key, each in value.gi_frame.f_locals.items())
    elif isinstance(value, nn.Module):  # not among the submodules
        yield from ((f".{key}", each) for key, each in vars(value).items() if key not in OWN)
    else:
        try:
            parts = value.__reduce_ex__(4)[1:]  # all that a copy is made of
        except Exception:  # it cannot be copied
            return
        for part in parts:
            if isinstance(part, Mapping):
                yield from ((f".{key}", part[key]) for key in part)
            else:
                yield "", [*part] if isinstance(part, Iterator) else part
