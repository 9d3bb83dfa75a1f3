"""The records of a results folder as people look at them.

    from workbench.runs.store import Store
    from workbench.ui.runs_table import RunsTable
    from workbench.ui.runs_plot import Plot

    table = RunsTable(Store())
    table.refresh()
    table.table()                                     # a DataFrame, to be filtered as any other
    table.save(Plot(x="layers", y="samples_per_second", colour="method"), "throughput")

No widget is needed, and everything a panel shows comes from here. `refresh` looks at the folder and
may do so in a thread of its own: it makes a new state of the table and puts it in the place of the
old one, so that a reader meanwhile sees one or the other.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.record import STATUSES
from workbench.runs.campaign import Campaign
from workbench.runs.index import Index
from workbench.runs.store import Store
from workbench.ui.runs_plot import Plot, draw, plot_rows
from workbench.ui.runs_table_commands import run_command, sweep_commands
from workbench.ui.runs_table_fields import (
    FIRST_RESULTS,
    FIRST_SETTINGS,
    SENTENCES,
    Field,
    Row,
    column,
    find_fields,
    plain,
    settings,
)  # fmt: skip
from workbench.ui.runs_table_files import (
    check_key,
    export_rows,
    inside,
    log_lines,
    save_figure,
    shown,
)  # fmt: skip
from workbench.ui.runs_table_sweeps import Sweeps

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

ALL = ""
"""No sweep's runs alone."""
VARYING = 5
"""Most settings that are shown at first."""
SELDOM = frozenset({"method", "seed", "device", "asked_window", "asked_resident"})
"""Settings that are not shown at first, though they vary: they tell little, or another column says
it."""


@dataclass(frozen=True, kw_only=True)
class _State:
    """One state of the table."""

    version: int = 0
    rows: list[Row] = field(default_factory=list)
    by_key: dict[str, Row] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    columns: list[dict[str, Any]] = field(default_factory=list)
    cells: str = "[]"


