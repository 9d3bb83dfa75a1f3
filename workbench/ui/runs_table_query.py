"""Query of records to show: a line of text, two choices, an order, a page.

The text is made of words, all of which must hold: ``layers=32``, ``status!=ok``, ``message~memory``
(contains), ``step_seconds<0.5``, ``device_memory>=8GiB``. A word without a sign is looked for in
the texts that name or explain a record. Quotes keep words together.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from workbench.core.bytesize import parse_bytes
from workbench.ui.runs_table_fields import Row, number, plain, sort_key, unit

SEARCHED = ("key", "method", "status", "message", "engine", "notes", "device_class")
"""Fields in which a word without a sign is looked for."""
ANY = ""
_WORD = re.compile(r"([A-Za-z_][\w.]*)(!=|<=|>=|=|~|<|>)(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Query:
    """Selection, order and page of a table. Plain data: equal queries show equal tables."""

    text: str = ""
    status: str = ANY
    method: str = ANY
    sort: str = "started"
    descending: bool = True
    page: int = 1
    columns: tuple[str, ...] = ()
    """Empty: `RunsTable.columns`."""


def parse(text: str, known: Iterable[str]) -> list[Callable[[Row], bool]]:
    """The conditions of a filter's text. Raises ValueError, in one sentence."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError(f"the filter {plain(text, 60)!r} has a quote without its end") from None
    fields = set(known)
    return [_condition(word, fields) for word in words]


def select(rows: Iterable[Row], query: Query, known: Iterable[str]) -> list[Row]:
    """The rows that a query keeps, in its order; without its page. Raises ValueError."""
    conditions = parse(query.text, known)
    if query.status != ANY:
        conditions.append(lambda row: row.get("status") == query.status)
    if query.method != ANY:
        conditions.append(lambda row: row.get("method") == query.method)
    kept = [row for row in rows if all(holds(row) for holds in conditions)]
    there = [row for row in kept if row.get(query.sort) is not None]
    there.sort(key=lambda row: sort_key(row[query.sort]), reverse=query.descending)
    return there + [row for row in kept if row.get(query.sort) is None]


def _condition(word: str, fields: set[str]) -> Callable[[Row], bool]:
    found = _WORD.fullmatch(word)
    if found is None:
        wanted = word.lower()
        return lambda row: any(wanted in str(row.get(name, "")).lower() for name in SEARCHED)
    name, sign, text = found[1].removeprefix("model."), found[2], found[3]
    if name not in fields:
        raise ValueError(f"no record has a field {plain(name, 60)!r}; write field=value or a word")
    if sign == "~":
        return lambda row: text.lower() in str(row.get(name, "")).lower()
    amount = _amount(name, text)
    if sign in ("=", "!="):
        return lambda row: _equal(row.get(name), text, amount) is (sign == "=")
    if amount is None:
        raise ValueError(f"{plain(name)}{sign}{plain(text, 40)} compares with no number")
    compare = {
        "<": lambda a: a < amount,
        "<=": lambda a: a <= amount,
        ">": lambda a: a > amount,
        ">=": lambda a: a >= amount,
    }[sign]

    def holds(row: Row) -> bool:
        value = number(row.get(name))
        return value is not None and compare(value)

    return holds


def _amount(name: str, text: str) -> float | None:
    """The number that a text means as a value of the field."""
    try:
        return float(text)
    except ValueError:
        try:
            return float(parse_bytes(text)) if unit(name) == "B" else None
        except ValueError:
            return None


def _equal(value: Any, text: str, amount: float | None) -> bool:
    if isinstance(value, bool):
        return text.lower() in (("true", "yes") if value else ("false", "no"))
    if amount is not None and number(value) is not None:
        return number(value) == amount
    words = "none" if value is None else str(value)
    return words.lower() == text.lower()
