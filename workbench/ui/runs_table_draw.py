"""A plot of records, drawn: the project's colours and marks, failed runs in rows of their own.

Colours and shapes are a method's own, or of a palette that colour-blind readers tell apart; each
colour also has a shape, for grey print. The fill of a mark says where its number comes from:
published ones are hollow, simulated ones half filled, measured ones filled. Strokes without an area
are no such numbers: they say how a run ended, in a strip above the axes where it has no value, a
row a reason.
"""

from __future__ import annotations

from datetime import UTC, datetime
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from workbench.figures.style import LOOKS, PAGE_IN, Look, styled
from workbench.ui.runs_table_classes import Classes
from workbench.ui.runs_table_fields import ENDINGS, Row
from workbench.ui.runs_table_legend import DASHES, legend, small_print, source_look
from workbench.ui.runs_table_plot import EDGE, NOWHERE, SOURCES, VALUE

PALETTE = (
    Look("#0072B2", "o"), Look("#D55E00", "s"), Look("#009E73", "^"), Look("#CC79A7", "D"),
    Look("#E69F00", "v"), Look("#56B4E9", "P"), Look("#000000", "X"), Look("#777777", "<"),
)  # fmt: skip
LADDER = (
    Look("#440154", "o"), Look("#414487", "s"), Look("#2A788E", "^"),
    Look("#22A884", "D"), Look("#7AD151", "v"), Look("#C9B400", "P"),
)  # fmt: skip
"""Colours of numbers: from dark to light, in this order also in grey."""
MOST_FACETS, MOST_TICKS = 6, 16
MANY = 400
"""Points from which on marks are smaller and let each other show through."""
ROW_IN, PANEL_IN, SMALL_PANEL_IN = 0.16, 2.7, 1.75
"""Heights of a row of the strip, of a single panel, and of one of many."""


def draw(order: dict[str, Any]) -> Figure:
    """The figure of what `runs_table_plot.plot_order` made."""
    with styled():
        return _Drawing(order).figure()


