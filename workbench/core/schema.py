"""One check for every file format: a dataclass is the schema, its annotations are what must fit.

`read_as` turns parsed JSON into a dataclass, or raises a ValueError with the place, the value and
a description of a value that would fit. Unknown keys, missing keys and wrong types are refused;
keys that have a default may be absent. Numbers must be finite, whole numbers must have 64 bits at
most (tables hold no larger ones). A `Measured` number may be "nan", "inf" or "-inf", as text:
strict JSON has no other way to write a loss that is not a number.

Readers are built once for each annotation. The place of an error is put together while the error
rises, so a file that fits pays nothing for it.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     at: list[float]
    ...     name: str = ""
    >>> read_as(Point, {"at": [1, 2.5]}, "the point")
    Point(at=[1.0, 2.5], name='')
    >>> read_as(Point, {"at": [1, None]}, "the point")
    Traceback (most recent call last):
    ...
    ValueError: the point: at[1] is None; it must be a number
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Read = Callable[[Any], Any]

Measured = Annotated[float, "measured"]
"""A number that came out of a run, and so may be "nan", "inf" or "-inf"."""

NOT_FINITE = ("nan", "inf", "-inf")
WHOLE = 2**63
"""Whole numbers lie below this, and at or above its negative."""


class Misfit(ValueError):
    """A value that does not fit its annotation; `place` grows as the error rises."""

    def __init__(self, value: Any, wanted: str) -> None:
        super().__init__(value, wanted)
        self.place = ""
        shown = repr(value)
        self.text = f"{shown if len(shown) <= 80 else shown[:77] + '...'}; it must be {wanted}"


class Fault(Misfit):
    """Something wrong with a place as a whole, said in a sentence of its own."""

    def __init__(self, sentence: str) -> None:
        super().__init__(None, "")
        self.text = sentence


def read_as(kind: Any, data: Any, where: str) -> Any:
    """`data`, as it comes out of a JSON parser, as a value of the annotation `kind`.

    Raises ValueError, one sentence that begins with `where`.
    """
    try:
        return _reader(kind)(data)
    except Fault as error:
        raise ValueError(": ".join(filter(None, (where, error.place, error.text)))) from None
    except Misfit as error:
        named = f"{where}: {error.place}" if error.place else where
        raise ValueError(f"{named} is {error.text}") from None


def describe(kind: Any) -> str:
    """What fits an annotation, in words: ``a whole number or auto``."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(describe(each) for each in inner)
    if origin is Literal:
        return " or ".join(str(each) for each in inner)
    if origin is Annotated:
        return "a number, or one of the texts nan, inf, -inf"
    if origin in (list, tuple):
        return f"a list of {len(inner)} values" if _has_length(origin, inner) else "a list"
    return _WORDS.get(kind, "an object")


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
    list: "a list",
    Any: "anything",
}


@cache
def _reader(kind: Any) -> Read:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin in (Union, UnionType):
        return _union(kind, inner)
    if origin is Literal:
        return _plain(kind, lambda v: any(v == each and type(v) is type(each) for each in inner))
    if origin is Annotated:
        return _measured
    if origin is list or (origin is tuple and not _has_length(origin, inner)):
        return _listed(kind, origin, _reader(inner[0]))
    if origin is tuple:
        return _row(kind, [_reader(each) for each in inner])
    if origin is dict:
        return _mapping(_reader(inner[0]), _reader(inner[1]))
    if is_dataclass(kind):
        return _record(kind)
    if kind is float:
        return _number
    if kind is int:
        return _plain(int, lambda v: type(v) is int and -WHOLE <= v < WHOLE)
    return _plain(kind, lambda v: isinstance(v, kind))


def _has_length(origin: Any, inner: tuple[Any, ...]) -> bool:
    return origin is tuple and not (len(inner) == 2 and inner[1] is Ellipsis)


def _plain(kind: Any, fits: Callable[[Any], bool]) -> Read:
    def read(value: Any) -> Any:
        if not fits(value):
            raise Misfit(value, describe(kind))
        return value

    return read


def _number(value: Any) -> float:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise Misfit(value, describe(float)) from None
    if type(value) is not float or not isfinite(value):
        raise Misfit(value, describe(float))
    return value


def _measured(value: Any) -> float:
    if isinstance(value, str) and value in NOT_FINITE:
        return float(value)
    if type(value) is float:  # NaN, too: a record that is in memory already
        return value
    try:
        return _number(value)
    except Misfit:
        raise Misfit(value, describe(Measured)) from None


def _union(kind: Any, inner: tuple[Any, ...]) -> Read:
    reads = [_reader(each) for each in inner]

    def read(value: Any) -> Any:
        deepest: Misfit | None = None
        for each in reads:
            try:
                return each(value)
            except Misfit as error:  # the one that came furthest knows best
                if error.place and deepest is None:
                    deepest = error
        raise deepest or Misfit(value, describe(kind))

    return read


def _listed(kind: Any, origin: type, item: Read) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise Misfit(value, describe(kind))
        return origin(_at(item, each, f"[{i}]") for i, each in enumerate(value))

    return read


def _row(kind: Any, items: list[Read]) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise Misfit(value, describe(kind))
        return tuple(_at(items[i], each, f"[{i}]") for i, each in enumerate(value))

    return read


def _mapping(key: Read, item: Read) -> Read:
    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise Misfit(value, "an object")
        return {_at(key, k, f"key {k!r}"): _at(item, v, f"{k}") for k, v in value.items()}

    return read


def _record(kind: type) -> Read:
    hints = get_type_hints(kind, include_extras=True)
    reads = {field.name: _reader(hints[field.name]) for field in fields(kind) if field.init}
    needed = [
        field.name
        for field in fields(kind)
        if field.init and field.default is MISSING and field.default_factory is MISSING
    ]

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise Misfit(value, "an object")
        for name in value:
            if name not in reads:
                raise Fault(f"unknown field {name!r}; known: {', '.join(sorted(reads))}")
        for name in needed:
            if name not in value:
                raise Fault(f"the field {name!r} is missing")
        values = {name: _at(reads[name], each, name) for name, each in value.items()}
        try:
            return kind(**values)
        except Misfit:
            raise
        except ValueError as error:  # the dataclass's own check of its values
            raise Fault(str(error)) from None

    return read


def _at(read: Read, value: Any, place: str) -> Any:
    try:
        return read(value)
    except Misfit as error:
        inner = error.place
        error.place = place + (inner if inner[:1] in ("", "[") else f".{inner}")
        raise
