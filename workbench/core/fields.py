"""Fields of a run's spec as people write them: what each takes, and its values as text and back.

A dataclass declares a field once, with its type, default and docstring. Flags, ``--set``, sweep
files, forms and axes parse, check, describe and format its values here, so that a misspelt word or
a number in quotes is one clear sentence everywhere, and what one of them writes the others read.

Fields whose names end in ``_memory`` or ``_bytes_per_s`` are amounts: people write them with units.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from workbench.core import methods, schema
from workbench.core.bytesize import FACTORS, parse_bytes

MEMORY, SPEED = "_memory", "_bytes_per_s"
"""Ends of names of fields that are amounts."""
NO_LIMIT = "no limit"


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a spec, of its model, or of a method's options."""

    name: str
    kind: Any
    """Annotation of its values."""
    default: Any
    """`MISSING` where there is none."""
    about: str
    """Its docstring, on one line."""
    methods: tuple[str, ...] = ()
    """Names of the methods that have it, of an option; empty of what all methods have."""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Types that it takes."""
        united = get_origin(self.kind) in (UnionType, Union)
        return get_args(self.kind) if united else (self.kind,)

    @property
    def is_amount(self) -> bool:
        """Whether it takes bytes, or bytes a second."""
        return self.name.endswith((MEMORY, SPEED))

    @property
    def takes(self) -> str:
        """Values that it takes, in words: ``a whole number or auto``."""
        if self.name == "method":
            return f"{', '.join(methods.known())}, or all"
        if self.is_amount:
            memory = self.name.endswith(MEMORY)
            example = "an amount such as 32GiB" if memory else "a speed such as 16GB/s"
            return f"{example}, or {NO_LIMIT}"
        return schema.describe(self.kind).replace("null", "none")

    @property
    def choices(self) -> tuple[str, ...]:
        """Words that it takes, where there are any."""
        if self.name == "method":
            return tuple(methods.known())
        found: list[str] = []
        for kind in self.kinds:
            found += [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else []
            found += ["true", "false"] if kind is bool else []
            found += [self.format(None)] if kind is NoneType else []
        return tuple(found)

    def parse(self, text: str) -> Any:
        """Text as a value; raises ValueError."""
        word = text.lower()
        if NoneType in self.kinds and word in ("none", "null", NO_LIMIT):
            return None
        if self.is_amount:
            return self.check(self.exact(self.number(text), text))
        for kind in self.kinds:
            if get_origin(kind) is Literal and text in get_args(kind):
                return text
            if kind is bool and word in ("true", "false"):
                return word == "true"
            if kind in (int, float) and (value := _finite(kind, text)) is not None:
                return self.check(value)
            if kind is str:
                return text
        raise self.wrong(text)

    def check(self, value: Any) -> Any:
        """A value out of JSON as the field holds it: where any number is meant, 1 is 1.0, so that
        both are one key, and an amount may be text. Raises ValueError."""
        if self.is_amount and isinstance(value, str):
            return self.parse(value)
        try:
            return schema.read_as(self.kind, value, self.name)
        except ValueError:
            if type(value) is int and abs(value) >= schema.WHOLE and int in self.kinds:
                digits = int(math.log10(abs(value))) + 1
                words = f"{self.name} has {digits} digits; it must have 64 bits at most"
                raise ValueError(words) from None
            raise

    def format(self, value: Any) -> str:
        """A value as people would type it, exactly: ``90GiB``, ``none``, ``0.5``."""
        if value is None:
            return NO_LIMIT if self.is_amount else "none"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int | float) and self.is_amount and value > 0:
            memory = self.name.endswith(MEMORY)
            return _with_unit(value, binary=memory) + ("" if memory else "/s")
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        return str(value)

    def number(self, text: str) -> Decimal:
        """Text as a number, of an amount with or without a unit; raises ValueError."""
        text = text.strip()
        if (found := decimal(text)) is not None:
            return found
        if not self.is_amount:
            raise self.wrong(text)
        per_second = r"/ *s(?:econd)?$" if self.name.endswith(SPEED) else "$"
        try:
            return Decimal(parse_bytes(re.sub(per_second, "", text)))
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    def exact(self, number: Decimal, text: str) -> int | float:
        """A number in the type of the field; raises ValueError for a fraction where it takes whole
        numbers, which quotes `text`."""
        if float in self.kinds:
            return float(number)
        if number != number.to_integral_value():
            raise self.wrong(text, f"{number.normalize():f} is not a whole number")
        return int(number)

    def wrong(self, text: str, why: str = "") -> ValueError:
        """The error of a text that the field does not take."""
        shown = text if len(text) <= 60 else text[:57] + "..."
        return ValueError(f"{self.name} is {shown!r}; {why or f'it must be {self.takes}'}")


@cache
def fields_of(kind: type) -> dict[str, Field]:
    """Fields of a dataclass by their names, in its order."""
    hints, about = get_type_hints(kind), schema.docstrings(kind)
    return {
        each.name: Field(
            name=each.name,
            kind=hints[each.name],
            default=each.default,
            about=about.get(each.name, ""),
        )
        for each in fields(kind)
    }


def decimal(text: str) -> Decimal | None:
    """A number as it is written; None for what is none, or is beyond all that is counted here."""
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number) < Decimal(10) ** 30 else None


def _finite(kind: type, text: str) -> int | float | None:
    """None where the text is no finite number of the kind."""
    with suppress(ValueError):
        value = kind(text)
        return value if kind is int or math.isfinite(value) else None
    return None


def _with_unit(value: float, *, binary: bool) -> str:
    """In the largest unit that says it exactly; plain where that is not short."""
    if value != int(value):
        return repr(value)
    for unit in ("TiB", "GiB", "MiB", "KiB") if binary else ("TB", "GB", "MB", "KB"):
        whole, rest = divmod(int(value), FACTORS[unit.lower()])
        if whole and not rest:
            return f"{whole}{unit}"
    return str(int(value)) + "B" * (not binary)
