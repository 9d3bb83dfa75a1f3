"""Panel of the chosen runs: details, comparison, timeline, commands, exports.

Long work is asked of the helper process, one question at a time; the newest wish is
the one that is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import ipywidgets as widgets

from workbench.runs.campaign import Campaign
from workbench.ui import html, runs_table_html
from workbench.ui.frame_panel import button
from workbench.ui.helper_process import Answer, HelperProcess
from workbench.ui.runs_table import RunsTable
from workbench.ui.runs_table_files import check_name
from workbench.ui.runs_table_plot_panel import WORK, PlotPanel
from workbench.ui.runs_table_query import Query

MOST_SWEEPS = 20
WHERE = "reports/board"


class ChosenPanel:
    """Buttons for the chosen runs, and below them what they show."""

    def __init__(
        self,
        runs_table: RunsTable,
        helper: HelperProcess,
        plot: PlotPanel,
        query: Callable[[], Query],
    ) -> None:
        self.runs_table, self._helper, self._plot, self._query = runs_table, helper, plot, query
        self.chosen: tuple[str, ...] = ()
        self._answer: Answer | None = None
        self._show_answer: Callable[[Any], None] = lambda _: None
        self.compare = button("Compare two", "Two chosen runs side by side", self._compare)
        self.timeline = button(
            "Timeline", "The timeline of one chosen run, predicted above measured", self._timeline
        )
        self.commands = button(
            "Show commands", "The command lines that repeat the chosen runs and sweeps",
            self.show_commands,
        )  # fmt: skip
        self.name = widgets.Text(
            value="", placeholder=_usual_name(), description="export as",
            tooltip="Name of exported files: letters, digits, dots, underscores, hyphens",
            layout={"width": "300px"},
        )  # fmt: skip
        self.csv = button(
            "Export table (CSV)", "All columns of the listed runs, every page", self._export_table
        )
        self.figure = button(
            "Export plot (PDF, PNG, CSV)", "The plot, and the rows that it draws", self._export_plot
        )
        self.pair = button(
            "Export comparison", "The comparison as PDF, PNG and CSV", self._export_pair
        )
        self.state = widgets.HTML(html.told(""))
        self.details = widgets.HTML()
        self.shown = widgets.VBox()
        """The work that the last button asked for."""
        wrap = {"flex_flow": "row wrap", "grid_gap": "4px 8px"}
        self.buttons = widgets.HBox([self.compare, self.timeline, self.commands], layout=wrap)
        self.exports = widgets.HBox([self.name, self.csv, self.figure, self.pair], layout=wrap)
        self._enable()

    @property
    def settled(self) -> bool:
        return self._answer is None

    def choose(self, keys: tuple[str, ...]) -> None:
        """Show what is known of one run at once; of two, offer to compare them."""
        self.chosen = keys
        self._enable()
        self.details.value = ""
        if len(keys) == 1:
            self._details(keys[0])

    def tick(self) -> None:
        """Show what was asked for, once it is there."""
        if self._answer is not None and self._answer.done:
            answer, self._answer = self._answer, None
            if answer.error:
                self._say(answer.error, bad=True)
            else:
                self._show_answer(answer.value)

    def show_commands(self) -> None:
        """The command lines of the chosen runs, and of all named sweeps."""
        found = []
        for key in self.chosen[:5]:
            try:
                found.append((f"Repeat run {key}", self.runs_table.command(key)))
            except ValueError as error:
                self._say(f"run {key} cannot be repeated: {error}", bad=True)
        names = [campaign.name for campaign in Campaign.all(self.runs_table.store)]
        for name in names[:MOST_SWEEPS]:
            notebook, line = self.runs_table.sweep_commands(name)
            found.append((f"Repeat the sweep {name}: its notebook, without a browser", notebook))
            found.append((f"The sweep {name} from the command line", line))
        if not found:
            self._say("Choose a run to see the command that repeats it; there is no named sweep.")
            return
        self.shown.children = [widgets.HTML(runs_table_html.commands(found))]
        self._say(f"{len(found)} commands are shown below.")

    def _details(self, key: str) -> None:
        try:
            row = self.runs_table.row(key)
            lines = self.runs_table.log(key) if row["status"] != "ok" else []
            self.details.value = runs_table_html.run_details(row, lines)
        except ValueError as error:
            self._say(str(error), bad=True)

    def _compare(self) -> None:
        a, b = self.chosen
        self._ask("comparing ...", self._show_pair, "compared", key_a=a, key_b=b)

    def _show_pair(self, told: dict[str, Any]) -> None:
        self.shown.children = [widgets.HTML(runs_table_html.comparison(told))]
        self._say(f"{told['names'][0]} and {told['names'][1]} are compared below.")

    def _timeline(self) -> None:
        self._ask("reading the timeline ...", self._show_timeline, "timeline", key=self.chosen[0])

    def _show_timeline(self, data: dict[str, Any]) -> None:
        # Its script travels with its class, which a page without timelines need not fetch.
        from workbench.ui.timeline import Timeline

        self.shown.children = [Timeline(data=data)]
        sources = " above ".join(block["label"] for block in data["blocks"])
        self._say(f"The timeline is below: {sources}.")

    def _export_table(self) -> None:
        self._export("save_table", query=asdict(self._query()))

    def _export_plot(self) -> None:
        plot = self._plot.plot
        if plot is None:
            self._say("There is no plot yet.", bad=True)
        else:
            self._export("save_plot", plot=asdict(plot), query=asdict(self._query()))

    def _export_pair(self) -> None:
        a, b = self.chosen
        self._export("save_compared", key_a=a, key_b=b)

    def _export(self, function: str, **arguments: Any) -> None:
        try:
            name = check_name(self.name.value.strip() or _usual_name())
        except ValueError as error:
            self._say(str(error), bad=True)
            return
        self._ask("writing ...", self._exported, function, name=name, **arguments)

    def _exported(self, files: list[str]) -> None:
        self._say(f"Written to {WHERE} in the results folder: {', '.join(files)}.")

    def _ask(
        self, words: str, show: Callable[[Any], None], function: str, **arguments: Any
    ) -> None:
        self._show_answer = show
        root = str(self.runs_table.store.root)
        self._answer = self._helper.ask(f"{WORK}:{function}", root=root, **arguments)
        self._say(words)

    def _say(self, words: str, *, bad: bool = False) -> None:
        self.state.value = html.told(words, "bad" if bad else "")

    def _enable(self) -> None:
        """A button that cannot do anything says what it waits for."""
        two, one = len(self.chosen) == 2, len(self.chosen) == 1
        for made, ready, words in (
            (self.compare, two, "Choose two runs to compare them"),
            (self.pair, two, "Choose two runs to export their comparison"),
            (self.timeline, one, "Choose one run to see its timeline"),
        ):
            made.disabled = not ready
            made.tooltip = made.description if ready else words


def _usual_name() -> str:
    return f"runs-{datetime.now():%Y-%m-%d-%H%M}"