class _Drawing:
    """One plot while it is drawn."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.plot, self.axes, self.rows = order["plot"], order["axes"], order["rows"]
        colour, facet = self.axes["colour"], self.axes["facet"]
        most = len(PALETTE) if colour["kind"] == "text" else len(LADDER)
        self.colours = Classes.of([row["colour"] for row in self.rows], most, **_told(colour))
        self.facets = Classes.of([row["facet"] for row in self.rows], MOST_FACETS, **_told(facet))
        self.looks = self._looks()
        self.words = {
            axis: Classes.of([row[axis] for row in self.rows if row[axis] is not None], MOST_TICKS)
            for axis in ("x", "y")
            if self.axes[axis]["kind"] == "text"
        }
        stripped = {(row["status"], row["source"]) for row in self.rows if _in_strip(row)}
        self.reasons = [(s, source) for s in ENDINGS for source in SOURCES
                        if (s, source) in stripped]  # fmt: skip

    def figure(self) -> Figure:
        count = max(1, len(self.facets.labels))
        columns = 2 if count == 4 else min(3, count)
        lines = -(-count // columns)
        strip_in = ROW_IN * len(self.reasons) + 0.02
        panel_in = PANEL_IN if lines == 1 else SMALL_PANEL_IN
        figure = Figure(figsize=(PAGE_IN, lines * (panel_in + strip_in) + 0.5),
                        layout="constrained")  # fmt: skip
        figure.get_layout_engine().set(h_pad=0.03, hspace=0.0, wspace=0.03)
        grid = figure.add_gridspec(2 * lines, columns, height_ratios=[strip_in, panel_in] * lines)
        first = None
        for place in range(count):
            line, column = divmod(place, columns)
            panel = figure.add_subplot(grid[2 * line + 1, column], sharex=first, sharey=first)
            first = first or panel
            rows = [row for row in self.rows if self.facets.place(row["facet"]) == place]
            self._panel(panel, rows)
            top = panel
            if self.reasons:
                top = figure.add_subplot(grid[2 * line, column], sharex=panel)
                self._strip(top, rows, words=column == 0)
            if self.plot["facet"]:
                words = f"{self.axes['facet']['label']}: {self.facets.labels[place]}"
                top.set_title(words, fontsize=7.5, pad=3)
            if column:
                panel.tick_params(labelleft=False)
                panel.set_ylabel("")
            if place + columns < count:
                panel.tick_params(labelbottom=False)
                panel.set_xlabel("")
        legend(figure, self.rows, self.axes["colour"], self.colours, self.looks)
        small_print(figure, self.rows)
        return figure

    def _looks(self) -> list[Look]:
        """One a class of colour."""
        labels = self.colours.labels
        if self.axes["colour"]["name"] == "method":
            return [LOOKS.get(label, PALETTE[i]) for i, label in enumerate(labels)]
        if self.axes["colour"]["kind"] == "text":
            return list(PALETTE[: len(labels)])
        steps = max(1, len(labels) - 1)
        return [LADDER[i * (len(LADDER) - 1) // steps] for i in range(len(labels))]

    def _at(self, axis: str, value: Any) -> Any:
        """A value of the table as one of an axis."""
        if axis in self.words:
            return self.words[axis].place(value)
        if self.axes[axis]["kind"] == "time":
            return datetime.fromtimestamp(value, UTC)
        return value * self.axes[axis]["factor"]

    def _look(self, row: Row) -> Look:
        return self.looks[self.colours.place(row["colour"])]

    def _panel(self, panel: Any, rows: list[Row]) -> None:
        """The values of some rows. Sources lie over each other as they do in every figure."""
        series: dict[tuple[int, int], list[Row]] = {}
        for row in rows:
            if row["drawn"] == VALUE and row["status"] == "ok":
                key = (SOURCES.index(row["source"]), self.colours.place(row["colour"]))
                series.setdefault(key, []).append(row)
        many = len(rows) > MANY
        for source, colour in sorted(series):
            look, name = self.looks[colour], SOURCES[source]
            found = series[source, colour]
            points = [(self._at("x", row["x"]), self._at("y", row["y"])) for row in found]
            if self.plot["kind"] == "lines":
                panel.plot(*_medians(points), color=look.color, linewidth=1.1,
                           linestyle=DASHES[name])  # fmt: skip
            mark = source_look(look, name) | {"linestyle": "none"}
            if many:
                mark |= {"markersize": 3, "alpha": 0.55, "markeredgewidth": 0.3}
            panel.plot(*zip(*points, strict=True), **mark)
        for row in rows:
            if row["y"] is not None and row["status"] != "ok" and row["drawn"] in (VALUE, EDGE):
                self._stroke(panel, row, self._at("y", row["y"]))
        self._scales(panel)

    def _strip(self, strip: Any, rows: list[Row], *, words: bool) -> None:
        """Runs without a value, above the axes: at their x, in the row of their reason."""
        for row in rows:
            if _in_strip(row):
                self._stroke(strip, row, self.reasons.index((row["status"], row["source"])))
        names = [
            ENDINGS[status].words + ("" if source == "measured" else f", {source}")
            for status, source in self.reasons
        ]
        heights = range(len(names))
        strip.set_yticks(heights, names if words else [""] * len(names), fontsize=6)
        strip.set_ylim(-0.6, len(names) - 0.4)
        strip.tick_params(axis="x", which="both", length=0, labelbottom=False)
        strip.tick_params(axis="y", length=0, pad=2)
        strip.grid(visible=False)
        strip.set_facecolor("#f0f0f0")
        for spine in strip.spines.values():
            spine.set_visible(False)

    def _stroke(self, axes: Any, row: Row, y: Any) -> None:
        """How a run ended, at its x; at the left edge where it has none."""
        ending = ENDINGS.get(row["status"], ENDINGS["error"])
        look = {"marker": ending.marker, "color": self._look(row).color, "markersize": 5.5,
                "linestyle": "none", "clip_on": False, "zorder": 4}  # fmt: skip
        if row["x"] is None:
            axes.plot([0], [y], transform=axes.get_yaxis_transform(), **look)
        else:
            axes.plot([self._at("x", row["x"])], [y], **look)

    def _scales(self, panel: Any) -> None:
        panel.margins(0.05)
        for name, axis in (("x", panel.xaxis), ("y", panel.yaxis)):
            told = self.axes[name]
            if name in self.words:
                labels = self.words[name].labels
                long = sum(map(len, labels)) * max(1, len(self.facets.labels)) > 70
                turned = {"rotation": 30, "ha": "right"} if long and name == "x" else {}
                axis.set_ticks(range(len(labels)), labels, **turned)
                panel.set(**{f"{name}lim": (-0.5, len(labels) - 0.5)})
            elif told["kind"] == "time":
                self._dates(axis, name)
            elif self.plot[f"log_{name}"]:
                panel.set(**{f"{name}scale": "log"})
            axis.set_label_text(told["label"])
        shown = [row for row in self.rows if row["drawn"] != NOWHERE]
        known = [row["y"] for row in shown if row["y"] is not None]
        numbers = self.axes["y"]["kind"] == "number" and not self.plot["log_y"]
        if numbers and known and min(known) >= 0:  # bars of empty space say how much smaller
            panel.set_ylim(0, max(known) * self.axes["y"]["factor"] * 1.06 or 1)

    def _dates(self, axis: Any, name: str) -> None:
        """Days, or hours where there are few of them; each tick says all, for panels are narrow."""
        from matplotlib.dates import AutoDateLocator, DateFormatter

        known = [row[name] for row in self.rows if row[name] is not None]
        days = (max(known) - min(known)) / 86400 if known else 0
        axis.set_major_locator(AutoDateLocator(maxticks=4 if len(self.facets.labels) > 1 else 7))
        axis.set_major_formatter(DateFormatter("%Y\n%m-%d" if days > 4 else "%m-%d\n%H:%M"))


def _told(axis: dict[str, Any]) -> dict[str, str]:
    return {"name": axis["name"], "kind": axis["kind"]}


def _in_strip(row: Row) -> bool:
    return row["drawn"] == EDGE and row["y"] is None


def _medians(points: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """One point for each x."""
    at: dict[Any, list[Any]] = {}
    for x, y in points:
        at.setdefault(x, []).append(y)
    order = sorted(at)
    return order, [median(at[x]) for x in order]
