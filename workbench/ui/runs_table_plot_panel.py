"""The live plot of the runs table: its fields, and the picture, redrawn when its rows change.

The rows are gathered in a thread and drawn in the helper process, so that nothing here
keeps anybody waiting. While one picture is made, only the newest wish for another is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from workbench.ui import html, runs_table_html
from workbench.ui.helper_process import Answer, HelperProcess
from workbench.ui.runs_table import RunsTable
from workbench.ui.runs_table_fields import SENTENCES, Field
from workbench.ui.runs_table_plot import KINDS, NONE, Plot, words_of
from workbench.ui.runs_table_query import Query
from workbench.ui.runs_table_thread import Beside

WORK = "workbench.ui.runs_table_work"
LABELS = {"x": "x", "y": "y", "colour": "colour", "facet": "panels"}
TOOLTIPS = {
    "x": "Field along the horizontal axis; fields that vary come first",
    "y": "Field along the vertical axis; fields that vary come first",
    "colour": "Field that colours and shapes tell apart",
    "facet": "Field with a panel of its own for each value",
}


class PlotPanel:
    """Controls and picture. `tick` is called again and again by the panel that holds it."""

    def __init__(
        self, runs_table: RunsTable, helper: HelperProcess, query: Callable[[], Query]
    ) -> None:
        self.runs_table, self._helper, self._query = runs_table, helper, query
        self.order: dict[str, Any] | None = None
        """The picture as `runs_table_plot.plot_order` data; None before the first."""
        self._next: tuple[str, dict[str, Any]] | None = None
        self._thread = Beside()
        self._answer: Answer | None = None
        self._tried: Any = None
        self._drawn = ""
        self.fields = {
            what: widgets.Dropdown(
                description=words, tooltip=TOOLTIPS[what], layout={"width": "260px"}
            )
            for what, words in LABELS.items()
        }
        self.kind = widgets.Dropdown(
            options=list(KINDS), description="as", layout={"width": "180px"},
            tooltip="Points only, or lines through the medians of equal x",
        )  # fmt: skip
        self.logs = {
            axis: widgets.Checkbox(
                description=f"logarithmic {axis}", indent=False, layout={"width": "auto"},
                tooltip=f"Logarithmic scale of the {axis} axis",
            )
            for axis in ("x", "y")
        }  # fmt: skip
        self.state = widgets.HTML(html.told(""))
        self.picture = widgets.HTML()
        controls = [*self.fields.values(), self.kind, *self.logs.values()]
        self.widget = widgets.VBox(
            [
                widgets.HTML(
                    "<div class='wb wb-runs-table'><h3>Plot of the runs listed above</h3></div>"
                ),
                widgets.HBox(controls, layout={"flex_flow": "row wrap", "grid_gap": "0 12px"}),
                self.state,
                self.picture,
            ]
        )

    @property
    def plot(self) -> Plot | None:
        """The plot that the controls show; None while there is nothing to plot."""
        chosen = {what: control.value for what, control in self.fields.items()}
        if not chosen["x"] or not chosen["y"]:
            return None
        return Plot(
            x=chosen["x"],
            y=chosen["y"],
            colour=chosen["colour"] or NONE,
            facet=chosen["facet"] or NONE,
            kind=self.kind.value,
            log_x=self.logs["x"].value and self._logarithmic(chosen["x"]),
            log_y=self.logs["y"].value and self._logarithmic(chosen["y"]),
        )

    @property
    def settled(self) -> bool:
        """Whether the picture shows the last plot asked for, of the present rows."""
        idle = self._thread.free and self._answer is None
        return idle and self._tried == self._wish()

    def show(self, plot: Plot) -> None:
        """Set the controls. Raises ValueError for fields that no record has."""
        self.fill()
        self.runs_table.plot_rows(plot, self._query())
        for what, control in self.fields.items():
            control.value = getattr(plot, what)
        self.kind.value = plot.kind
        self.logs["x"].value, self.logs["y"].value = plot.log_x, plot.log_y

    def fill(self) -> None:
        """Offer the fields that there are; what is chosen stays chosen."""
        known = self.runs_table.fields
        if not known:
            return
        usual = self.runs_table.default_plot()
        names = [name for name in known if name not in SENTENCES]
        for what, control in self.fields.items():
            options = [(_words(known[name]), name) for name in names]
            if what in ("colour", "facet"):
                options.insert(0, ("nothing", NONE))
            if control.options != tuple(options):
                kept = getattr(usual, what) if control.value is None else control.value
                there = {name for _, name in options}
                control.options = options
                control.value = kept if kept in there else getattr(usual, what)
        for axis, box in self.logs.items():
            box.disabled = not self._logarithmic(self.fields[axis].value)

    def tick(self, *, start: bool = True) -> None:
        """Show what was drawn, and draw what is wanted and not drawn. Never waits.

        Not to `start` while the helper process does something long: it would not take
        the rows yet.
        """
        if self._thread.ready:
            self._gathered()
        if self._answer is not None and self._answer.done:
            self._show()
        wish = self._wish()
        free = self._thread.free and self._answer is None
        if wish == self._tried or not start or not free:
            return
        self._tried = wish
        plot, query = wish[1], wish[2]
        if plot is None:
            return
        if not self._drawn:
            self.state.value = html.told("drawing the first picture ...")
        self._thread.start(lambda: self._gather(plot, query))

    def _wish(self) -> tuple[int, Plot | None, Query]:
        return self.runs_table.version, self.plot, replace(self._query(), page=1, columns=())

    def _logarithmic(self, name: str | None) -> bool:
        field = self.runs_table.fields.get(name or "")
        return field is not None and field.kind == "number"

    def _gather(self, plot: Plot, query: Query) -> Answer | None:
        """In the thread: the rows, and where they are not those that are drawn, a picture of
        them."""
        order = self.runs_table.plot_order(plot, query)
        # Row by row: encoding all at once would hold the interpreter's lock for too long.
        rows = ",".join(json.dumps(row) for row in order["rows"])
        text = f'{json.dumps(order | {"rows": []})[:-1]}, "rows": [{rows}]}}'
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest == self._drawn:
            return None
        self._next = (digest, order)
        return self._helper.ask(f"{WORK}:picture", order=text)

    def _gathered(self) -> None:
        try:
            self._answer = self._thread.fetch()
        except ValueError as error:
            self.state.value = html.told(f"{error}.", "bad")

    def _show(self) -> None:
        answer, self._answer = self._answer, None
        if answer.error:
            self.state.value = html.told(f"The plot could not be drawn: {answer.error}", "bad")
            return
        self._drawn, self.order = self._next
        words = words_of(self.order)
        self.picture.value = runs_table_html.card(answer.value, words)
        self.state.value = html.told(words)


def _words(field: Field) -> str:
    """A field in a list of choices."""
    return field.label if field.varies else f"{field.label} (the same in all)"
