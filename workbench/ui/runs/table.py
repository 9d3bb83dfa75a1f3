"""The records of a results folder as people look at them.

`refresh` looks at the folder and may do so in a thread of its own: it makes a new state of the
table and puts it in the place of the old one, so that a reader meanwhile sees one or the other.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from workbench.core.record import STATUSES
from workbench.core.spec import every_field
from workbench.runs import columns
from workbench.runs.campaign import Campaign
from workbench.runs.columns import Column, Row, plain
from workbench.runs.index import Index
from workbench.runs.store import Store
from workbench.ui.runs.files import check_key, inside, record_of, shown
from workbench.ui.runs.sweeps import Sweeps

ALL = ""
"""No sweep's runs alone."""
VARYING = 5
"""Most settings that are shown at first."""
SELDOM = frozenset({"method", "seed", "device", "asked_window", "asked_resident"})
"""Settings that are not shown at first, though they vary: they tell little, or another column says
it."""


class _State(NamedTuple):
    """One state of the table."""

    version: int = 0
    rows: list[Row] = []
    by_key: dict[str, Row] = {}
    fields: dict[str, Column] = {}
    columns: list[dict[str, Any]] = []
    cells: bytes = b""


class RunsTable:
    """The table of a results folder's records. Making one touches nothing."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.index = Index(store)
        self.sweeps = Sweeps(store)
        self.sweep = ALL
        """Name of the sweep whose runs alone are rows."""
        self.running: list[str] = []
        """Keys of the runs that the sweep, or any, had in work at the last look."""
        self.state = _State()
        """Version, another number after each change; fields, those that vary first; columns and
        cells as `grid_panel.RunsGrid` shows them. It is replaced, never changed."""
        self._of_sweep: str | None = None

    def refresh(self, limit_seconds: float | None = None) -> set[str]:
        """Look at the folder; returns the keys of records that are new, changed or gone.

        With `limit_seconds` reading ends soon after that, and the next call goes on:
        `index.pending` records are left.
        """
        sweep, sweeps = self.sweep, self.sweeps.look()
        self.running = self.sweeps.running([sweep] if sweep != ALL else self.sweeps.keys)
        changed = self.index.refresh(limit_seconds)
        if changed or sweeps or self._of_sweep != sweep:
            self._of_sweep = sweep
            names: dict[str, list[str]] = {}
            for name, keys in self.sweeps.keys.items():
                for key in keys:
                    names.setdefault(key, []).append(name)
            rows = [
                row
                for row in self.index.rows()
                if sweep == ALL or sweep in names.get(row["key"], ())
            ]
            for row in rows:
                row["sweep"] = ", ".join(names.get(row["key"], ()))
            fields = columns.find_fields(rows)
            by_key = {row["key"]: row for row in rows}
            version = self.state.version + 1
            self.state = _State(version, rows, by_key, fields, *_grid(rows, fields))
        return changed

    def rows(self, keys: Iterable[str] | None = None) -> list[Row]:
        """The rows of some keys in their order, or all, oldest first. They are the table's own, and
        not to be changed."""
        if keys is None:
            return self.state.rows
        return [self.state.by_key[key] for key in keys if key in self.state.by_key]

    def counts(self) -> dict[str, int]:
        """Status -> records, in the order of statuses."""
        found = Counter(row["status"] for row in self.state.rows)
        return {status: found[status] for status in STATUSES if found[status]}

    def problems(self) -> list[str]:
        """Files of the folder that cannot be used, one sentence each."""
        found = sorted(self.index.problems.items())
        return [f"{shown(path)} is not counted: {plain(why, 300)}" for path, why in found]

    def row(self, key: str) -> Row:
        """The row of a key; raises ValueError where there is none."""
        found = self.state.by_key.get(check_key(key))
        if found is None:
            raise ValueError(f"there is no record {plain(key, 60)}")
        return found

    def spec(self, key: str) -> dict[str, Any]:
        """The spec of a record; raises ValueError where there is none."""
        return record_of(self.store, key).spec

    def failed(self, keys: Iterable[str] | None = None) -> list[str]:
        """Keys of those that did not finish."""
        return [row["key"] for row in self.rows(keys) if row["status"] != "ok"]

    def remove(self, keys: Iterable[str], sweep: str = ALL) -> None:
        """Delete runs that did not finish, and a sweep of which no process is in work.

        Raises ValueError for a run that finished, or for what is in work, and StoreError.
        """
        keys = list(keys)
        if len(self.failed(keys)) != len(keys):
            raise ValueError("a run that finished is not removed; choose failed ones")
        wanted = [(self.store.folder(key), partial(self.store.lock, key)) for key in keys]
        if sweep != ALL:
            campaign = Campaign(self.store, sweep)
            wanted.append((campaign.folder, campaign.lock))
        with ExitStack() as locks:
            for folder, take in wanted:
                inside(self.store, folder)
                lock = take()
                if lock is None:
                    raise ValueError(f"{shown(folder)} is in work; cancel it first")
                locks.enter_context(lock)
            try:
                for folder, _ in wanted:
                    shutil.rmtree(folder)
            except OSError as error:
                raise self.store.unusable(error) from error


def _grid(rows: list[Row], fields: dict[str, Column]) -> tuple[list[dict[str, Any]], bytes]:
    """Columns that tell these records from each other, those shown at first in front; and cells."""
    varying = [name for name, found in fields.items() if found.varies]
    chosen = [name for name in columns.FIRST_SETTINGS if name in varying]
    chosen += [n for n in varying if n in every_field() and n not in (*chosen, *SELDOM)]
    results = [name for name in columns.FIRST_RESULTS if name in varying]
    some = [name for name in ("source", "sweep") if name in varying]
    first = ["key", "method", "status", *some, *chosen[:VARYING], *results, "started"]
    hidden = ["message", *(n for n in varying if n not in columns.SENTENCES)]
    names = [name for name in dict.fromkeys([*first, *hidden]) if name in fields]
    heads, cells = [], []
    for name in names:
        numeric = fields[name].kind == "number"
        title, found = columns.column(name, rows, numeric=numeric)
        heads.append({"name": name, "title": title, "number": numeric, "shown": name in first})
        cells.append(found)
    return heads, packed(cells)


def packed(cells: list[list[Any]]) -> bytes:
    """A list for each column as compressed JSON, whole numbers without a dot. Column by column:
    encoding all at once would hold the interpreter's lock for too long."""
    whole = (
        [int(v) if isinstance(v, float) and v.is_integer() else v for v in column]
        for column in cells
    )
    texts = (json.dumps(column, separators=(",", ":")) for column in whole)
    return gzip.compress(f"[{','.join(texts)}]".encode(), mtime=0)
