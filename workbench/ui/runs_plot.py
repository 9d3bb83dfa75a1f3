"""Plots of runs: one field of their records over another, and their losses over steps.

Each method has its colour and mark of all figures. The fill of a mark says where its number comes
from: published ones are hollow, simulated ones half filled, measured ones filled; what a planner
said of a run (the ``predicted_`` fields) is simulated. A run that ran out of memory, out of time,
or failed has no honest result: it stands above the axes with the mark of that, never at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from workbench.ui.runs_table_fields import (
    ENDINGS,
    NOT_SHOWN,
    Field,
    Row,
    cell,
    is_result,
    moment,
    number,
    plain,
    scaled,
    sort_key,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("points", "lines")
NONE = ""
"""Colour that tells nothing apart."""
VALUE, EDGE, NOWHERE = "value", "edge", "nowhere"
"""Where a record is drawn: at its value, above the axes, or not at all."""
DRAWABLE = frozenset({"ok", "diverged"})
"""Statuses whose results are what the spec asked for; a run of another one stopped before."""
PALETTE = (
    ("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"),
    ("#E69F00", "v"), ("#56B4E9", "P"), ("#000000", "X"), ("#777777", "<"),
)  # fmt: skip
"""Looks that colour-blind readers, and readers of a grey print, tell apart."""
FILLS = {
    "published": {"markerfacecolor": "white", "markeredgewidth": 1.2, "linestyle": ":"},
    "simulated": {"fillstyle": "left", "markerfacecoloralt": "white", "linestyle": "--"},
    "measured": {"markeredgecolor": "white", "markeredgewidth": 0.4, "linestyle": "-"},
}
LONGEST = 36
"""Letters of an entry of a legend."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot to draw. Raises ValueError for an unknown kind."""

    x: str
    y: str
    colour: str = "method"
    kind: str = "points"
    """``points``, or ``lines`` through the medians of equal x."""
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a plot is of {' or '.join(KINDS)}, not of {plain(self.kind, 40)!r}")


def plot_rows(plot: Plot, rows: Iterable[Row], fields: Mapping[str, Field]) -> list[Row]:
    """The tidy table of a plot, one row a record.

    ``key, method, source, status, drawn``, then ``x, y, colour``: values in the units of records
    (bytes, seconds; times as seconds since 1970), None where there is none. ``drawn`` is ``value``,
    ``edge`` (it ended otherwise than well), or ``nowhere``: a run that ended well and has no such
    value, or one without a place on a logarithmic axis.

    Raises ValueError for a field that no record has, or that has no logarithm.
    """
    for what in ("x", "y", "colour"):
        name = getattr(plot, what)
        if (name not in fields or name in NOT_SHOWN) and (what, name) != ("colour", NONE):
            raise ValueError(f"{what} is {plain(name, 60)!r}, a field that no record has")
    for what, name, log in (("x", plot.x, plot.log_x), ("y", plot.y, plot.log_y)):
        if log and fields[name].kind != "number":
            raise ValueError(f"{what} is {plain(name)}, which is no number and has no logarithm")
    return [_plot_row(plot, row, fields) for row in rows]


def _plot_row(plot: Plot, row: Row, fields: Mapping[str, Field]) -> Row:
    status = row.get("status", "")
    x, y = (
        _on_axis(row.get(name), fields[name])
        if status in DRAWABLE or not is_result(name) else None
        for name in (plot.x, plot.y)
    )  # fmt: skip
    off = any(log and v is not None and v <= 0 for log, v in ((plot.log_x, x), (plot.log_y, y)))
    well = status == "ok" and x is not None and y is not None
    drawn = NOWHERE if off else VALUE if well else NOWHERE if status == "ok" else EDGE
    predicted = any(name.startswith("predicted_") for name in (plot.x, plot.y))
    source = row.get("source")
    told = row.get(plot.colour) if plot.colour else None
    return {
        "key": plain(row.get("key", ""), 128), "method": plain(row.get("method", ""), 60),
        "source": "simulated" if predicted else source if source in FILLS else "measured",
        "status": status, "drawn": drawn, "x": x, "y": y,
        "colour": told if number(told) is not None else cell(plot.colour, told) or "none",
    }  # fmt: skip


def _on_axis(value: Any, field: Field) -> float | str | None:
    """A value on an axis: a number, or a word; None where it has no place there."""
    if field.kind == "number":
        return number(value)
    return moment(value) if field.kind == "time" else cell(field.name, value) or None


def words_of(plot: Plot, found: list[Row], fields: Mapping[str, Field]) -> str:
    """Description of a plot, for readers who cannot see it."""
    at = {
        place: [row for row in found if row["drawn"] == place] for place in (VALUE, EDGE, NOWHERE)
    }
    text = f"{fields[plot.y].label} over {fields[plot.x].label}, {_runs(at[VALUE])}"
    if plot.colour:
        text += f", coloured by {fields[plot.colour].label}"
    if at[EDGE]:
        text += f"; {_runs(at[EDGE])} without a result above, with the reason"
    if at[NOWHERE]:
        text += f"; {_runs(at[NOWHERE])} without such a value or a place on the axis, not drawn"
    return f"{text}." if at[VALUE] else f"{text}. No run has a value here yet."


