"""Variables beside a module that its code names: those of its files, of functions around it, of
classes, defaults of arguments and attributes of functions. They may hold state as the module's own
attributes do."""

from __future__ import annotations

import sys
from functools import lru_cache, partial
from inspect import getattr_static
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from workbench.model.code_names import names_in, of_library, used_by_type

CACHED = type(lru_cache(len))
"""Functions that keep what they gave."""
CODE = (FunctionType, MethodType, partial, CACHED, property, staticmethod, classmethod)
OTHERS = sys.stdlib_module_names | {"transformers", "workbench"}
"""Modules whose code is not followed, besides those of `of_library`."""


def variables_of(code: Any) -> dict[str, Any]:
    """Values of variables by their names, and functions that keep what they gave, of a module or
    another function."""
    reached = _Reached()
    if not isinstance(code, nn.Module):
        reached.enter("loss_fn", code, frozenset())
    for part in code.modules() if isinstance(code, nn.Module) else ():
        if _of_user(type(part)):
            forward = getattr_static(type(part), "forward", None)
            reached.follow(type(part).__name__, forward, type(part))
        for name, value in vars(part).items():
            if isinstance(value, CODE):
                reached.follow(name, value, type(part))
    return reached.found


class _Reached:
    """What code has named so far."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._seen: set[Any] = set()

    def follow(self, name: str, function: Any, kind: type) -> None:
        """Note what a function names, and functions that it calls; `kind` is that of its self."""
        if isinstance(function, property | staticmethod | classmethod):
            function = getattr(function, "fget", None) or getattr(function, "__func__", None)
        if isinstance(function, CACHED):
            self.found[name] = function
            function = function.__wrapped__
        if isinstance(function, partial):
            self.found[f"{name}()"] = function.args, function.keywords
            self.follow(name, function.func, kind)
        elif isinstance(function, MethodType):
            self.enter(name, function.__self__, frozenset([function.__name__]))
            self.follow(name, function.__func__, type(function.__self__))
        elif isinstance(function, FunctionType) and (function, kind) not in self._seen:
            self._seen.add((function, kind))
            if _of_user(function):
                self._read(function, kind)

    def _read(self, function: FunctionType, kind: type) -> None:
        name, code = function.__name__, function.__code__
        read, loaded, written = names_in(code)
        beside = function.__globals__
        for key in sorted((read | written) & beside.keys()):
            self.enter(key, beside[key], loaded)
        for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if cell != CellType():
                self.enter(key, cell.cell_contents, loaded)
        self.enter(name, (function.__defaults__, function.__kwdefaults__), loaded)
        for key, value in vars(function).items():
            self.enter(f"{name}.{key}", value, loaded)
        for key in sorted(loaded):
            if isinstance(value := getattr_static(kind, key, None), CODE):
                self.follow(key, value, kind)

    def enter(self, name: str, value: Any, loaded: frozenset[str]) -> None:
        """Note a variable; of a class, a file or an object of the user's what code reads there."""
        if isinstance(value, CODE):
            self.follow(name, value, object)
        elif isinstance(value, type | ModuleType):
            own = vars(value) if _of_user(value) else {}
            for key in sorted(loaded & own.keys()):
                if not isinstance(own[key], type | ModuleType):
                    self.enter(f"{name}.{key}", own[key], frozenset())
        elif _of_user(kind := type(value)) and hasattr(value, "__dict__"):
            if isinstance(value, nn.Module) or (id(value), loaded) in self._seen:
                return
            self._seen.add((id(value), loaded))
            for key in sorted(loaded & {*dir(kind), "__call__"}):
                self.follow(key, getattr_static(kind, key, None), kind)
                loaded = loaded.union(*used_by_type(kind, key))
            for key in sorted(loaded & vars(value).keys()):
                self.enter(f"{name}.{key}", vars(value)[key], loaded)
        elif not isinstance(value, nn.Module):
            self.found[name] = value


def _of_user(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return not of_library(value) and (name or "").partition(".")[0] not in OTHERS
