"""Schedules as CSV: a table of actions and a table of buffers, as one string each.

One row an action, lists separated by spaces: what spreadsheets read, and the quickest way to write
a schedule by hand. Lost in CSV: the schedule's name, budgets and settings, which the reader passes
in; the numbers of units, micro-batches and ranks are those that the actions mention. A row without
a version is read as one of version 1, whose messages of turn 1 are those of gradients.

    >>> steps = '''name,lane,after
    ... F0.0,compute,U0@-1
    ... B0.0,compute,
    ... U0,host,B0.0
    ... '''
    >>> from_csv(steps, name="by hand").actions[2].after
    ('B0.0',)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from workbench.core.schema import read_as
from workbench.schedule.schedule import Buffer, Schedule
from workbench.schedule.serialize import LISTS, OLD, VERSION, Row, action_from

ACTION_COLUMNS = ("name", "lane", "after", "nbytes", "takes", "uses", "frees", "samples", "version")
BUFFER_COLUMNS = ("name", "tier", "nbytes", "rank", "slot", "offset", "permanent")


def to_csv(schedule: Schedule) -> tuple[str, str]:
    """(actions, buffers): a row each, lists separated by spaces.

    Raises ValueError for a buffer whose name is empty or has a space.
    """
    for name, buffer in schedule.buffers.items():
        if not name or name.split() != [name]:
            raise ValueError(f"buffer {name!r}: CSV needs a name without spaces")
        if buffer.slot is not None and (not buffer.slot or buffer.slot.strip() != buffer.slot):
            raise ValueError(f"buffer {name!r}: CSV cannot hold its slot {buffer.slot!r}")
    actions = [
        [*(_cell(getattr(action, column)) for column in ACTION_COLUMNS[:-1]), VERSION]
        for action in schedule.actions
    ]
    buffers = [
        [name, b.tier, b.nbytes, *(_cell(getattr(b, column)) for column in BUFFER_COLUMNS[3:])]
        for name, b in schedule.buffers.items()
    ]
    return _table(ACTION_COLUMNS, actions), _table(BUFFER_COLUMNS, buffers)


def _cell(value: Any) -> Any:
    """A value; nothing for none, 0 and False."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "yes" if value is True else value or ""


def _table(columns: tuple[str, ...], rows: list[list]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([columns, *rows])
    return out.getvalue()


def from_csv(
    actions: str,
    buffers: str = "",
    *,
    name: str,
    budgets: dict[str, int] | None = None,
    settings: dict[str, int | float | str | bool | None] | None = None,
) -> Schedule:
    """Inverse of `to_csv`. Only the columns ``name`` and ``lane`` are needed, in any order.

    Raises ValueError, with the line number, for what is no schedule.
    """
    read = []
    for where, row in _rows(actions, ACTION_COLUMNS, required=("name", "lane")):
        fields = {"name": row["name"], "lane": row["lane"], "nbytes": _int(where, row, "nbytes")}
        fields |= {key: row.get(key, "").split() for key in LISTS}
        if samples := row.get("samples", "").split():
            fields["samples"] = [_whole(where, "samples", number) for number in samples]
        version = _int(where, row, "version") or OLD
        if version not in (OLD, VERSION):
            raise ValueError(f"{where}: version is {version}; known are {OLD} and {VERSION}")
        read.append(action_from(read_as(Row, fields, where), version, where))
    memory: dict[str, Buffer] = {}
    for where, row in _rows(buffers, BUFFER_COLUMNS, required=("name", "tier", "nbytes")):
        if row["name"] in memory:
            raise ValueError(f"{where}: buffer {row['name']!r} stands twice in the table")
        permanent = row.get("permanent", "")
        if permanent not in ("", "yes"):
            raise ValueError(f"{where}: permanent is {permanent!r}; write yes or nothing")
        numbers = {key: _int(where, row, key) for key in ("nbytes", "rank", "offset")}
        texts = {"tier": row["tier"], "slot": row.get("slot") or None}
        memory[row["name"]] = read_as(
            Buffer, {**numbers, **texts, "permanent": permanent == "yes"}, where
        )
    if not read:
        raise ValueError("the table has no actions")
    return Schedule(
        name=name,
        num_units=1 + max(action.unit for action in read),
        num_microbatches=1 + max(action.microbatch or 0 for action in read),
        num_ranks=1 + max(action.rank for action in read),
        actions=tuple(read),
        buffers=memory,
        budgets=budgets or {},
        settings=settings or {},
    )


def _rows(
    text: str, columns: tuple[str, ...], required: tuple[str, ...]
) -> Iterable[tuple[str, dict[str, str]]]:
    """("line 2", column -> cell) of each row that is not empty."""
    if not text.strip():
        return
    reader = csv.reader(io.StringIO(text), strict=True, skipinitialspace=True)
    try:
        head = [cell.strip() for cell in next(reader)]
        for column in head:
            if column not in columns or head.count(column) > 1:
                raise ValueError(
                    f"line 1: column {column!r} is unknown or twice there; "
                    f"columns are {', '.join(columns)}"
                )
        for column in required:
            if column not in head:
                raise ValueError(f"line 1: column {column!r} is missing")
        for row in reader:
            where = f"line {reader.line_num}"
            if len(row) > len(head):
                raise ValueError(f"{where}: {len(row)} cells in {len(head)} columns")
            cells = [cell.strip() for cell in row] + [""] * (len(head) - len(row))
            if any(cells):
                yield where, dict(zip(head, cells, strict=True))
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None


def _int(where: str, row: dict[str, str], column: str) -> int:
    return _whole(where, column, row.get(column) or "0")


def _whole(where: str, column: str, cell: str) -> int:
    if not (cell.isascii() and cell.isdigit()):
        raise ValueError(f"{where}: {column} is {cell!r}; it must be a whole number, not negative")
    return int(cell)