def draw(plot: Plot, found: list[Row], fields: Mapping[str, Field]) -> Figure:
    """The figure of `plot_rows`, as wide as a page."""
    from matplotlib.figure import Figure

    from workbench.figures.style import LOOKS, PAGE_IN, styled

    names = sorted({row["colour"] for row in found}, key=sort_key)
    labels = {str(cell("method", name)): look for name, look in LOOKS.items()}
    looks = {name: PALETTE[min(i, len(PALETTE) - 1)] for i, name in enumerate(names)}
    looks |= {n: (labels[n].color, labels[n].marker) for n in names if n in labels}
    to = {axis: _Axis(axis, plot, found, fields) for axis in "xy"}
    with styled():
        figure = Figure(figsize=(PAGE_IN, 2.9), layout="constrained")
        axes = figure.subplots()
        for source in FILLS:  # they lie over each other as they do in every figure
            for name in names:
                rows = [row for row in found if (row["source"], row["colour"], row["drawn"])
                        == (source, name, VALUE)]  # fmt: skip
                if rows:
                    words = cell(plot.colour, name) + (
                        "" if source == "measured" else f", {source}"
                    )
                    points = [(to["x"].at(row["x"]), to["y"].at(row["y"])) for row in rows]
                    _series(axes, points, looks[name], source, words, lines=plot.kind == "lines")
        for axis in to.values():
            axis.put_on(axes)
        ended = [status for status in ENDINGS
                 if any(row["drawn"] == EDGE and row["status"] == status for row in found)]  # fmt: skip
        for height, status in enumerate(ended):
            for row in found:
                if row["drawn"] == EDGE and row["status"] == status:
                    _stroke(axes, to["x"], row, looks[row["colour"]][0], 1.03 + 0.05 * height)
        title = fields[plot.colour].label if plot.colour else None
        _legend(figure, axes, title)
    return figure


def draw_losses(losses: Mapping[str, list[Any]]) -> Figure:
    """Losses over steps, by the name of the run; what is not finite is left out."""
    from matplotlib.figure import Figure

    from workbench.figures.style import PAGE_IN, styled

    with styled():
        figure = Figure(figsize=(PAGE_IN, 2.6), layout="constrained")
        axes = figure.subplots()
        for place, (name, values) in enumerate(losses.items()):
            points = [(s, v) for s, v in enumerate(map(number, values), 1) if v is not None]
            color, marker = PALETTE[place % len(PALETTE)]
            # Equal curves hide each other: later ones are thinner, every other one is dashed.
            axes.plot(*zip(*points, strict=True) if points else ([], []), color=color, label=name,
                      marker=marker if len(points) <= 60 else None, markersize=max(2, 5 - place),
                      linewidth=max(0.8, 2 - 0.4 * place), linestyle=("-", "--")[place % 2])  # fmt: skip
        axes.set(xlabel="step", ylabel="loss (nats per token)")
        axes.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(loc="outside upper left", ncols=1)
    return figure


class _Axis:
    """One axis: its words, and values of records as values on it."""

    def __init__(
        self, axis: str, plot: Plot, found: list[Row], fields: Mapping[str, Field]
    ) -> None:
        self.field, self._axis = fields[getattr(plot, axis)], axis
        self._log = getattr(plot, f"log_{axis}")
        known = [abs(row[axis]) for row in found if isinstance(row[axis], float)]
        self._factor, self._unit = scaled(self.field.name, max(known, default=0.0))

    def at(self, value: Any) -> Any:
        if self.field.kind == "time":
            return datetime.fromtimestamp(value, UTC)
        return value * self._factor if isinstance(value, float) else value

    def put_on(self, axes: Any) -> None:
        words = f"{self.field.label} ({self._unit})" if self._unit else self.field.label
        axes.set(**{f"{self._axis}label": words})
        if self._log:
            axes.set(**{f"{self._axis}scale": "log"})
        elif self.field.kind == "number" and self._axis == "y" and axes.get_ylim()[0] >= -0.1:
            axes.set_ylim(bottom=0)  # bars of empty space say how much smaller
        if self.field.kind == "time" and self._axis == "x":
            axes.tick_params(axis="x", rotation=20)


def _series(
    axes: Any, points: list[Any], look: Any, source: str, words: str, *, lines: bool
) -> None:
    color, marker = look
    if lines:
        at: dict[Any, list[Any]] = {}
        for x, y in points:
            at.setdefault(x, []).append(y)
        middle = [(x, median(at[x])) for x in sorted(at)]
        axes.plot(*zip(*middle, strict=True), color=color, linewidth=1.1, label="_median",
                  linestyle=FILLS[source]["linestyle"])  # fmt: skip
    axes.plot(*zip(*points, strict=True), color=color, marker=marker, label=words,
              **FILLS[source] | {"linestyle": "none", "markersize": 5})  # fmt: skip


def _stroke(axes: Any, x: _Axis, row: Row, color: str, height: float) -> None:
    """How a run ended, above the axes at its x; at the left edge where it has none."""
    ending = ENDINGS.get(row["status"], ENDINGS["error"])
    over = axes.transAxes if row["x"] is None else axes.get_xaxis_transform()
    words = ending.words + f", {row['source']}" * (row["source"] != "measured")
    axes.plot([0 if row["x"] is None else x.at(row["x"])], [height], transform=over, color=color,
              marker=ending.marker, linestyle="none", clip_on=False, label=words)  # fmt: skip


def _legend(figure: Figure, axes: Any, title: str | None) -> None:
    """At the right; each of the words once."""
    handles, words = axes.get_legend_handles_labels()
    once = {word[:LONGEST]: handle for handle, word in zip(handles, words, strict=True)}
    if once:
        figure.legend(once.values(), once.keys(), loc="outside right upper", title=title)


def _runs(rows: list[Row]) -> str:
    return f"{len(rows):,} {'run' if len(rows) == 1 else 'runs'}"
