"""Reads what people type for a field of a sweep: one value, a list, or a range.

The rule, in a sentence, is `RULE`. Numbers are decimal all the way, so 0.1..0.3 step 0.1 has three
values.
"""

from __future__ import annotations

import csv
import math
import re
from decimal import Decimal
from typing import Any

from workbench.core import methods
from workbench.core.fields import MEMORY, Field, decimal
from workbench.core.spec import field_of

RULE = (
    "One value, a list (2, 4, 8), a range that may reach its end (2..6, 2..16 step 2, 1..64 x2), "
    "or several of these with commas between; a text that holds a comma goes in double quotes."
)
MOST_VALUES = 1000
"""In one field."""

_RANGE = re.compile(r"(?P<start>.*?)\.\.(?P<end>.*?)(?:\s+step\s+(?P<step>.+)|\s*x(?P<times>.+))?")


def parse_axis(name: str, text: str) -> list[Any]:
    """The values of the field, in order and each once.

    Raises ValueError naming the field, what was typed and what would be right.

    >>> parse_axis("layers", "2, 4..8 step 2"), parse_axis("device_memory", "1GiB..4GiB x2")
    ([2, 4, 6, 8], [1073741824, 2147483648, 4294967296])
    """
    field, values = field_of(name), []
    for item in _items(field, text):
        if name == "method":
            every = [*methods.METHODS, *methods.installed()]
            values += every if item == "all" else [methods.find(item).name]
        elif {int, float} & {*field.kinds} and ".." in item:
            values += _range(field, item)
        else:
            values.append(field.parse(item))
    unique = list(dict.fromkeys(values))
    if len(unique) > MOST_VALUES:
        why = f"it has {len(unique)} values; at most {MOST_VALUES} are allowed"
        raise field.wrong(text, why)
    return unique


def format_axis(name: str, values: list[Any]) -> str:
    """Text that `parse_axis` takes for these values.

    >>> format_axis("host_memory", [90 * 2**30, None]), format_axis("text", ["a, b", "c"])
    ('90GiB, no limit', '"a, b", c')
    """
    return ", ".join(map(_quoted, map(field_of(name).format, values)))


def _quoted(text: str) -> str:
    plain = text == text.strip() and not re.search(r'[,"]', text)
    return text if plain else '"' + text.replace('"', '""') + '"'


def _items(field: Field, text: str) -> list[str]:
    try:
        items = next(csv.reader([" ".join(text.split("\n"))], skipinitialspace=True, strict=True))
    except (csv.Error, StopIteration):
        raise field.wrong(text, "a double quote is not closed") from None
    items = [item.strip() for item in items]
    if not all(items):
        raise field.wrong(text, f"a value is missing; it must be {field.takes}")
    return items


def _range(field: Field, item: str) -> list[Any]:
    found = _RANGE.fullmatch(item)
    start, end = field.number(found["start"]), field.number(found["end"])
    if end < start:
        raise field.wrong(item, "the end is below the start; write the smaller number first")
    if found["times"] is not None:
        times = decimal(found["times"])
        if times is None or times <= 1 or start <= 0:
            raise field.wrong(item, "x needs a factor above 1 and a start above 0, as in 1..64 x2")
        grow, count = lambda v: v * times, math.log(end / start) / math.log(times)  # noqa: E731
    else:
        step = Decimal(1) if found["step"] is None else field.number(found["step"])
        if step <= 0:
            raise field.wrong(item, "the step must be above 0, as in 2..16 step 2")
        if found["step"] is None and (float in field.kinds or field.name.endswith(MEMORY)):
            raise field.wrong(item, "say how it goes on: start..end step 2, or start..end x2")
        grow, count = lambda v: v + step, (end - start) / step  # noqa: E731
    if count >= MOST_VALUES:
        raise field.wrong(item, f"it has more than {MOST_VALUES} values")
    values, value = [], start
    while value <= end:
        values.append(field.exact(value, item))
        value = grow(value)
    return values
