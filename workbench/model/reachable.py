"""Values that code, or an object, can reach.

`Reached` finds variables beside a function's arguments: those of its files, of functions around it,
of classes, defaults of arguments, attributes of functions and of objects whose methods it calls.
`contents` finds all that one of them holds.
"""

from __future__ import annotations

import gc
import sys
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache, partial
from inspect import getattr_static, signature
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from workbench.model.code_names import cells_of, names_in, of_library, read_by_type, used_by_type
from workbench.model.keyed import OnceNorm

CACHED = type(lru_cache(len))
"""Functions that keep what they gave."""
CODE = (FunctionType, MethodType, partial, CACHED, property, staticmethod, classmethod)
OTHERS = sys.stdlib_module_names | {"transformers", "workbench"}
"""Modules whose code is not followed, besides those of `of_library`."""
OWN = frozenset(dir(nn.Module())) | frozenset(vars(OnceNorm))
"""Attributes of any module, and of one of ours."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
LEAVES = (*PLAIN, Tensor, torch.Generator, bytearray, array)
"""Types of what holds nothing else."""
DEEP, MANY, LONG = 9, 1 << 16, 4096
"""Objects within objects, objects in all, and elements at each end of a container."""


class Place(NamedTuple):
    """Where code reads or writes something."""

    name: str
    space: Mapping[str, Any] | weakref.ref[nn.Module]
    """Variables by their names; or a module, whose attributes, or its class's, they are."""
    key: str
    whole: bool = True
    """Whether all that it holds counts; where not, parts that code reads have their own places."""
    written: bool = False
    """Whether code writes it."""

    def value(self) -> Any:
        """Content of this place now."""
        if isinstance(self.space, Mapping):
            return self.space.get(self.key)
        return getattr(self.space(), self.key, None)


class Reached:
    """Places that code has named so far."""

    def __init__(self, seen: Set[int] = frozenset()) -> None:
        """`seen`: ids of modules that are left out."""
        self.places: list[Place] = []
        self._seen: set[Any] = {*seen}

    def follow(self, name: str, function: Any, kind: type = object) -> list[Place]:
        """Note what a function names, or an object's that is called, and functions that it calls;
        `kind` is that of its self. Returns all places so far."""
        if isinstance(function, property | staticmethod | classmethod):
            function = getattr(function, "fget", None) or getattr(function, "__func__", None)
        if isinstance(function, CACHED):
            self.places.append(Place(name, {name: function}, name))
            function = function.__wrapped__
        if isinstance(function, partial):
            given = {str(n): value for n, value in enumerate(function.args)} | function.keywords
            for key in given:
                self._note(Place(f"{name}({key})", given, key))
            self.follow(name, function.func, kind)
        elif isinstance(function, MethodType):
            self.look_in(name, function.__self__, frozenset([function.__name__]))
            self.follow(name, function.__func__, type(function.__self__))
        elif isinstance(function, FunctionType) and (function, kind) not in self._seen:
            self._seen.add((function, kind))
            if _of_user(function):
                self._read(function, kind)
        elif function is not None and not isinstance(function, FunctionType):
            self.look_in(name, function, frozenset(["__call__"]))
        return self.places

    def _read(self, function: FunctionType, kind: type) -> None:
        (read, loaded, written), name = names_in(function.__code__), function.__name__
        beside, own = function.__globals__, cells_of(function)
        asked = signature(function, follow_wrapped=False).parameters
        defaults = {key: p.default for key, p in asked.items() if p.default is not p.empty}
        for key in sorted((read | written) & beside.keys()):
            self._note(Place(key, beside, key, written=key in written), loaded)
        for key in own:
            self._note(Place(key, own, key), loaded)
        for key in defaults:
            self._note(Place(f"{name}({key})", defaults, key), loaded)
        own = vars(function)
        for key in [*own]:
            self._note(Place(f"{name}.{key}", own, key, written=key not in loaded), loaded)
        for key in sorted(loaded):
            if isinstance(value := getattr_static(kind, key, None), CODE):
                self.follow(key, value, kind)

    def _note(self, place: Place, loaded: frozenset[str] = frozenset()) -> None:
        if isinstance(value := place.value(), CODE):
            self.follow(place.name, value)
            return
        parted = isinstance(value, type | ModuleType | nn.Module)
        parted |= _of_user(type(value)) and hasattr(value, "__dict__")
        self.places.append(place._replace(whole=not parted))
        self.look_in(place.name, value, loaded, written=place.written)

    def look_in(
        self, name: str, value: Any, loaded: frozenset[str], *, written: bool = False
    ) -> None:
        """Note what code reads that loads these names of a class, a file, a module or an object."""
        if isinstance(value, nn.Module):
            self._module(name, value)
        elif isinstance(value, type | ModuleType):
            own = vars(value) if _of_user(value) else {}
            for key in sorted(loaded & own.keys()):
                if not isinstance(own[key], type | ModuleType):
                    self._note(Place(f"{name}.{key}", own, key, written=written), loaded)
        elif not isinstance(value, (Tensor, *CODE)) and hasattr(value, "__dict__"):
            kind, stored = type(value), frozenset[str]()
            if (id(value), loaded) in self._seen:
                return
            self._seen.add((id(value), loaded))
            every, own = loaded, vars(value)
            for key in () if of_library(kind) else sorted(loaded & {*dir(kind)}):
                self.follow(key, getattr_static(kind, key, None), kind)
                more, stores = used_by_type(kind, key)
                every, stored = every | more, stored | stores - loaded
            for key in sorted((every | stored) & own.keys()):
                writes = written or key in stored
                self._note(Place(f"{name}.{key}", own, key, written=writes), every)

    def _module(self, name: str, module: nn.Module) -> None:
        """Note what the forward pass of a module beside the model reads."""
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        for begin, part in module.named_modules(prefix=name):
            loaded = read_by_type(type(part)) - OWN | {"training"}
            for key in sorted(vars(part).keys() & loaded):
                self.places.append(Place(f"{begin}.{key}", vars(part), key, whole=False))
        tensors = dict(module.named_buffers(prefix=name))
        self.places += (Place(key, tensors, key, whole=False) for key in tensors)


