"""The records of a results folder as people look at them: filtered, sorted, a page at a time.

    from workbench.runs.store import Store
    from workbench.ui.runs_table import RunsTable
    from workbench.ui.runs_table_plot import Plot
    from workbench.ui.runs_table_query import Query

    table = RunsTable(Store())
    table.page(Query(text="layers>=32 status=ok", sort="step_seconds")).rows
    table.save(Plot(x="layers", y="samples_per_second", colour="method"), "throughput")

No widget is needed, and everything a panel shows comes from here. `refresh` looks at the folder and
may do so in a thread of its own: it makes a new state of the table and puts it in the place of the
old one, so that a reader meanwhile sees one or the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.record import STATUSES, RunRecord
from workbench.runs.campaign import Campaign
from workbench.runs.index import Index
from workbench.runs.store import Store
from workbench.ui.runs_table_commands import run_command, sweep_commands
from workbench.ui.runs_table_fields import (
    FIRST_RESULTS,
    FIRST_SETTINGS,
    NOT_SHOWN,
    SENTENCES,
    Field,
    Row,
    find_fields,
    plain,
    settings,
)
from workbench.ui.runs_table_files import check_key, export, log_lines, save_order, shown, write_csv
from workbench.ui.runs_table_plot import Plot, plot_order, plot_rows
from workbench.ui.runs_table_query import Query, select

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from workbench.ui.runs_table_compare import Comparison

PAGE_ROWS = 25
VARYING = 4
"""Most settings that are columns unless the user chooses columns."""
SELDOM = frozenset({"method", "seed", "device", "asked_window", "asked_resident"})
"""Settings that are no such columns, though they vary: they tell little, or another column says
it."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of the table."""

    columns: tuple[str, ...]
    rows: list[Row]
    number: int
    """From 1."""
    pages: int
    first: int
    """Number of the first row in the whole selection, from 1; 0 where it is empty."""
    total: int
    """Rows of the whole selection."""


@dataclass(frozen=True, kw_only=True)
class _State:
    """One state of the table."""

    version: int = 0
    rows: list[Row] = field(default_factory=list)
    by_key: dict[str, Row] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    methods: list[str] = field(default_factory=list)


