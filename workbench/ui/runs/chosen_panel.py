"""Panel of the chosen runs: details, losses, comparison, timeline, commands, exports, removal.

Long work is asked of the helper process, one question at a time; the newest wish is
the one that is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from time import monotonic
from typing import Any

import ipywidgets as widgets

from workbench.core.record import RESULTS
from workbench.runs.campaign import Campaign
from workbench.runs.sweep import check_name
from workbench.ui import html
from workbench.ui.frame_panel import button
from workbench.ui.helper_process import HelperAnswer, HelperProcess
from workbench.ui.runs import html as runs_table_html
from workbench.ui.runs.commands import run_command, sweep_commands
from workbench.ui.runs.compare import MOST
from workbench.ui.runs.files import log_lines
from workbench.ui.runs.plot_panel import WORK, Picture, PlotPanel
from workbench.ui.runs.table import ALL, RunsTable

LIVE_S = 5.0
"""Between two drawings of the losses of runs in work, which may need all cores."""
WHERE = "reports of the results folder"
LISTED, CHOSEN = "listed", "chosen"
EXPORTS = {
    "CSV": (LISTED, "save_table", {"form": "csv"}, "All columns of the listed runs"),
    "JSONL": (LISTED, "save_table", {"form": "jsonl"}, "The listed runs, a line of JSON each"),
    "TensorBoard": (LISTED, "save_table", {"form": "tensorboard"},
                    "Losses, settings and results of the listed runs, as its logs"),
    "Plot": (LISTED, "save_plot", {}, "The plot as PDF and PNG, and its rows"),
    "Comparison": (CHOSEN, "save_compared", {}, "Losses as PDF and PNG, and all that is compared"),
    "Trace": (CHOSEN, "save_trace", {}, "The chosen runs' timelines, for ui.perfetto.dev"),
    "Report": (LISTED, "reports", {}, "The reports in the results folder"),
}  # fmt: skip
"""Button -> of which runs, a function of work.py, more arguments, what it writes."""


class ChosenPanel:
    """Buttons for the chosen runs, and below them what they show."""

    def __init__(
        self,
        runs_table: RunsTable,
        helper: HelperProcess,
        plot: PlotPanel,
        keys: Callable[[], list[str] | None],
    ) -> None:
        """`keys`: the runs that are listed; None for all."""
        self.runs_table, self._helper, self._plot, self._keys = runs_table, helper, plot, keys
        self.chosen: tuple[str, ...] = ()
        self._answer: HelperAnswer | None = None
        self._show_answer: Callable[[Any], None] = lambda _: None
        self._drawn: Any = None
        self._drawn_at = 0.0
        self._sure: Any = None
        self.curves = Picture(helper)
        self.compare = button("Compare", "The chosen runs side by side", self._compare)
        self.timeline = button(
            "Timeline", "The timeline of one chosen run, predicted above measured", self._timeline
        )
        self.commands = button(
            "Show commands", "The command lines that repeat the chosen runs, and the sweep",
            self.show_commands,
        )  # fmt: skip
        self.remove = button("Remove failed runs", "Delete chosen runs that failed", self._remove)
        self.name = widgets.Text(
            placeholder=_usual_name(), description="export as", layout={"width": "300px"},
            tooltip="Name of exported files: letters, digits, dots, underscores, hyphens",
        )  # fmt: skip
        self.exports = {
            words: button(words, told, lambda words=words: self._export(words))
            for words, (_, _, _, told) in EXPORTS.items()
        }
        self.state = widgets.HTML(html.live(""))
        self.details = widgets.HTML()
        self.shown = widgets.VBox()
        """The work that the last button asked for."""
        wrap = {"flex_flow": "row wrap", "grid_gap": "4px 8px"}
        acts = [self.compare, self.timeline, self.commands, self.remove]
        self.widget = widgets.VBox(
            [
                widgets.HBox(acts, layout=wrap),
                widgets.HBox([self.name, *self.exports.values()], layout=wrap),
                self.state,
                self.details,
                self.curves.widget,
                self.shown,
            ]
        )
        self._enable()

    @property
    def settled(self) -> bool:
        """Whether all that was asked for is shown."""
        return self._answer is None and self.curves.settled and self._drawn == self._wanted()

    def choose(self, keys: tuple[str, ...]) -> None:
        """Show what is known of one run at once; of several, offer to compare them."""
        self.chosen, self._sure = keys, None
        self._enable()
        self.details.value = ""
        if len(keys) == 1:
            self._details(keys[0])

    def tick(self) -> None:
        """Show what was asked for, once it is there, and the losses as they come."""
        if self._answer is not None and self._answer.done:
            answer, self._answer = self._answer, None
            if answer.error:
                self._say(answer.error, bad=True)
            else:
                self._show_answer(answer.value)
        wanted, now = self._wanted(), monotonic()
        live = wanted[0] and not self.chosen and now > self._drawn_at + LIVE_S
        if (wanted != self._drawn or live) and self.curves.settled:
            self._drawn, self._drawn_at = wanted, now
            if wanted[0]:
                root = str(self.runs_table.store.root)
                self.curves.want("losses", root=root, keys=wanted[0], pointed=wanted[1])
            else:
                self.curves.clear()
        self.curves.tick()

    def _wanted(self) -> tuple[list[str], bool]:
        """Runs whose losses are shown: the chosen ones, else those that are in work; and whether to
        point at."""
        keys = self.chosen or self.runs_table.running
        return list(keys)[:MOST], self._plot.pointed.value

    def show_commands(self) -> None:
        """The command lines of the chosen runs, and of the sweep that is shown."""
        found, sweep = [], self.runs_table.sweep
        for key in self.chosen[:5]:
            try:
                spec, store = self.runs_table.spec(key), self.runs_table.store
                found.append((f"Repeat run {key}", run_command(spec, store)))
            except ValueError as error:
                self._say(f"run {key} cannot be repeated: {error}", bad=True)
        if sweep != ALL:
            notebook, line = sweep_commands(Campaign(self.runs_table.store, sweep))
            found.append((f"Repeat the sweep {sweep}: its notebook, without a browser", notebook))
            found.append((f"The sweep {sweep} from the command line", line))
        if not found:
            self._say("Choose a run, or a sweep, to see the command that repeats it.")
            return
        shown = "".join(html.paragraph(words) + html.log(line, words) for words, line in found)
        self.shown.children = [widgets.HTML(shown)]
        self._say(f"{len(found)} commands are shown below.")

    def _details(self, key: str) -> None:
        try:
            row = self.runs_table.row(key)
            lines = log_lines(self.runs_table.store, key) if row["status"] != "ok" else []
            self.details.value = runs_table_html.run_details(row, lines)
        except ValueError as error:
            self._say(str(error), bad=True)

    def _compare(self) -> None:
        self._ask("comparing ...", self._show_compared, "compared", keys=list(self.chosen))

    def _show_compared(self, rows: list[dict[str, Any]]) -> None:
        self.shown.children = [widgets.HTML(html.table(rows, f"{len(self.chosen)} runs"))]
        self._say(f"{len(self.chosen)} runs are compared below.")

    def _timeline(self) -> None:
        self._ask("reading the timeline ...", self._show_timeline, "timeline", key=self.chosen[0])

    def _show_timeline(self, data: dict[str, Any]) -> None:
        # Its script travels with its class, which a page without timelines need not fetch.
        from workbench.ui.timeline.timeline import Timeline

        self.shown.children = [Timeline(data=data)]
        sources = " above ".join(block["label"] for block in data["blocks"])
        self._say(f"The timeline is below: {sources}.")

    def _remove(self) -> None:
        """Delete what failed, the second time it is asked for: chosen runs that did not
        finish, else the sweep that is shown and its runs that tell nothing."""
        sweep, table = "" if self.chosen else self.runs_table.sweep, self.runs_table
        keys = table.failed(self.chosen or table.sweeps.keys.get(sweep, ()))
        keys = [key for key in keys if not sweep or table.row(key)["status"] not in RESULTS]
        what = f"{len(keys)} failed {'run' if len(keys) == 1 else 'runs'}"
        what = f"the sweep {sweep} and {what}" if sweep else what
        if self._sure != (sweep, keys):
            self._sure = sweep, keys
            self._say(f"Press again to delete {what}: records, logs and checkpoints.")
            return
        try:
            table.remove(keys, sweep)
            self._say(f"Deleted: {what}.")
        except (ValueError, OSError) as error:
            self._say(f"{error}.", bad=True)

    # -- exports --------------------------------------------------------------------------------

    def _export(self, words: str) -> None:
        which, function, arguments, _ = EXPORTS[words]
        keys = self._keys() if which == LISTED else list(self.chosen)
        if function == "save_plot":
            if self._plot.plot is None:
                self._say("There is no plot yet.", bad=True)
                return
            arguments = {"plot": list(self._plot.plot)}
        try:
            name = check_name(self.name.value.strip() or _usual_name(), "an export")
        except ValueError as error:
            self._say(str(error), bad=True)
        else:
            arguments = arguments | {"name": name, "keys": keys}
            self._ask("writing ...", self._exported, function, **arguments)

    def _exported(self, links: list[dict[str, str]]) -> None:
        self.state.value = runs_table_html.downloads(f"Written to {WHERE}:", links)

    def _ask(
        self, words: str, show: Callable[[Any], None], function: str, **arguments: Any
    ) -> None:
        self._show_answer = show
        root = str(self.runs_table.store.root)
        self._answer = self._helper.ask(f"{WORK}:{function}", root=root, **arguments)
        self._say(words)

    def _say(self, words: str, *, bad: bool = False) -> None:
        self.state.value = html.live(words, "bad" if bad else "")

    def _enable(self) -> None:
        """A button that cannot do anything says what it waits for."""
        count, table = len(self.chosen), self.runs_table
        removable = table.failed(self.chosen) if self.chosen else table.sweep != ALL
        self.remove.description = "Remove failed runs" if self.chosen else "Remove sweep"
        several = f"Choose 2 to {MOST} runs to compare them"
        for made, ready, words in (
            (self.compare, 2 <= count <= MOST, several),
            (self.exports["Comparison"], 2 <= count <= MOST, several),
            (self.exports["Trace"], count > 0, "Choose runs to export their timelines"),
            (self.timeline, count == 1, "Choose one run to see its timeline"),
            (self.remove, bool(removable), "Choose failed runs, or a sweep, to remove them"),
        ):
            made.disabled = not ready
            made.tooltip = made.description if ready else words


def _usual_name() -> str:
    return f"runs-{datetime.now():%Y-%m-%d-%H%M}"