def variables_of(code: Any) -> dict[str, Any]:
    """Values of variables by their names, and functions that keep what they gave, of a module or
    another function."""
    reached = Reached()
    for part in code.modules() if isinstance(code, nn.Module) else ():
        kind = type(part)
        for name, value in {kind.__name__: getattr_static(kind, "forward"), **vars(part)}.items():
            if isinstance(value, CODE):
                reached.follow(name, value, kind)
    if not isinstance(code, nn.Module):
        reached.follow("loss_fn", code)
    return {place.name: place.value() for place in reached.places if place.whole}


def _of_user(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return not of_library(value) and (name or "").partition(".")[0] not in OTHERS


def attributes_of(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """(place, name, value) of all attributes of a module and its submodules."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            yield f"{path}.{name}" if path else name, name, value


def contents(
    name: str, value: Any, held: dict[int, Any], counts: Callable[[Any], bool], deep: int = 0
) -> Iterator[tuple[str, Any]]:
    """A value and all that it holds, by the ways there, of that which `counts`; nothing of objects
    that are `held`, by their ids, to which these are added."""
    if id(value) in held or deep > DEEP or len(held) > MANY or not counts(value):
        return
    yield name, value
    if isinstance(value, PLAIN):
        return
    held[id(value)] = value  # an id means nothing once its object is gone
    if not isinstance(value, LEAVES):
        for key, each in _inside(value):
            yield from contents(f"{name}{key}", each, held, counts, deep + 1)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Parts of a container, an object or a function's variables, with their places."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", value[key]) for key in _ends([*value]))
    elif isinstance(value, list | tuple | deque):
        yield from _ends([(f"[{at}]", each) for at, each in enumerate(value)])
    elif isinstance(value, Set):  # in no order, unless they are told by their ids
        yield from (("[]", each) for each in value if not isinstance(each, (*PLAIN, tuple, Set)))
    elif isinstance(value, GeneratorType):
        if value.gi_frame is not None:
            yield from ((f".{key}", each) for key, each in value.gi_frame.f_locals.items())
    elif isinstance(value, CACHED):
        yield from (("()", each) for each in gc.get_referents(value))
    elif isinstance(value, partial):
        yield from (("", each) for each in (value.func, value.args, value.keywords))
    elif isinstance(value, FunctionType):
        loaded = names_in(value.__code__)[1]
        for each in cells_of(value).values():
            if not isinstance(each, nn.Module):
                yield "", each
                continue
            # Copies of the function share it: parameters that code finds by their names, or calls.
            for name in loaded & (each._parameters.keys() | each._modules.keys()):
                part = getattr(each, name)
                parts = [part] if isinstance(part, Tensor) else part.parameters()
                yield from (("", parameter) for parameter in parts)
        yield "", (value.__defaults__, value.__kwdefaults__)
    elif isinstance(value, nn.Module):
        yield from ((f".{key}", each) for key, each in vars(value).items() if key not in OWN)
    elif not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        yield from _copied(value)


def _copied(value: Any) -> Iterator[tuple[str, Any]]:
    """All that a copy of an object is made of."""
    try:
        parts = value.__reduce_ex__(4)
    except Exception:  # it cannot be copied
        return
    for part in parts[1:] if isinstance(parts, tuple) else ():
        spaces = part if isinstance(part, tuple) else (part,)  # that of slots comes second
        if all(isinstance(space, Mapping | None) for space in spaces):
            for space in filter(None, spaces):
                yield from ((f".{key}", space[key]) for key in space)
        else:
            yield "", [*part] if isinstance(part, Iterator) else part


def _ends(every: list) -> list:
    return every[:LONG] + every[LONG:][-LONG:]


def sample(tensor: Tensor, most: int) -> Tensor:
    """A copy of a tensor's values, from the first to the last, of which there are at `most` so
    many."""
    whole, count = tensor.numel(), min(tensor.numel(), most)
    at = torch.arange(count, device=tensor.device) * (whole - 1) // max(1, count - 1)
    return tensor.detach().take(at)
