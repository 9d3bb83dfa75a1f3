"""Sweeps as widgets: choose, fill in, see what it takes, start, watch, go on.

    panel = SweepPanel(store)
    panel.widget                                       # the page
    panel.form.set(method="stronghold", layers="4..8") # the same from code
    panel.start()

Nothing of a sweep runs here: the kernel looks at it twice a second.
"""

from __future__ import annotations

import sys
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import ipywidgets as widgets

from workbench.core.mistakes import in_a_sentence
from workbench.core.paths import user_path
from workbench.core.spec import RunSpec
from workbench.runs.store import REPOSITORY_RESULTS, Store
from workbench.ui import html
from workbench.ui.form import Form
from workbench.ui.form_panel import FormPanel
from workbench.ui.frame_panel import button, checkbox, dropdown, framed
from workbench.ui.helper_process import HelperProcess
from workbench.ui.sweeps import html as sweep_html
from workbench.ui.sweeps.batch import run_to_end
from workbench.ui.sweeps.control import ACTIONS, SweepControl
from workbench.ui.sweeps.html import KEEP, KEPT
from workbench.ui.ticker import Ticker

if TYPE_CHECKING:
    import pandas

LOOK_S = 0.5
NEW = ""
BUTTONS = {
    "start": ("Start", "Save the sweep and start its runs that have no record yet"),
    "pause": ("Pause", "Start no more runs; the current ones may finish"),
    "go_on": ("Resume", "Start the remaining runs of the sweep that is shown"),
    "cancel": ("Cancel", "End the current runs and start no more; finished ones stay"),
    "retry": ("Retry failed", "Start the failed runs again"),
}
"""Action -> its words, and what it does. No icons: they would be part of what is read out."""
MOST_LOGS = 200
COLUMNS = ["what", "key", "state", "status", "loss", "seconds", "samples_per_second", "message"]
"""Columns of `table`."""


