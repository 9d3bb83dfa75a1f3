"""Reads what people type for a field of a sweep: one value, a list, or a range.

The rule, in a sentence, is `RULE`. Numbers are decimal all the way, so 0.1..0.3 step 0.1 has three
values.
"""

from __future__ import annotations

import csv
import math
import re
import types
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, Union, get_args, get_origin

from workbench.core import methods
from workbench.core.bytesize import FACTORS, parse_bytes
from workbench.runs.overrides import describe, hints, parse_value

RULE = (
    "One value, a list (2, 4, 8), a range that may reach its end (2..6, 2..16 step 2, 1..64 x2), "
    "or several of these with commas between; a text that holds a comma goes in double quotes."
)
MOST_VALUES = 1000
"""In one field."""
NO_LIMIT = "no limit"
MEMORY, SPEED = "_memory", "_bytes_per_s"
"""Ends of names of fields that take units."""

_RANGE = re.compile(r"(?P<start>.*?)\.\.(?P<end>.*?)(?:\s+step\s+(?P<step>.+)|\s*x(?P<times>.+))?")


def parse_axis(name: str, text: str) -> list[Any]:
    """The values of the field, in order and each once.

    Raises ValueError naming the field, what was typed and what would be right.

    >>> parse_axis("layers", "2, 4..8 step 2"), parse_axis("device_memory", "1GiB..4GiB x2")
    ([2, 4, 6, 8], [1073741824, 2147483648, 4294967296])
    """
    values: list[Any] = []
    for item in _items(name, text):
        if name == "method":
            every = [*methods.METHODS, *methods.installed()]
            values += every if item == "all" else [methods.find(item).name]
        elif is_number(name) and ".." in item:
            values += _range(name, item)
        else:
            values.append(_value(name, item))
    unique = list(dict.fromkeys(values))
    if len(unique) > MOST_VALUES:
        raise _wrong(name, text, f"it has {len(unique)} values; at most {MOST_VALUES} are allowed")
    return unique


def format_axis(name: str, values: list[Any]) -> str:
    """Text that `parse_axis` takes for these values."""
    return ", ".join(format_value(name, value) for value in values)


def format_value(name: str, value: Any) -> str:
    """One value as people would type it, exactly.

    >>> format_value("host_memory", 90 * 2**30), format_value("clip", None)
    ('90GiB', 'none')
    """
    if value is None:
        return NO_LIMIT if name.endswith((MEMORY, SPEED)) else "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and name.endswith((MEMORY, SPEED)) and value > 0:
        return _with_unit(value, binary=name.endswith(MEMORY)) + "/s" * name.endswith(SPEED)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, str) and (re.search(r'[,"]', value) or value != value.strip()):
        return '"' + value.replace('"', '""') + '"'
    return str(value)


def takes(name: str) -> str:
    """Values that the field takes, in words."""
    if name == "method":
        return f"{', '.join(methods.known())}, or all"
    if name.endswith(MEMORY):
        return f"an amount such as 32GiB, or {NO_LIMIT}"
    if name.endswith(SPEED):
        return f"a speed such as 16GB/s, or {NO_LIMIT}"
    return describe(name)


def choices(name: str) -> tuple[str, ...]:
    """The words that the field takes, where there are any."""
    if name == "method":
        return tuple(methods.known())
    found: list[str] = []
    for kind in kinds(name):
        found += [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else []
        found += ["true", "false"] if kind is bool else []
        found += [format_value(name, None)] if kind is types.NoneType else []
    return tuple(found)


def kinds(name: str) -> tuple[Any, ...]:
    """The types that the field takes; raises ValueError for an unknown field."""
    hint = hints().get(name)
    if hint is None:
        describe(name)  # raises, naming the known ones
    return get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)


def is_number(name: str) -> bool:
    """Whether the field takes numbers, so that a range means something."""
    return int in kinds(name) or float in kinds(name)


def _items(name: str, text: str) -> list[str]:
    try:
        items = next(csv.reader([" ".join(text.split("\n"))], skipinitialspace=True, strict=True))
    except (csv.Error, StopIteration):
        raise _wrong(name, text, "a double quote is not closed") from None
    items = [item.strip() for item in items]
    if not all(items):
        raise _wrong(name, text, f"a value is missing; it must be {takes(name)}")
    return items


def _range(name: str, item: str) -> list[Any]:
    found = _RANGE.fullmatch(item)
    start, end = _number(name, found["start"]), _number(name, found["end"])
    if end < start:
        raise _wrong(name, item, "the end is below the start; write the smaller number first")
    if found["times"] is not None:
        times = _decimal(found["times"])
        if times is None or times <= 1 or start <= 0:
            raise _wrong(name, item, "x needs a factor above 1 and a start above 0, as in 1..64 x2")
        grow, count = lambda v: v * times, math.log(end / start) / math.log(times)  # noqa: E731
    else:
        step = Decimal(1) if found["step"] is None else _number(name, found["step"])
        if step <= 0:
            raise _wrong(name, item, "the step must be above 0, as in 2..16 step 2")
        if found["step"] is None and (float in kinds(name) or name.endswith(MEMORY)):
            raise _wrong(name, item, "say how it goes on: start..end step 2, or start..end x2")
        grow, count = lambda v: v + step, (end - start) / step  # noqa: E731
    if count >= MOST_VALUES:
        raise _wrong(name, item, f"it has more than {MOST_VALUES} values")
    values, value = [], start
    while value <= end:
        values.append(_exact(name, value, item))
        value = grow(value)
    return values


def _value(name: str, item: str) -> Any:
    if not name.endswith((MEMORY, SPEED)):
        return parse_value(name, item)
    if item.lower() in ("none", "null", NO_LIMIT):
        return None
    return _exact(name, _number(name, item), item)


def _number(name: str, text: str) -> Decimal:
    text = text.strip()
    number = _decimal(text)
    if number is None and name.endswith((MEMORY, SPEED)):
        amount = re.sub(r"/ *s(?:econd)?$", "", text) if name.endswith(SPEED) else text
        try:
            return Decimal(parse_bytes(amount))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if number is None:
        raise _wrong(name, text, f"it must be {takes(name)}")
    return number


def _decimal(text: str) -> Decimal | None:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number) < Decimal(10) ** 30 else None


def _exact(name: str, number: Decimal, item: str) -> int | float:
    """The number in the type of the field."""
    if float in kinds(name):
        return float(number)
    if number != number.to_integral_value():
        raise _wrong(name, item, f"{number.normalize():f} is not a whole number")
    return int(number)


def _with_unit(value: float, *, binary: bool) -> str:
    """In the largest unit that says it exactly; plain where that is not short."""
    if value == int(value):
        for unit in ("TiB", "GiB", "MiB", "KiB") if binary else ("TB", "GB", "MB", "KB"):
            whole, rest = divmod(int(value), FACTORS[unit.lower()])
            if whole and not rest:
                return f"{whole}{unit}"
        return str(int(value)) + "B" * (not binary)
    return repr(value)


def _wrong(name: str, text: str, why: str) -> ValueError:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return ValueError(f"{name} is {shown!r}; {why}")