class RunsTable:
    """The table of a results folder's records. Making one touches nothing."""

    def __init__(self, store: Store, index: Index | None = None) -> None:
        self.store = store
        self.index = Index(store) if index is None else index
        self._state = _State()
        self._selected: tuple[Any, list[Row]] | None = None

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

    def refresh(self, limit_seconds: float | None = None) -> set[str]:
        """Look at the folder; returns the keys of records that are new, changed or gone.

        With `limit_seconds` reading ends soon after that, and the next call goes on: `pending`
        records are left.
        """
        changed = self.index.refresh(limit_seconds)
        if changed:
            rows = self.index.rows()
            self._state = _State(
                version=self._state.version + 1,
                rows=rows,
                by_key={row["key"]: row for row in rows},
                fields={found.name: found for found in find_fields(rows)},
                counts=_counts(rows),
                methods=sorted({row["method"] for row in rows}),
            )
        return changed

    def rows(self, query: Query | None = None) -> list[Row]:
        """All rows that a query keeps, in its order, whatever its page. Raises ValueError.

        They are the table's own, and not to be changed.
        """
        state, query = self._state, query or Query()
        asked = (state.version, query.text, query.status, query.method, query.sort,
                 query.descending)  # fmt: skip
        known = self._selected
        if known is None or known[0] != asked:
            known = (asked, select(state.rows, query, state.fields))
            self._selected = known
        return known[1]

    def page(self, query: Query | None = None) -> Page:
        """One page of `rows`; a number beyond the last page is the last. Raises ValueError."""
        query = query or Query()
        rows = self.rows(query)
        pages = max(1, -(-len(rows) // PAGE_ROWS))
        number = min(max(1, query.page), pages)
        first = (number - 1) * PAGE_ROWS
        return Page(
            columns=query.columns or self.columns(),
            rows=rows[first : first + PAGE_ROWS],
            number=number,
            pages=pages,
            first=first + 1 if rows else 0,
            total=len(rows),
        )

    def columns(self) -> tuple[str, ...]:
        """Columns that tell these records from each other, and columns of their results."""
        fields = self._state.fields
        varying = [name for name, found in fields.items() if found.varies and name not in SENTENCES]
        chosen = [name for name in FIRST_SETTINGS if name in varying]
        chosen += [n for n in varying if n in settings() and n not in (*chosen, *SELDOM)]
        results = [name for name in FIRST_RESULTS if name in varying]
        source = ["source"] if "source" in varying else []
        found = ["method", "status", *source, *chosen[:VARYING], *results, "started"]
        return tuple(name for name in dict.fromkeys(found) if name in fields)

    def table(self, query: Query | None = None) -> pandas.DataFrame:
        """The selected rows for further work."""
        import pandas

        return pandas.DataFrame(self.rows(query))

    def counts(self) -> dict[str, int]:
        """Status -> records, in the order of statuses."""
        return self._state.counts

    def methods(self) -> list[str]:
        return self._state.methods

    def problems(self) -> list[str]:
        """Files of the folder that cannot be used, one sentence each."""
        found = sorted(self.index.problems.items())
        return [f"{shown(path)} is not counted: {plain(why, 300)}" for path, why in found]

    # -- one or two records ---------------------------------------------------------------------

    def row(self, key: str) -> Row:
        """The row of a key; raises ValueError where there is none."""
        found = self._state.by_key.get(check_key(key))
        if found is None:
            raise ValueError(f"there is no record {plain(key, 60)}")
        return found

    def record(self, key: str) -> RunRecord:
        """The whole record with its series; raises ValueError where there is none."""
        found = self.store.find(check_key(key))
        if found is None:
            raise ValueError(f"there is no record {plain(key, 60)}, or none that can be read")
        return found

    def log(self, key: str) -> list[str]:
        """The last lines of its log as plain text; raises ValueError for a bad key."""
        return log_lines(self.store, key)

    def compare(self, key_a: str, key_b: str) -> Comparison:
        """Two records side by side; raises ValueError where there is none of a key."""
        from workbench.ui.runs_table_compare import Comparison

        return Comparison(self.store, key_a, key_b)

    def command(self, key: str) -> str:
        """The command line that repeats a record. Raises ValueError for a spec of another
        version."""
        return run_command(self.record(key).spec, self.store)

    def sweep_commands(self, name: str) -> list[str]:
        """The papermill command that repeats a named sweep, and the command line that does."""
        return sweep_commands(Campaign(self.store, name))

    # -- plots and exports ----------------------------------------------------------------------

    def default_plot(self) -> Plot:
        """The plot that says most of the records there are: a result over a setting."""
        fields = self._state.fields
        x = next((n for n in FIRST_SETTINGS if n in fields and fields[n].varies), "started")
        y = next((n for n in ("samples_per_second", *FIRST_RESULTS) if n in fields), "steps_done")
        return Plot(x=x, y=y, colour="method")

    def plot_rows(self, plot: Plot, query: Query | None = None) -> list[Row]:
        """Rows of a plot, one a record; see `runs_table_plot.plot_rows`. Raises ValueError."""
        return plot_rows(plot, self.rows(query), self._state.fields)

    def plot_order(self, plot: Plot, query: Query | None = None) -> dict[str, Any]:
        """The plot as plain data, from which `runs_table_draw.draw` makes the figure, anywhere."""
        return plot_order(plot, self.plot_rows(plot, query), self._state.fields)

    def figure(self, plot: Plot, query: Query | None = None) -> Figure:
        """The plot. Raises ValueError for fields that are not there."""
        from workbench.ui.runs_table_draw import draw

        return draw(self.plot_order(plot, query))

    def save(self, plot: Plot, name: str, query: Query | None = None) -> list[Path]:
        """Write the figure (PDF, PNG) and the CSV behind it; returns their paths.

        Raises ValueError for a bad name and for fields that are not there, and StoreError.
        """
        return save_order(self.store, self.plot_order(plot, query), name)

    def export_csv(self, name: str, query: Query | None = None) -> Path:
        """Write the selected rows with all their columns; returns the path. Raises as `save`."""
        rows = self.rows(query)
        columns = [c for c in dict.fromkeys(c for row in rows for c in row) if c not in NOT_SHOWN]

        def write(stem: Path) -> None:
            write_csv(stem.with_name(f"{stem.name}.csv"), columns, rows)

        return export(self.store, name, write)[0]


def _counts(rows: list[Row]) -> dict[str, int]:
    found = Counter(row["status"] for row in rows)
    return {status: found[status] for status in STATUSES if found[status]}
