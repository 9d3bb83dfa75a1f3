"""The live plot of the runs that are listed: its fields, and the picture, which the helper process
draws: by matplotlib, or by plotly where it is installed, to point at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from workbench.runs.columns import FIRST_RESULTS, FIRST_SETTINGS, SENTENCES, Column
from workbench.ui import html
from workbench.ui.frame_panel import checkbox
from workbench.ui.helper_process import HelperAnswer, HelperProcess
from workbench.ui.runs.html import card
from workbench.ui.runs.plot import NONE, Plot
from workbench.ui.runs.table import RunsTable

WORK = "workbench.ui.runs.work"
PLOTLY = find_spec("plotly")
"""Found and not imported: its script is what the page needs."""
TOOLTIPS = {
    "x": "Field along the horizontal axis; fields that vary come first",
    "y": "Field along the vertical axis; fields that vary come first",
    "colour": "Field that colours, shapes and lines tell apart",
}
NO_AXIS = SENTENCES | {"sweep"}


@lru_cache(maxsize=1)
def pointed_widget() -> type[anywidget.AnyWidget]:
    """The class of plots to point at; its script of 5 MB is read when the first is wanted."""
    script = Path(PLOTLY.submodule_search_locations[0], "package_data", "plotly.min.js")
    mine = Path(__file__).with_name("runs_pointed.js")

    class Pointed(anywidget.AnyWidget):
        _esm = (
            "const module = { exports: {} }, exports = module.exports;\n"
            f"{script.read_text(encoding='utf-8')}\n{mine.read_text()}"
        )
        figure = traitlets.Dict().tag(sync=True)
        words = traitlets.Unicode().tag(sync=True)

    return Pointed


class Picture:
    """The picture and its words. `tick` it again and again."""

    def __init__(self, helper: HelperProcess) -> None:
        self._helper = helper
        self._wish: dict[str, Any] | None = None
        self._answer: HelperAnswer | None = None
        self.state = widgets.HTML(html.live(""))
        self.image = widgets.HTML()
        self.widget = widgets.VBox([self.state, self.image])

    @property
    def settled(self) -> bool:
        """Whether the picture that was asked for last is shown."""
        return self._answer is None and self._wish is None

    def want(self, function: str, **arguments: Any) -> None:
        """Show the picture that a function of work.py makes."""
        self._wish = {"function": f"{WORK}:{function}", **arguments}

    def clear(self) -> None:
        """Show nothing."""
        self._wish = self._answer = None
        self.state.value, self.image.value = html.live(""), ""
        self.widget.children = [self.state, self.image]

    def tick(self) -> None:
        """Show what was drawn, and draw what is wanted. Never waits."""
        if self._answer is not None and self._answer.done:
            answer, self._answer = self._answer, None
            words = answer.error or answer.value["words"]
            self.state.value = html.live(words, "bad" if answer.error else "")
            if not answer.error:
                self._show(answer.value)
        if self._answer is None and self._wish is not None:
            self._answer, self._wish = self._helper.ask(**self._wish), None

    def _show(self, told: dict[str, Any]) -> None:
        if "png" in told:
            self.image.value = card(told["png"], told["words"])
            self.widget.children = [self.state, self.image]
        elif self.widget.children[-1] is self.image:
            made = pointed_widget()(figure=told["plotly"], words=told["words"])
            self.widget.children = [self.state, made]
        else:
            self.widget.children[-1].set_trait("words", told["words"])
            self.widget.children[-1].set_trait("figure", told["plotly"])


class PlotPanel:
    """Controls and picture. `tick` is called again and again by the panel that holds it."""

    def __init__(
        self, runs_table: RunsTable, helper: HelperProcess, keys: Callable[[], list[str] | None]
    ) -> None:
        """`keys`: the runs that are listed; None for all."""
        self.runs_table, self._keys = runs_table, keys
        self.picture = Picture(helper)
        self._drawn: Any = None
        self._sweep, self._usual = runs_table.sweep, Plot(NONE, NONE)
        self.fields = {
            what: widgets.Dropdown(description=what, tooltip=words, layout={"width": "260px"})
            for what, words in TOOLTIPS.items()
        }
        self.lines = checkbox("lines", "Lines through the medians of equal x")
        self.logs = {
            axis: checkbox(f"logarithmic {axis}", f"Logarithmic scale of the {axis} axis")
            for axis in ("x", "y")
        }
        self.pointed = checkbox(
            "values where one points", "By plotly: point at a mark, drag to zoom"
        )
        boxes = [*self.logs.values(), *[self.pointed] * bool(PLOTLY)]
        controls = [*self.fields.values(), self.lines, *boxes]
        self.widget = widgets.VBox(
            [
                widgets.HTML(html.heading("Plot of the runs listed above")),
                widgets.HBox(controls, layout={"flex_flow": "row wrap", "grid_gap": "0 12px"}),
                self.picture.widget,
            ]
        )

    @property
    def plot(self) -> Plot | None:
        """The plot that the controls show; None while there is nothing to plot."""
        chosen = {what: control.value or NONE for what, control in self.fields.items()}
        logs = {f"log_{a}": box.value and not box.disabled for a, box in self.logs.items()}
        return Plot(**chosen, lines=self.lines.value, **logs) if chosen["x"] else None

    @property
    def settled(self) -> bool:
        """Whether the picture shows the last plot asked for, of the present rows."""
        return self.picture.settled and self._drawn == self._wish()

    def fill(self) -> None:
        """Offer the fields that there are. A plot that people changed stays until another sweep is
        shown; else the usual one of the present rows is shown."""
        known, sweep = self.runs_table.state.fields, self.runs_table.sweep
        names = [name for name in known if name not in NO_AXIS]
        untouched = self.plot is None or self.plot[:4] == self._usual[:4]
        fresh = bool(names) and (untouched or self._sweep != sweep)
        usual = usual_plot(known, self.runs_table.sweeps.swept(sweep) if fresh and sweep else ())
        if fresh:
            self._sweep, self._usual, self.lines.value = sweep, usual, usual.lines
        for what, control in self.fields.items():
            options = [("nothing", NONE)] * (what == "colour")
            options += [(_words(known[name]), name) for name in names]
            if names and (control.options != tuple(options) or fresh):
                kept = control.value
                if control.options != tuple(options):
                    control.options = options
                there = kept in {name for _, name in options} and kept is not None and not fresh
                control.value = kept if there else getattr(usual, what)

    def tick(self) -> None:
        """Draw what is wanted and not drawn. Never waits."""
        for axis, box in self.logs.items():
            field = self.runs_table.state.fields.get(self.fields[axis].value or "")
            box.disabled = field is None or field.kind != "number"
        wish = self._wish()
        if wish != self._drawn and self.picture.settled:
            self._drawn = wish
            _, plot, keys, pointed, root = wish
            if plot is None:
                self.picture.clear()
            else:
                self.picture.want("picture", plot=list(plot), keys=keys, pointed=pointed, root=root)
        self.picture.tick()

    def _wish(self) -> tuple[int, Plot | None, list[str] | None, bool, str]:
        root = str(self.runs_table.store.root)
        return self.runs_table.state.version, self.plot, self._keys(), self.pointed.value, root


def usual_plot(fields: Mapping[str, Column], swept: Sequence[str] = ()) -> Plot:
    """The plot that says most of the records there are: a result over a setting; of a sweep over
    one field or two, over the first that is a number, a line for each value of the other."""
    y = next((n for n in ("samples_per_second", *FIRST_RESULTS) if n in fields), "steps_done")
    there = [name for name in swept if name in fields]
    numbers = [name for name in there if fields[name].kind == "number"]
    if numbers and len(there) <= 2:
        other = next((name for name in there if name != numbers[0]), "method")
        return Plot(x=numbers[0], y=y, colour=other, lines=True)
    x = next((n for n in FIRST_SETTINGS if n in fields and fields[n].varies), "started")
    return Plot(x=x, y=y)


def _words(field: Column) -> str:
    """A field in a list of choices."""
    return field.label if field.varies else f"{field.label} (the same in all)"