class RunsTable:
    """The table of a results folder's records. Making one touches nothing."""

    def __init__(self, store: Store, index: Index | None = None) -> None:
        self.store = store
        self.index = Index(store) if index is None else index
        self.sweeps = Sweeps(store)
        self.sweep = ALL
        """Name of the sweep whose runs alone are rows."""
        self.running: list[str] = []
        """Keys of the runs that named sweeps, or the one that is shown, had in work when the folder
        was last looked at."""
        self._state = _State()
        self._made: Any = None

    # -- the table ------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Another number after each change of the table."""
        return self._state.version

    @property
    def fields(self) -> dict[str, Field]:
        """All columns there are, those that vary first."""
        return self._state.fields

    @property
    def pending(self) -> int:
        """Number of records that the last look found and had no time to read."""
        return self.index.pending

    @property
    def grid(self) -> tuple[list[dict[str, Any]], str]:
        """Columns and rows as `runs_grid.RunsGrid` shows them."""
        return self._state.columns, self._state.cells

    def refresh(self, limit_seconds: float | None = None) -> set[str]:
        """Look at the folder; returns the keys of records that are new, changed or gone.

        With `limit_seconds` reading ends soon after that, and the next call goes on: `pending`
        records are left.
        """
        sweeps = self.sweeps.look()
        self.running = self.sweeps.running([self.sweep] if self.sweep else self.sweeps.names)
        changed = self.index.refresh(limit_seconds)
        if changed or sweeps or self._made != self.sweep or not self._state.version:
            self._made = self.sweep
            self._state = self._new_state()
        return changed

    def _new_state(self) -> _State:
        of_key = self.sweeps.names_of_keys()
        rows = [row | {"sweep": ", ".join(of_key.get(row["key"], ()))} for row in self.index.rows()]
        if self.sweep != ALL:
            rows = [row for row in rows if self.sweep in of_key.get(row["key"], ())]
        fields = {found.name: found for found in find_fields(rows)}
        counts = Counter(row["status"] for row in rows)
        columns, cells = _grid(rows, fields)
        return _State(
            version=self._state.version + 1,
            rows=rows,
            by_key={row["key"]: row for row in rows},
            fields=fields,
            counts={status: counts[status] for status in STATUSES if counts[status]},
            columns=columns,
            cells=cells,
        )

    def rows(self, keys: Iterable[str] | None = None) -> list[Row]:
        """The rows of some keys in their order, or all, oldest first. They are the table's own, and
        not to be changed."""
        if keys is None:
            return self._state.rows
        return [self._state.by_key[key] for key in keys if key in self._state.by_key]

    def table(self, keys: Iterable[str] | None = None) -> pandas.DataFrame:
        """`rows` for further work."""
        import pandas

        return pandas.DataFrame(self.rows(keys))

    def counts(self) -> dict[str, int]:
        """Status -> records, in the order of statuses."""
        return self._state.counts

    def problems(self) -> list[str]:
        """Files of the folder that cannot be used, one sentence each."""
        found = sorted(self.index.problems.items())
        return [f"{shown(path)} is not counted: {plain(why, 300)}" for path, why in found]

    # -- records --------------------------------------------------------------------------------

    def row(self, key: str) -> Row:
        """The row of a key; raises ValueError where there is none."""
        found = self._state.by_key.get(check_key(key))
        if found is None:
            raise ValueError(f"there is no record {plain(key, 60)}")
        return found

    def log(self, key: str) -> list[str]:
        """The last lines of its log as plain text; raises ValueError for a bad key."""
        return log_lines(self.store, key)

    def command(self, key: str) -> str:
        """The command line that repeats a record. Raises ValueError where there is none, or one of
        another version."""
        record = self.store.find(check_key(key))
        if record is None:
            raise ValueError(f"there is no record {plain(key, 60)}, or none that can be read")
        return run_command(record.spec, self.store)

    def sweep_commands(self, name: str) -> list[str]:
        """The papermill command that repeats a named sweep, and the command line that does."""
        return sweep_commands(Campaign(self.store, name))

    def failed(self, keys: Iterable[str] | None = None) -> list[str]:
        """Keys of those that did not finish."""
        return [row["key"] for row in self.rows(keys) if row["status"] != "ok"]

    def remove(self, keys: Iterable[str]) -> int:
        """Delete the folders of runs that did not finish; returns how many there were.

        Raises ValueError for one that finished or that a process has in work, and StoreError.
        """
        keys = list(keys)
        for key in keys:
            if self.row(key)["status"] == "ok":
                raise ValueError(f"run {plain(key, 40)} finished; only failed runs are removed")
        for key in keys:
            self._delete(inside(self.store, self.store.folder(key)), self.store.lock(key), key)
        return len(keys)

    def remove_sweep(self, name: str) -> None:
        """Delete a sweep that no process runs; its runs stay. Raises ValueError and StoreError."""
        campaign = Campaign(self.store, name)
        self._delete(inside(self.store, campaign.folder), campaign.lock(), name)

    def _delete(self, folder: Path, lock: Any, name: str) -> None:
        if lock is None:
            raise ValueError(f"{plain(name, 64)} is in work; cancel it before it is removed")
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise self.store.unusable(error) from error
        finally:
            lock.release()

    # -- plots and exports ----------------------------------------------------------------------

    def default_plot(self) -> Plot:
        """The plot that says most of the records there are: a result over a setting."""
        fields = self._state.fields
        x = next((n for n in FIRST_SETTINGS if n in fields and fields[n].varies), "started")
        y = next((n for n in ("samples_per_second", *FIRST_RESULTS) if n in fields), "steps_done")
        return Plot(x=x, y=y, colour="method")

    def plot_rows(self, plot: Plot, keys: Iterable[str] | None = None) -> list[Row]:
        """Rows of a plot, one a record; see `runs_plot.plot_rows`. Raises ValueError."""
        return plot_rows(plot, self.rows(keys), self._state.fields)

    def figure(self, plot: Plot, keys: Iterable[str] | None = None) -> Figure:
        """The plot. Raises ValueError for fields that are not there."""
        return draw(plot, self.plot_rows(plot, keys), self._state.fields)

    def save(self, plot: Plot, name: str, keys: Iterable[str] | None = None) -> list[Path]:
        """Write the figure (PDF, PNG) and the CSV behind it; returns their paths.

        Raises ValueError for a bad name and for fields that are not there, and StoreError.
        """
        rows = self.plot_rows(plot, keys)
        return save_figure(self.store, self.figure(plot, keys), rows, name)

    def export(self, form: str, name: str, keys: Iterable[str] | None = None) -> list[Path]:
        """Write rows with all their columns as ``csv`` or ``jsonl``, or losses and results for
        ``tensorboard``; returns the paths. Raises as `save`."""
        return export_rows(self.store, self.rows(keys), form, name)


def _grid(rows: list[Row], fields: dict[str, Field]) -> tuple[list[dict[str, Any]], str]:
    """Columns that tell these records from each other, those shown at first in front; and cells."""
    varying = [name for name, found in fields.items() if found.varies]
    chosen = [name for name in FIRST_SETTINGS if name in varying]
    chosen += [n for n in varying if n in settings() and n not in (*chosen, *SELDOM)]
    results = [name for name in FIRST_RESULTS if name in varying]
    some = [name for name in ("source", "sweep") if name in varying]
    first = ["key", "method", "status", *some, *chosen[:VARYING], *results, "started"]
    hidden = ["message", *(n for n in varying if n not in SENTENCES)]
    names = [name for name in dict.fromkeys([*first, *hidden]) if name in fields]
    columns, cells = [], []
    for name in names:
        numeric = fields[name].kind == "number"
        title, found = column(name, rows, numeric=numeric)
        columns.append({"name": name, "title": title, "number": numeric, "shown": name in first})
        cells.append(found)
    # Row by row: encoding all at once would hold the interpreter's lock for too long.
    lines = (json.dumps(line) for line in zip(*cells, strict=True))
    return columns, f"[{','.join(lines)}]"
