"""Names that code reads and writes, by its bytecode and that of what it calls."""

from __future__ import annotations

import dis
import inspect
from functools import cache
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

LIBRARIES = frozenset(("torch", "builtins", "numpy", "math", "functools", "itertools", "typing"))
"""Their functions read nothing that a user changes."""
WRITERS = frozenset(("setattr", "register_buffer", "copy_"))
"""Calls by which code writes attributes that it names in text."""
READERS = frozenset(("getattr", "attrgetter", "vars", "__dict__"))
"""Names by which code reads them."""


def read_by_type(kind: type, method: str = "forward") -> frozenset[str]:
    """Attributes that a method may read, by itself or by what it calls, and does not write."""
    return frozenset.difference(*used_by_type(kind, method))


@cache
def used_by_type(kind: type, method: str) -> tuple[frozenset[str], frozenset[str]]:
    """Attributes that a method, what it calls and what wraps it may read, and those they write."""
    loaded, stored, pending, seen = set[str](), set[str](), [getattr(kind, method, None)], set()
    while pending:
        function = pending.pop()
        pending += filter(None, [getattr(function, "__wrapped__", None)])
        function = getattr(function, "fget", None) or getattr(function, "__func__", function)
        if not isinstance(function, FunctionType) or function.__code__ in seen:
            continue
        seen.add(function.__code__)
        read, more, written = names_in(function.__code__)
        loaded |= more
        stored |= written
        pending += [inspect.getattr_static(kind, name, None) for name in more]
        called = [function.__globals__.get(name) for name in read]
        called += cells_of(function).values()
        pending += [each for each in called if each is not None and not of_library(each)]
    return frozenset(loaded), frozenset(stored)


@cache
def names_in(code: CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Variables that code reads beyond its own, attributes that it reads, and both that it
    writes."""
    read, loaded, stored = set[str](), set[str](), set[str]()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            loaded.add(step.argval)
        elif step.opname in ("STORE_ATTR", "STORE_GLOBAL"):
            stored.add(step.argval)
    texts = [const for const in code.co_consts if isinstance(const, str)]
    for names, found in ((WRITERS, stored), (READERS, loaded)):
        if names & (read | loaded):
            found.update(texts)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            for every, more in zip((read, loaded, stored), names_in(inner), strict=True):
                every |= more
    return frozenset(read), frozenset(loaded), frozenset(stored)


def cells_of(function: FunctionType) -> dict[str, Any]:
    """Variables of the functions around one that it reads, by their names."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != CellType()}


def of_library(value: Any) -> bool:
    """Whether a function or module is of a library, whose code reads nothing that users change."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return (name or "builtins").partition(".")[0] in LIBRARIES
