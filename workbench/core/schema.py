"""One check for every file format: a dataclass is the schema, its annotations are what must fit.

`read_as` turns parsed JSON into a dataclass, or raises a ValueError with the place, the value and
a description of a value that would fit. Unknown keys, missing keys and wrong types are refused;
keys that have a default may be absent. A TypedDict stays a dict, and may hold more than it names.
`read_fields` is for what other versions wrote. Numbers must be finite, whole numbers must have
64 bits at most (tables hold no larger ones). A `Measured` number may be "nan", "inf" or "-inf", as
text: strict JSON has no other way to write a loss that is not a number.

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

import ast
import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import repeat
from math import isfinite
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Read = Callable[[Any], Any]

Measured = Annotated[float, "measured"]
"""A number that came out of a run, and so may be "nan", "inf" or "-inf"."""

NOT_FINITE = ("nan", "inf", "-inf")
DEEPEST = 40
"""Lists and objects within each other where anything may stand: code that copies or prints such a
value calls itself as often."""
WHOLE = 2**63
"""Whole numbers lie below this, and at or above its negative."""


class Misfit(ValueError):
    """A value that does not fit its annotation; `place` grows as the error rises."""

    def __init__(self, value: Any, wanted: str) -> None:
        super().__init__(value, wanted)
        self.place = ""

    @property
    def text(self) -> str:
        """The value and what would fit, in words."""
        value, wanted = self.args
        try:
            shown = repr(value)
        except RecursionError:
            shown = f"a {type(value).__name__} nested too deep"
        return f"{shown if len(shown) <= 80 else shown[:77] + '...'}; it must be {wanted}"

    def within(self, place: str) -> Misfit:
        """This misfit, seen from what is around it."""
        inner = self.place
        self.place = place + (inner if inner[:1] in ("", "[") else f".{inner}")
        return self


class Fault(Misfit):
    """Something wrong with a place as a whole, said in a sentence of its own."""

    def __init__(self, sentence: str) -> None:
        super().__init__(None, sentence)

    @property
    def text(self) -> str:
        """The sentence."""
        return self.args[1]


def read_as(kind: Any, data: Any, where: str) -> Any:
    """`data`, as it comes out of a JSON parser, as a value of the annotation `kind`.

    Raises ValueError, one sentence that begins with `where`, where that is not empty.
    """
    return _read(_reader(kind), data, where)


def read_fields(kind: type, data: Any, where: str, needed: frozenset[str]) -> dict[str, Any]:
    """`data` as the fields of a dataclass that another version of it may have written: a dict.

    Fields that went since are kept as they are, those that came get their defaults, but for the
    `needed` ones, of dataclasses within it, too. The dataclass's own check is not made: what is
    refused now may have been right then. Raises ValueError as `read_as` does.
    """
    return _read(_of_any_version(kind, needed), data, where)


def _read(read: Read, data: Any, where: str) -> Any:
    try:
        return read(data)
    except Fault as error:
        raise ValueError(": ".join(filter(None, (where, error.place, error.text)))) from None
    except Misfit as error:
        named = ": ".join(filter(None, (where, error.place))) or "it"
        raise ValueError(f"{named} is {error.text}") from None


def check_words(made: Any) -> None:
    """Raise ValueError for a field of a dataclass that takes certain words and holds none of them:
    its constructor takes anything."""
    for name, words in _words_of(type(made)).items():
        if (value := getattr(made, name)) not in words:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(words)}")


@cache
def _words_of(kind: type) -> dict[str, tuple[str, ...]]:
    hints = get_type_hints(kind).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


@cache
def docstrings(kind: type) -> Mapping[str, str]:
    """Field -> the text below it in its dataclass, or in one that this inherits, on one line."""
    told: dict[str, str] = {}
    for owner in reversed([each for each in kind.__mro__ if is_dataclass(each)]):
        known = _told_in(owner.__module__)
        if (own := known.get(owner.__qualname__)) is None:  # it is made in a function
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
            own = _told(node)
        told |= own
    return MappingProxyType(told)


@cache
def _told_in(module: str) -> dict[str, dict[str, str]]:
    """The texts in each class of a module, which is parsed once: for each class,
    `inspect.getsource` parses it anew."""
    nodes = ast.parse(inspect.getsource(sys.modules[module])).body
    return {node.name: _told(node) for node in nodes if isinstance(node, ast.ClassDef)}


def _told(node: ast.ClassDef) -> dict[str, str]:
    told = {}
    for field, below in itertools.pairwise(node.body):
        words = getattr(getattr(below, "value", None), "value", None)
        if isinstance(field, ast.AnnAssign) and isinstance(words, str):
            told[field.target.id] = " ".join(words.replace("`", "").split())
    return told


def describe(kind: Any) -> str:
    """Values that fit an annotation, in words: ``a whole number or auto``."""
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
        return _anything
    if origin in (Union, UnionType):
        return _union(kind, inner)
    if origin is Literal:
        return _plain(kind, _choice(inner))
    if origin is Annotated:
        return _measured
    if origin is list or (origin is tuple and not _has_length(origin, inner)):
        return _listed(kind, origin, inner[0])
    if origin is tuple:
        return _row(kind, [_reader(each) for each in inner])
    if origin is dict:
        return _open({}, others=_reader(inner[1]))
    if is_dataclass(kind):
        return _record(kind)
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        return _open({name: _reader(h) for name, h in hints.items()}, kind.__required_keys__)
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


def _choice(values: Iterable[Any]) -> Callable[[Any], bool]:
    """Whether a value is one of these, and no other type that equals one: True is not 1."""
    choices = {(type(each), each) for each in values}
    types = {kind for kind, _ in choices}
    return lambda v: type(v) in types and (type(v), v) in choices


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
    if type(value) is float:  # NaN, too: a record that is in memory already
        return value
    if isinstance(value, str) and value in NOT_FINITE:
        return float(value)
    try:
        return _number(value)
    except Misfit:
        raise Misfit(value, describe(Measured)) from None


def _anything(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise Misfit(value, f"nested at most {DEEPEST} deep")
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            if isinstance(each, dict | list | tuple):
                _anything(each, depth + 1)
    return value


def _union(kind: Any, inner: tuple[Any, ...]) -> Read:
    plain = [value for each in inner if get_origin(each) is Literal for value in get_args(each)]
    is_plain = _choice([*plain, *([None] if NoneType in inner else [])])
    reads = [_reader(each) for each in inner]

    def read(value: Any) -> Any:
        if is_plain(value):  # the others would each raise an error first
            return value
        deepest: Misfit | None = None
        for each in reads:
            try:
                return each(value)
            except Misfit as error:  # the one that came furthest knows best
                if error.place and deepest is None:
                    deepest = error
        raise deepest or Misfit(value, describe(kind))

    return read


def _listed(kind: Any, origin: type, of: Any) -> Read:
    item, numbers = _reader(of), {float, Measured} & {of, *get_args(of)}

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise Misfit(value, describe(kind))
        if numbers and set(map(type, value)) == {float} and isfinite(sum(value)):
            return origin(value)  # a long series, at once
        return origin(_each(repeat(item), value))

    return read


def _row(kind: Any, items: list[Read]) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise Misfit(value, describe(kind))
        return tuple(_each(items, value))

    return read


def _each(items: Iterable[Read], values: Sequence[Any]) -> list[Any]:
    made: list[Any] = []
    try:
        for item, value in zip(items, values, strict=False):
            made.append(item(value))
    except Misfit as error:
        raise error.within(f"[{len(made)}]") from None
    return made


def _record(kind: type) -> Read:
    hints = get_type_hints(kind, include_extras=True)
    reads = {field.name: _reader(hints[field.name]) for field in fields(kind) if field.init}
    needed = {
        field.name
        for field in fields(kind)
        if field.init and field.default is MISSING and field.default_factory is MISSING
    }

    read_all = _open(reads, frozenset(needed))

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        for name in sorted(value.keys() - reads.keys()) if isinstance(value, dict) else ():
            raise Fault(f"unknown field {name!r}; known: {', '.join(sorted(reads))}")
        values = read_all(value)
        try:
            return kind(**values)
        except ValueError as error:  # the dataclass's own check of its values
            raise Fault(str(error)) from None

    return read


@cache
def _of_any_version(kind: type, needed: frozenset[str]) -> Read:
    hints = get_type_hints(kind, include_extras=True)
    reads, defaults = {}, {}
    for each in fields(kind):
        inner = hints[each.name]
        loose = is_dataclass(inner)
        reads[each.name] = _of_any_version(inner, needed) if loose else _reader(inner)
        if each.default is not MISSING:
            defaults[each.name] = each.default
    return _open(reads, needed & reads.keys(), defaults)


def _open(
    reads: dict[str, Read],
    needed: frozenset[str] = frozenset(),
    defaults: Mapping[str, Any] = MappingProxyType({}),
    others: Read = _anything,
) -> Read:
    """Read a dict with these fields, and `others`."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Misfit(value, "an object")
        for name in sorted(needed - value.keys()):
            raise Fault(f"the field {name!r} is missing")
        made = dict(defaults)
        try:
            for name, each in value.items():
                made[name] = reads.get(name, others)(each)
        except Misfit as error:
            raise error.within(name) from None
        return made

    return read
