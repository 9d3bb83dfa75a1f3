"""Runs side by side: how each ended, the settings that differ, and results with their ratio to the
first. A run that failed is compared too: what there is not is empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.core.options import catalogue
from workbench.core.spec import every_field
from workbench.runs.columns import (
    NOT_SHOWN,
    Row,
    cell,
    described,
    is_result,
    label,
    number,
)  # fmt: skip
from workbench.runs.events import EventReader, steps_of
from workbench.runs.store import Store, row
from workbench.ui.runs.files import check_key, record_of

MOST = 12
"""Runs that a page has room for."""
LETTERS = "ABCDEFGHIJKL"
BESIDE_SETTINGS = frozenset({"method", "engine", "device_class", "commit", "source", "message"})
"""Not chosen, but a reason for another result; and why there is none."""


def compare(store: Store, keys: Sequence[str]) -> list[Row]:
    """A row a field that says something: ``"" (its name)``, ``A``, ``B``, ... and ``B ÷ A``, ...

    Raises ValueError for fewer than 2 or more than `MOST` runs, or one without a record.
    """
    if not 2 <= len(set(keys)) == len(keys) <= MOST:
        raise ValueError(f"{len(keys)} runs are compared; choose 2 to {MOST} different ones")
    rows = [_row(store, key) for key in keys]
    usual = {name: option.default for name, option in catalogue().items()}
    chosen = every_field().keys() | BESIDE_SETTINGS
    letters = LETTERS[: len(keys)]
    empty = dict.fromkeys(["", *letters, *(f"{letter} ÷ A" for letter in letters[1:])], "")
    found = [empty | {"": "run"} | dict(zip(letters, keys, strict=True))]
    for name in dict.fromkeys(["method", "status", *(name for each in rows for name in each)]):
        of_method = usual.get(name.removeprefix("asked_"))  # of a method without the option
        values = [each.get(name, of_method) for each in rows]
        result = is_result(name.removeprefix("predicted_")) or name == "status"
        asked = name in chosen or name.startswith("asked_")
        differ = any(value != values[0] for value in values)
        if name in NOT_SHOWN or not ((result and any(values)) or (asked and differ)):
            continue
        none = "no limit" if name.endswith("_memory") else ""
        texts = [cell(name, value) or none for value in values]
        line = empty | {"": label(name)} | dict(zip(letters, texts, strict=True))
        first, *others = map(number, values)
        if result and first:
            for letter, other in zip(letters[1:], others, strict=True):
                line[f"{letter} ÷ A"] = "" if other is None else f"{other / first:.3g}"
        found.append(line)
    return found


def losses_of(store: Store, keys: Sequence[str]) -> dict[str, list[Any]]:
    """Name -> losses of some runs, also of those that are still in work."""
    found: dict[str, list[Any]] = {}
    for letter, key in zip(LETTERS, keys, strict=False):
        record = store.find(check_key(key))
        if record is None:
            events = EventReader(store.folder(key) / "events.jsonl").read()
            found[f"{letter}: {key}: current run"] = steps_of(events)[0]
        else:
            found[f"{letter}: {described(row(record))}"] = record.losses
    return found


def _row(store: Store, key: str) -> Row:
    record = record_of(store, key)
    return row(record) | {"steps_done": len(record.losses)}
