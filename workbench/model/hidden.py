"""Parameters that a module holds in a list, a dictionary, an object or a function as well.

Layers put weights of their own in the places of registered parameters, by their names. What holds
one of these, or some of its memory, in any other place would keep it as it was in the beginning.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from workbench.model.code_names import names_in, used_by_type

OWN = frozenset(vars(nn.Module())) | {"_flat_weights"}
"""Attributes of any module, and one that torch's recurrent ones keep up to date."""
DEEP, LONG = 6, 4096
"""Objects within objects, and elements of a container, that are looked at."""


def hidden(model: nn.Module) -> tuple[str, str] | None:
    """An attribute in which forward code finds a trained parameter, and that parameter's name; None
    where there is none."""
    every = dict(model.named_parameters())
    homes = {p.untyped_storage().data_ptr(): n for n, p in every.items() if p.requires_grad}
    homes.pop(0, None)  # of tensors without memory
    names = {id(p): name for name, p in every.items() if p.requires_grad}
    read = frozenset[str]().union(*(used_by_type(type(m), "forward")[0] for m in model.modules()))
    for path, part in model.named_modules():
        for key in vars(part).keys() & read - OWN:
            begin = f"{path}.{key}" if path else key
            if isinstance(value := vars(part)[key], Tensor | nn.Module):
                continue  # tensors that are attributes are looked at by overlap.py
            for place, tensor in _within(begin, value, {id(m) for m in model.modules()}):
                name = names.get(id(tensor)) or homes.get(_home(tensor))
                if name is not None:
                    return place, name
    return None


def _home(tensor: Tensor) -> int:
    if isinstance(tensor, FakeTensor) or tensor.layout != torch.strided or tensor.is_meta:
        return 0
    return tensor.untyped_storage().data_ptr()


def _within(name: str, value: Any, seen: set[int], deep: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Tensors in a container, an object or a function's variables, by their places; none of
    objects that have been seen."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "f" and value.flags.writeable:
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        yield name, value
    elif not isinstance(value, type | ModuleType) and id(value) not in seen and deep <= DEEP:
        seen.add(id(value))
        for key, each in _parts(value):
            yield from _within(f"{name}{key}", each, seen, deep + 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", value[key]) for key in [*value][:LONG])
    elif isinstance(value, list | tuple | deque | set | frozenset):
        yield from ((f"[{at}]", each) for at, each in enumerate([*value][:LONG]))
    elif isinstance(value, functools.partial):
        yield from (("", each) for each in (value.func, value.args, value.keywords))
    elif isinstance(value, FunctionType):
        loaded = names_in(value.__code__)[1]
        for cell in value.__closure__ or ():
            if cell != CellType():
                yield from _of_cell(cell.cell_contents, loaded)
        yield "", (value.__defaults__, value.__kwdefaults__)
    else:
        yield from ((f".{key}", each) for key, each in getattr(value, "__dict__", {}).items())
        slots = (getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
        for key in (
            key for names in slots for key in ([names] if isinstance(names, str) else names)
        ):
            if hasattr(value, key):
                yield f".{key}", getattr(value, key)


def _of_cell(value: Any, loaded: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """A variable of a function; of a module, which copies of the function share with it, the
    parameters that code finds there by their names, or calls."""
    if not isinstance(value, nn.Module):
        yield "", value
        return
    for name in loaded & (value._parameters.keys() | value._modules.keys()):
        part = getattr(value, name)
        yield from (("", p) for p in ([part] if isinstance(part, Tensor) else part.parameters()))
