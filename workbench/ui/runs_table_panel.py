"""The runs table as widgets: filter, table, choice, plot, comparison, timeline, exports, commands.

    from workbench.runs.store import Store
    from workbench.ui.runs_table_panel import RunsTablePanel

    RunsTablePanel(Store()).widget

Everything it shows can be had from code (runs_table.py). The folder is looked at about once a
second in a thread; a page is sent again only where it reads differently, a plot is drawn again only
where its rows changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import ipywidgets as widgets

from workbench.core.record import STATUSES
from workbench.runs.index import Index
from workbench.runs.store import Store
from workbench.ui import html, runs_table_html
from workbench.ui.folds_panel import Folds
from workbench.ui.frame_panel import button, framed
from workbench.ui.helper_process import HelperProcess
from workbench.ui.runs_table import RunsTable
from workbench.ui.runs_table_chosen_panel import ChosenPanel
from workbench.ui.runs_table_fields import ENDINGS, NOT_SHOWN, described, plain
from workbench.ui.runs_table_plot_panel import PlotPanel
from workbench.ui.runs_table_query import ANY, Query
from workbench.ui.runs_table_thread import Beside
from workbench.ui.ticker import Ticker

TICK_S, LOOK_S = 0.1, 1.0
REST = 8
"""A look may take one part in so many of the time."""
FIRST_LOOK_S, LATER_LOOK_S = 0.2, 2.0
"""Longest reading in one look: the first one is made before there is anything to see."""
USUAL = Query()


class RunsTablePanel:
    """A results folder, live. `close` it to end what works beside it."""

    def __init__(
        self, store: Store, *, index: Index | None = None, helper: HelperProcess | None = None
    ) -> None:
        """`helper`: a process that other panels use too; otherwise one of its own, when first
        needed."""
        self.runs_table = RunsTable(store, index)
        self._own_helper = None if helper else HelperProcess()
        self._helper = helper or self._own_helper
        self._looking = Beside()
        self._look_at = 0.0
        self._look_took = 0.0
        self._page = 1
        self._columns: tuple[str, ...] = ()
        self._understood = USUAL
        """The last query that says something: the table and the plot show its runs."""
        self._filling = False
        self._make_controls()
        self.plot = PlotPanel(self.runs_table, self._helper, lambda: self._understood)
        self.chosen = ChosenPanel(self.runs_table, self._helper, self.plot, lambda: self.query)
        self.widget = self._lay_out()
        self.runs_table.refresh(FIRST_LOOK_S)
        self._show()
        self.ticker = Ticker(TICK_S, self.tick, self._failed)
        self.ticker.start()

    # -- what is asked for ----------------------------------------------------------------------

    @property
    def query(self) -> Query:
        """The query that the controls show."""
        return Query(
            text=self.filter.value,
            status=self.status.value or ANY,
            method=self.method.value or ANY,
            sort=self.sort.value or USUAL.sort,
            descending=self.descending.value,
            page=self._page,
            columns=self._columns,
        )

    def choose(self, keys: Sequence[str]) -> None:
        """Choose runs, as in the list of choices. Raises ValueError for one that there is not."""
        for key in keys:
            self.runs_table.row(key)
        self._choose(tuple(keys))
        self._show()

    def go_to(self, page: int) -> None:
        """Show another page of the table."""
        self._page = page
        self._show()

    # -- what goes on ---------------------------------------------------------------------------

    def tick(self) -> bool:
        """Look whether there is something new, and show it. Waits for nothing."""
        if self._looking.ready and (
            self._looking.fetch() or self._problems != self.runs_table.problems()
        ):
            self._show()
        rest = max(LOOK_S, REST * self._look_took) if not self.runs_table.pending else 0.0
        if self._looking.free and monotonic() - self._look_at >= rest:
            self._look_at = monotonic()
            query = self.query
            self._looking.start(lambda: self._look(query))
        if not self.runs_table.pending:  # a plot of some of them would be another one in a moment
            self.plot.tick(start=self.chosen.settled)
        self.chosen.tick()
        return True

    def _look(self, query: Query) -> set[str]:
        """In the thread: what is new, sorted as it will be shown."""
        began = monotonic()
        changed = self.runs_table.refresh(LATER_LOOK_S)
        with suppress(ValueError):  # of a filter that says nothing; who shows the page says so
            self.runs_table.rows(query)
        self._look_took = monotonic() - began
        return changed

    @property
    def settled(self) -> bool:
        """Whether all of the controls' query is shown."""
        return not self.runs_table.pending and self.plot.settled and self.chosen.settled

    def close(self) -> None:
        """Look no more, and end the helper process where it is this panel's own."""
        self.ticker.stop()
        if self._own_helper is not None:
            self._own_helper.close()
        self.widget.close()

    def _failed(self, error: Exception) -> None:
        self.told.value = html.told(f"The table is no longer live: {plain(error, 300)}", "bad")

    # -- showing --------------------------------------------------------------------------------

    def _show(self) -> None:
        """Bring every widget up to date; one that reads the same is not sent again."""
        self._fill()
        self._problems = self.runs_table.problems()
        _set(self.told, runs_table_html.summary(self.runs_table, len(self._problems)))
        _set(self.problems, runs_table_html.problems_list(self._problems))
        query = self.query
        try:
            page = self.runs_table.page(query)
        except ValueError as error:
            _set(self.wrong, html.told(f"{error}.", "bad"))
            return
        _set(self.wrong, html.told(""))
        self._understood, self._page = query, page.number
        _set(self.table, runs_table_html.listing(self.runs_table, page, self.chosen.chosen))
        _set(self.where, html.told(f"Page {page.number:,} of {page.pages:,}"))
        for made in (self.first, self.previous):
            made.disabled = page.number == 1
        for made in (self.next, self.last):
            made.disabled = page.number == page.pages
        self._pages = page.pages
        self._offer(page.rows, page.first)
        self.plot.fill()

    def _fill(self) -> None:
        """Offer the statuses, methods and fields that there are."""
        self._filling = True
        try:
            counts = self.runs_table.counts()
            there = [s for s in STATUSES if s in counts or s == self.status.value]
            _offer(self.status, [("any", ANY), *((ENDINGS[s].words, s) for s in there)])
            _offer(
                self.method, [("any", ANY), *((plain(m, 40), m) for m in self.runs_table.methods())]
            )
            fields = self.runs_table.fields
            names = [name for name in fields if name not in NOT_SHOWN]
            _offer(self.sort, [(fields[name].label, name) for name in names], USUAL.sort)
            usual = self._columns or self.runs_table.columns()
            options = tuple((fields[name].label, name) for name in names)
            if self.columns.options != options:
                self.columns.options = options
                self.columns.value = tuple(name for name in usual if name in fields)
        finally:
            self._filling = False

    def _offer(self, rows: list[dict[str, Any]], first: int) -> None:
        """The rows of the page as choices, after those that were chosen on other pages."""
        here = {row["key"] for row in rows}
        rest = [key for key in self.chosen.chosen if key not in here]
        options = []
        for key in rest:
            try:
                options.append((f"chosen: {described(self.runs_table.row(key))}", key))
            except ValueError:  # the record is gone
                continue
        options += [(f"{n}. {described(row)}", row["key"]) for n, row in enumerate(rows, first)]
        known = {key for _, key in options}
        kept = tuple(key for key in self.chosen.chosen if key in known)
        if self.choice.options != tuple(options):
            self._filling = True
            try:
                self.choice.options = options
                self.choice.value = kept
            finally:
                self._filling = False
        if kept != self.chosen.chosen:
            self.chosen.choose(kept)

    def _choose(self, keys: tuple[str, ...]) -> None:
        """The first chosen stay first, so that A and B do not change places."""
        before = [key for key in self.chosen.chosen if key in keys]
        self.chosen.choose((*before, *(key for key in keys if key not in before)))

    # -- widgets --------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        self.told, self.wrong = widgets.HTML(html.told("")), widgets.HTML(html.told(""))
        self.table, self.problems, self.where = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._problems: list[str] = []
        self._pages = 1
        self.filter = widgets.Text(
            description="filter", placeholder="layers>=32 status=ok message~memory", value="",
            continuous_update=False, layout={"width": "380px"},
            tooltip="Words that all must hold: field=value, !=, ~ (contains), <, <=, >, >=, "
            "or a word to look for; press Enter",
        )  # fmt: skip
        self.status = _choices("status", "Only runs that ended so", ("any", ANY), 230)
        self.method = _choices("method", "Only runs of this method", ("any", ANY), 220)
        first = ("started", USUAL.sort)
        self.sort = _choices("sort by", "Field that orders the table", first, 240)
        self.descending = widgets.Checkbox(
            value=True, description="largest or newest first", indent=False,
            layout={"width": "auto"}, tooltip="Turn the order around",
        )  # fmt: skip
        self.columns = widgets.SelectMultiple(
            description="columns", rows=8, layout={"width": "420px"},
            tooltip="Columns of the table; several with Ctrl or Shift",
        )  # fmt: skip
        self.choice = widgets.SelectMultiple(
            description="choose runs", rows=6, layout={"width": "100%", "max_width": "860px"},
            tooltip="Runs of this page by their number; several with Ctrl or Shift",
        )  # fmt: skip
        self.first = button("First", "First page", lambda: self.go_to(1))
        self.previous = button("Previous", "Previous page", lambda: self.go_to(self._page - 1))
        self.next = button("Next", "Next page", lambda: self.go_to(self._page + 1))
        self.last = button("Last", "Last page", lambda: self.go_to(self._pages))
        for control in (self.filter, self.status, self.method, self.sort, self.descending):
            control.observe(self._asked, "value")
        self.columns.observe(self._columns_asked, "value")
        self.choice.observe(self._choice_asked, "value")

    def _lay_out(self) -> widgets.VBox:
        wrap = {"flex_flow": "row wrap", "grid_gap": "0 8px", "align_items": "center"}
        asked = [self.filter, self.status, self.method, self.sort, self.descending]
        pages = [self.first, self.previous, self.where, self.next, self.last]
        columns = Folds([self.columns], titles=["Columns"])
        return framed(
            [
                widgets.HTML(runs_table_html.STYLE),
                self.told,
                widgets.HBox(asked, layout=wrap),
                self.wrong,
                self.table,
                widgets.HBox(pages, layout=wrap),
                self.choice,
                self.chosen.buttons,
                self.chosen.details,
                self.chosen.exports,
                self.chosen.state,
                self.chosen.shown,
                self.plot.widget,
                columns,
                self.problems,
            ]
        )

    def _asked(self, _: Any) -> None:
        if not self._filling:
            self.go_to(1)

    def _columns_asked(self, change: dict[str, Any]) -> None:
        if not self._filling:
            self._columns = tuple(change["new"])
            self._show()

    def _choice_asked(self, change: dict[str, Any]) -> None:
        if not self._filling:
            self._choose(tuple(change["new"]))
            self._show()


def _choices(words: str, tooltip: str, first: tuple[str, str], width: int) -> widgets.Dropdown:
    return widgets.Dropdown(
        description=words, tooltip=tooltip, options=[first], layout={"width": f"{width}px"}
    )


def _set(widget: widgets.HTML, text: str) -> None:
    """Widgets compare before they send, so equal text costs nothing."""
    widget.value = text


def _offer(control: widgets.Dropdown, options: list[tuple[str, str]], usual: str = ANY) -> None:
    """New options of a list of choices; what is chosen stays chosen where it is still there."""
    if not options or control.options == tuple(options):
        return
    kept = control.value
    control.options = options
    there = {value for _, value in options}
    control.value = kept if kept in there else usual if usual in there else options[0][1]
