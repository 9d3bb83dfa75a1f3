"""Everything interactive on one page: plan, sweep, results, evaluation.

    Dashboard().widget

A tab is made when it is first opened, so that the page opens at once.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

import ipywidgets as widgets

from workbench.core.spec import RunSpec
from workbench.runs.store import REPOSITORY_RESULTS, Store
from workbench.ui import html
from workbench.ui.frame_panel import framed


class Dashboard:
    """Tabs of panels over one results folder."""

    def __init__(
        self,
        results: str | Path = REPOSITORY_RESULTS,
        *,
        size: str = "smoke",
        confined: bool = False,
    ) -> None:
        """`size`: of the evaluation's exhibits. `confined`: no file outside the results folder is
        read for anybody who only has the page."""
        self.store, self._size, self._confined = Store(results), size, confined
        self.panels: dict[str, object] = {}
        """By title, those that were opened."""
        self._make: dict[str, Callable[[], object]] = {
            "Results": self._results,
            "Plan": self._plan,
            "Sweep": self._sweep,
            "Evaluate": self._evaluate,
        }
        self.tabs = widgets.Tab(
            [widgets.VBox() for _ in self._make], titles=list(self._make), selected_index=0
        )
        self.tabs.observe(lambda _: self.open(), "selected_index")
        where = f"<div class='wb soft'>Results folder: {escape(self.store.root.name)}</div>"
        self.widget = framed([widgets.HTML(html.STYLE + where), self.tabs])
        self.open()

    def open(self, title: str | None = None) -> None:
        """Show a tab, by default the one that is chosen; its panel is made the first time."""
        titles = list(self._make)
        index = self.tabs.selected_index if title is None else titles.index(title)
        if index is None:
            return
        if titles[index] not in self.panels:
            panel = self.panels[titles[index]] = self._make[titles[index]]()
            self.tabs.children[index].children = [panel.widget]
        if self.tabs.selected_index != index:
            self.tabs.selected_index = index

    def _results(self) -> object:
        from workbench.ui.runs.panel import RunsTablePanel

        return RunsTablePanel(self.store)

    def _plan(self) -> object:
        from workbench.ui.planner.panel import PlannerPanel

        return PlannerPanel(self.store, on_use=self._use)

    def _use(self, spec: RunSpec) -> None:
        """Go on from a plan: the form of a sweep, filled with it."""
        self.open("Sweep")
        self.panels["Sweep"].take(spec)

    def _sweep(self) -> object:
        from workbench.ui.sweeps.panel import SweepPanel

        return SweepPanel(self.store, confined=self._confined)

    def _evaluate(self) -> object:
        from workbench.ui.evaluation.panel import EvaluationPanel

        return EvaluationPanel(self._size, self.store.root)
