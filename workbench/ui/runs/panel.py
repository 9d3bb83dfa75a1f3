"""The results page as widgets: a table of runs, and what the chosen ones show.

    from workbench.runs.store import Store
    from workbench.ui.runs.panel import RunsTablePanel

    RunsTablePanel(Store()).widget

Everything it shows can be had from code (table.py). The folder is looked at about once a
second in a thread; rows are sent again only where they changed, a plot is drawn again only where
its rows did.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any

import ipywidgets as widgets

from workbench.core.host import give_back_heap
from workbench.runs.columns import plain
from workbench.runs.store import Store
from workbench.ui import html
from workbench.ui.frame_panel import dropdown, framed
from workbench.ui.helper_process import HelperProcess
from workbench.ui.runs import html as runs_table_html
from workbench.ui.runs.chosen_panel import ChosenPanel
from workbench.ui.runs.grid_panel import RunsGrid
from workbench.ui.runs.plot_panel import PlotPanel
from workbench.ui.runs.table import ALL, RunsTable
from workbench.ui.ticker import Ticker

TICK_S, LOOK_S = 0.1, 1.0
REST = 8
"""A look may take one part in so many of the time."""
FIRST_LOOK_S, LATER_LOOK_S = 0.2, 2.0
"""Longest reading in one look: the first one is made before there is anything to see."""


class RunsTablePanel:
    """A results folder, live. `close` it to end what works beside it."""

    def __init__(self, store: Store, *, helper: HelperProcess | None = None) -> None:
        """`helper`: a process that other panels use too; otherwise one of its own, when first
        needed."""
        self.runs_table = RunsTable(store)
        self._own_helper = None if helper else HelperProcess()
        self._helper = helper or self._own_helper
        self._beside = ThreadPoolExecutor(1)
        self._looking: Future | None = None
        self._look_at = 0.0
        self._look_took = 0.0
        self._shown: Any = None
        self.told, self.problems = widgets.HTML(html.live("")), widgets.HTML()
        self.about = widgets.HTML(html.live(""))
        about = "Only the runs of this sweep: its fields are the columns and the plot"
        wide = {"width": "320px"}
        self.sweep = dropdown("sweep", about, [("all runs", ALL)], self._sweep_asked, layout=wide)
        self.grid = RunsGrid()
        self.plot = PlotPanel(self.runs_table, self._helper, self.listed)
        self.chosen = ChosenPanel(self.runs_table, self._helper, self.plot, self.listed)
        self.widget = framed(
            [
                widgets.HTML(html.STYLE),
                self.told,
                widgets.HBox([self.sweep, self.about]),
                self.grid,
                self.chosen.widget,
                self.plot.widget,
                self.problems,
            ]
        )
        self.runs_table.refresh(FIRST_LOOK_S)
        self._show()
        self.grid.observe(lambda change: self.chosen.choose(tuple(change["new"])), "chosen")
        self.ticker = Ticker(TICK_S, self.tick, self._failed)
        self.ticker.start()

    # -- what is asked for ----------------------------------------------------------------------

    def listed(self) -> list[str] | None:
        """Keys of the sweep that is shown, or that the table's filters keep; None for all."""
        if self.grid.listed is None and self.runs_table.sweep != ALL:
            return [row["key"] for row in self.runs_table.rows()]
        return self.grid.listed

    def choose(self, keys: Sequence[str]) -> None:
        """Choose runs, as by clicking. Raises ValueError for one that there is not."""
        for key in keys:
            self.runs_table.row(key)
        self.grid.chosen = list(keys)

    # -- what goes on ---------------------------------------------------------------------------

    def tick(self) -> bool:
        """Look whether there is something new, and show it. Waits for nothing."""
        if self._looking is not None and self._looking.done():
            look, self._looking = self._looking, None
            look.result()
            self._show()
        pending = self.runs_table.index.pending
        rest = 0.0 if pending else max(LOOK_S, REST * self._look_took)
        if self._looking is None and monotonic() - self._look_at >= rest:
            self._look_at = monotonic()
            self._looking = self._beside.submit(self._look)
        if not pending:  # a plot of some of them would be another one in a moment
            self.plot.tick()
        self.chosen.tick()
        return True

    def _look(self) -> None:
        """In the thread."""
        began = monotonic()
        self.runs_table.refresh(LATER_LOOK_S)
        if not self.runs_table.index.pending:
            self.runs_table.sweeps.ask(self._helper)
        self._look_took = monotonic() - began

    @property
    def settled(self) -> bool:
        """Whether all that was found and asked for is shown."""
        shown = self._shown == (self.runs_table.state.version, self.sweep.value)
        idle = not self.runs_table.index.pending and self._looking is None
        return shown and idle and self.plot.settled and self.chosen.settled

    def close(self) -> None:
        """Look no more, and end the helper process where it is this panel's own."""
        self.ticker.stop()
        self._beside.shutdown(wait=False)
        if self._own_helper is not None:
            self._own_helper.close()
        self.widget.close()

    def _failed(self, error: Exception) -> None:
        self.told.value = html.live(f"The table is no longer live: {plain(error, 300)}", "bad")

    # -- showing --------------------------------------------------------------------------------

    def _show(self) -> None:
        """Bring every widget up to date; one that reads the same is not sent again."""
        problems = self.runs_table.problems()
        self.problems.value = runs_table_html.problems_list(problems)
        self.told.value = runs_table_html.summary(
            self.runs_table.counts(), self.runs_table.index.pending, len(problems)
        )
        shown, sweeps = self.runs_table.sweep, self.runs_table.sweeps
        self.about.value = html.live("" if shown == ALL else sweeps.words(shown))
        names = [("all runs", ALL), *((name, name) for name in sorted(sweeps.keys))]
        if self.sweep.options != tuple(names):
            kept = self.sweep.value
            self.sweep.options = names
            self.sweep.value = kept if kept in sweeps.keys else ALL
        state = self.runs_table.state
        if self._shown != (state.version, shown):
            self._shown = state.version, shown
            with self.grid.hold_sync():  # columns and rows are one message
                self.grid.columns, self.grid.rows = state.columns, state.cells
                self.grid.chosen = [key for key in self.grid.chosen if key in state.by_key]
            self.plot.fill()
            if not self.runs_table.index.pending:  # all rows were made once more, and sent
                give_back_heap()

    def _sweep_asked(self) -> None:
        """Show another sweep at the next look, which is at once."""
        self.runs_table.sweep = self.sweep.value or ALL
        self._look_at = 0.0
        self.chosen.choose(self.chosen.chosen)