class SweepPanel:
    """The page. What its widgets do, `control` does without them."""

    def __init__(
        self, store: Store, *, helper: HelperProcess | None = None, confined: bool = False
    ) -> None:
        """Shows the sweep that runs or was interrupted, if there is one. `confined` as in
        `SweepControl`."""
        self.control = SweepControl(store, helper=helper, confined=confined)
        self._make()
        self.widget = framed(
            [
                widgets.HTML(f'{html.STYLE}<div class="wb"><h2>Sweep</h2></div>'),
                _row(self.chosen, self.path, self.load_file),
                self.fields.widget,
                self.preview,
                _row(*self.buttons.values()),
                self.keep,
                widgets.HTML(f'<div class="wb soft">{escape(KEPT)}</div>'),
                self.progress, self.state, self.refusal, self.points, self.log_of, self.tail,
                self.repeat,
            ]
        )  # fmt: skip
        self._ticker = Ticker(LOOK_S, self.tick, self._failed)
        self.control.attempt(self.control.open)
        self.fields.fill()
        self.show()
        self._ticker.start()

    # -- from code ------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """Results folder of the sweeps."""
        return self.control.store

    @property
    def form(self) -> Form:
        """Form of the sweep to run; change it with `set`, and `load`."""
        return self.control.form

    def start(self) -> None:
        """Start the sweep of the form. Raises ValueError and StoreError, in one sentence."""
        self.control.start()
        self.refresh()

    def take(self, spec: RunSpec) -> None:
        """Fill the form for one run like this, to be changed or started."""
        self.control.attempt(partial(self.control.take, spec))
        self.refresh()

    def run(self, path: str | Path) -> None:
        """Run a sweep file to its end, with a line of progress each run, and show it. Blocks.

        Raises ValueError for a file that is malformed, and StoreError.
        """
        sweep = run_to_end(self.store, Path(path), sys.stdout)
        self.control.show(sweep.name)
        self.refresh()

    def table(self) -> pandas.DataFrame:
        """The runs of the sweep that is shown, else the sweeps there are."""
        import pandas

        sweep = self.control.shown
        if sweep is None:
            names = [
                (s.name, s.status.state, s.counts()) for s in self.control.watch.sweeps.values()
            ]
            return pandas.DataFrame(names, columns=["sweep", "state", "runs"])
        self.control.watch.wait_listed()
        rows = [[getattr(point, name) for name in COLUMNS] for point in sweep.points]
        return pandas.DataFrame(rows, columns=COLUMNS)

    def refresh(self) -> None:
        """Show what was changed from code."""
        self.control.look()
        self.fields.fill()
        self.show()

    def close(self) -> None:
        """Look no more, and remove the widgets. Sweeps go on."""
        self._ticker.stop()
        self.control.close()
        self.widget.close()

    # -- what is shown --------------------------------------------------------------------------

    def tick(self) -> bool:
        """Look once, and show what is new."""
        if self.control.look():
            self.show()
        return True

    def show(self) -> None:
        """Everything but the fields. A widget that is set to what it is sends nothing."""
        control, sweep = self.control, self.control.shown
        why_not = control.why_not()
        for action, made in self.buttons.items():
            words = BUTTONS[action][1]
            made.disabled = bool(why_not[action])
            made.tooltip = f"{words} (not now: {why_not[action]})" if why_not[action] else words
        self.preview.value = sweep_html.preview_html(control.preview)
        self._show_choices()
        starting = "the sweep is being started ..." if control.starting else ""
        problem = sweep.problem if sweep is not None else ""
        words = starting or sweep_html.state_words(sweep)
        self.state.value = html.live(words, "bad" if problem else "")
        said = "" if control.message == problem else control.message  # once is enough
        self.refusal.value = html.live(said, "bad" if said else "")
        counts = sweep.counts() if sweep is not None else {}
        self.progress.max = max(1, sum(counts.values()))
        self.progress.value = counts.get("done", 0) + counts.get("failed", 0)
        self.progress.layout.display = self.log_of.layout.display = "none" if sweep is None else ""
        self.points.value = sweep_html.points_table(sweep.points) if sweep is not None else ""
        self.tail.value = sweep_html.tail_html(sweep.tail) if sweep is not None else ""
        lines = "\n".join(control.commands())
        label = "commands that repeat this sweep"
        self.repeat.value = (
            html.paragraph("To repeat or resume this sweep without this page:", "soft")
            + html.log(lines, label)
            if lines
            else ""
        )

    def _show_choices(self) -> None:
        """The lists to choose from; setting a list would also set what is chosen."""
        sweep, watch = self.control.shown, self.control.watch
        self._listing = True
        try:
            options = [("a new sweep", NEW)]
            options += [(f"{s.name} ({s.status.state})", s.name) for s in watch.sweeps.values()]
            if self.chosen.options != tuple(options):
                self.chosen.options = options
            self.chosen.value = watch.followed if watch.followed in watch.sweeps else NEW
            points = sweep.points[:MOST_LOGS] if sweep is not None else []
            logs = [("the current run", NEW)]
            logs += [(f"{n}: {point.what}", point.key) for n, point in enumerate(points, start=1)]
            if self.log_of.options != tuple(logs):
                self.log_of.options = logs
            keys = [key for _, key in logs]
            shown = sweep.shown if sweep is not None else NEW
            self.log_of.value = shown if shown in keys else NEW
        finally:
            self._listing = False

    def _failed(self, error: Exception) -> None:
        """The look itself went wrong: say so instead of standing still."""
        words = " ".join(str(error).split()) or type(error).__name__
        self.refusal.value = html.live(f"this page stopped looking: {words}; open it anew", "bad")

    # -- widgets --------------------------------------------------------------------------------

    def _make(self) -> None:
        self._listing = False
        about = "A sweep of this results folder, or a new one"
        self.chosen = dropdown("show", about, [("a new sweep", NEW)], self._choose)
        self.path = widgets.Text(
            description="sweep file",
            placeholder="path of a JSON file",
            tooltip="A sweep file to fill the fields from",
            continuous_update=False,
        )
        self.load_file = button("Load", "Fill the fields from the sweep file", self._load)
        self.fields = FormPanel(self.control.form, self._typed)
        self.preview = widgets.HTML()
        self.buttons = {
            action: button(*BUTTONS[action], partial(self._do, action)) for action in ACTIONS
        }
        self.keep = checkbox(KEEP, KEPT)
        self.keep.observe(lambda _: self._keep(), "value")
        self.progress = widgets.IntProgress(
            value=0, max=1, description="ended", tooltip="Runs of the sweep that have ended"
        )
        self.state, self.refusal = widgets.HTML(html.live("")), widgets.HTML(html.live(""))
        self.points, self.tail, self.repeat = widgets.HTML(), widgets.HTML(), widgets.HTML()
        about, current = "Whose last lines are shown", [("the current run", NEW)]
        self.log_of = dropdown("log of", about, current, self._choose_log)

    def _do(self, action: str) -> None:
        options = {"wait": False} if action in ("start", "go_on", "retry") else {}
        self.control.do(action, **options)
        self.refresh()

    def _choose(self) -> None:
        if self._listing:
            return
        name = self.chosen.value
        self.control.attempt(partial(self.control.show, name) if name else self.control.new)
        self.refresh()

    def _load(self) -> None:
        self.control.attempt(lambda: self.control.load(self.path.value.strip()))
        self.refresh()

    def _typed(self) -> None:
        self.control.changed()
        self.show()

    def _keep(self) -> None:
        self.control.detached = self.keep.value

    def _choose_log(self) -> None:
        if not self._listing and self.control.shown is not None:
            self.control.shown.shown = self.log_of.value
            self.refresh()


@in_a_sentence()
def open_panel(results: str | Path = REPOSITORY_RESULTS, sweep: str = "") -> SweepPanel:
    """The panel of a results folder, which is found as `Store` does.

    With `sweep`, a sweep file (relative to here, else to the repository), that is run to its end
    first; what the file says of results is not used. Raises ValueError, and StoreError.
    """
    panel = SweepPanel(Store(results))
    if sweep:
        path = user_path(sweep)
        panel.run(path if path.exists() else REPOSITORY_RESULTS.parent / path)
    return panel


def _row(*children: widgets.Widget) -> widgets.HBox:
    return widgets.HBox(children, layout={"flex_flow": "row wrap"})
