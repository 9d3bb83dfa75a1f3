"""Plots of runs: one field of their records over another, and their losses over steps.

Each method has its colour and mark of all figures. The fill of a mark says where its number comes
from: published ones are hollow, simulated ones half filled, measured ones filled; what a planner
said of a run (the ``predicted_`` fields) is simulated. A run that ran out of memory, out of time,
or failed has no honest result: it stands above the axes with the mark of that, never at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.runs import columns
from workbench.runs.columns import ENDINGS, Column, Row, number, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE = ""
"""Colour that tells nothing apart."""
VALUE, EDGE, NOWHERE = "value", "edge", "nowhere"
"""Where a record is drawn: at its value, above the axes, or not at all."""
PALETTE = (
    ("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"),
    ("#E69F00", "v"), ("#56B4E9", "P"), ("#000000", "X"), ("#777777", "<"),
)  # fmt: skip
"""Looks that colour-blind readers, and readers of a grey print, tell apart."""
DASHES = ("-", "--", "-.", (0, (1, 2)), (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))
"""Lines of neighbours; seven of them and eight looks together tell 56 values apart. None is ":",
which plotly's conversion refuses."""
FILLS = {
    "published": {"markerfacecolor": "white", "markeredgewidth": 1.2},
    "simulated": {"fillstyle": "left", "markerfacecoloralt": "white", "markeredgewidth": 0.8},
    "measured": {"markeredgecolor": "white", "markeredgewidth": 0.4},
}
LONGEST = 36
"""Letters of an entry of a legend."""


class Plot(NamedTuple):
    """A plot to draw."""

    x: str
    y: str
    colour: str = "method"
    lines: bool = False
    """Whether lines go through the medians of equal x."""
    log_x: bool = False
    log_y: bool = False


def plot_rows(plot: Plot, rows: Iterable[Row], fields: Mapping[str, Column]) -> list[Row]:
    """The tidy table of a plot, one row a record.

    ``key, method, source, status, drawn``, then ``x, y, colour``: values in the units of records
    (bytes, seconds; times as seconds since 1970), None where there is none. ``drawn`` is ``value``,
    ``edge`` (it ended otherwise than well), or ``nowhere``: a run that ended well and has no such
    value, or one without a place on a logarithmic axis. Raises ValueError for an unknown field.
    """
    for name in {plot.x, plot.y, plot.colour} - {NONE}:
        if name not in fields:
            raise ValueError(f"{plain(name, 60)!r} is a field that no record has")
    return [_plot_row(plot, row, fields) for row in rows]


def _plot_row(plot: Plot, row: Row, fields: Mapping[str, Column]) -> Row:
    status, source = row["status"], row["source"]
    # A run that stopped before its end, other than by diverging, has no results.
    x, y = (
        _on_axis(row.get(name), fields[name])
        if status in ("ok", "diverged") or not columns.is_result(name) else None
        for name in (plot.x, plot.y)
    )  # fmt: skip
    off = any(log and v is not None and v <= 0 for log, v in ((plot.log_x, x), (plot.log_y, y)))
    well = status == "ok" and None not in (x, y)
    drawn = NOWHERE if off else VALUE if well else NOWHERE if status == "ok" else EDGE
    predicted = plot.x.startswith("predicted_") or plot.y.startswith("predicted_")
    colour = row.get(plot.colour)
    return {
        "key": row["key"], "method": row["method"], "source": "simulated" if predicted else source,
        "status": status, "drawn": drawn, "x": x, "y": y,
        "colour": columns.cell(plot.colour, colour) or "none" if number(colour) is None else colour,
    }  # fmt: skip


def _on_axis(value: Any, field: Column) -> float | str | None:
    """A value on an axis: a number, or a word; None where it has no place there."""
    if field.kind == "number":
        return number(value)
    return (
        columns.moment(value) if field.kind == "time" else columns.cell(field.name, value) or None
    )


def words_of(plot: Plot, found: list[Row], fields: Mapping[str, Column]) -> str:
    """Description of a plot, for readers who cannot see it."""
    count = {place: sum(row["drawn"] == place for row in found) for place in (VALUE, EDGE, NOWHERE)}
    text = f"{fields[plot.y].label} over {fields[plot.x].label}, {_runs(count[VALUE])}"
    if plot.colour:
        text += (
            f", {'a line for each' if plot.lines else 'coloured by'} {fields[plot.colour].label}"
        )
    if count[EDGE]:
        text += f"; {_runs(count[EDGE])} without a result above, with the reason"
    if count[NOWHERE]:
        text += f"; {_runs(count[NOWHERE])} without such a value or a place on the axis, not drawn"
    return f"{text}." if count[VALUE] else f"{text}. No run has a value here yet."


def draw(plot: Plot, found: list[Row], fields: Mapping[str, Column]) -> Figure:
    """The figure of `plot_rows`, as wide as a page."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from workbench.figures.style import GREY, LOOKS, PAGE_IN, styled

    names = sorted({row["colour"] for row in found}, key=lambda v: (isinstance(v, str), v))
    looks = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(names)}
    dashes = {name: DASHES[place % len(DASHES)] for place, name in enumerate(names)}
    own = {columns.label_of(name): (look.color, look.marker) for name, look in LOOKS.items()}
    if plot.colour == "method":  # grey of those that no figure shows
        looks = {name: own.get(name, (GREY, look[1])) for name, look in looks.items()}
    x, y = (_Axis(axis, plot, found, fields) for axis in "xy")
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in found:
        end = row["status"] if row["drawn"] == EDGE else ""
        if row["drawn"] != NOWHERE:
            series.setdefault((end, row["source"], row["colour"]), []).append(row)
    valued = {name for end, _, name in series if not end}
    ends = [status for status in ENDINGS if any(end == status for end, _, _ in series)]
    with styled():
        figure = Figure(figsize=(PAGE_IN, 2.9), layout="constrained")
        axes = figure.subplots()
        ordered = sorted(series.items(), key=lambda item: names.index(item[0][2]))
        for (end, source, name), rows in ordered:
            if not end:
                points = [(x.at(row["x"]), y.at(row["y"])) for row in rows]
                if plot.lines:
                    of: dict[Any, list[Any]] = {}
                    for at_x, at_y in points:
                        of.setdefault(at_x, []).append(at_y)
                    middle = [median(of[value]) for value in sorted(of)]
                    look = {"color": looks[name][0], "linestyle": dashes[name]}
                    axes.plot(sorted(of), middle, label="_", **look)
                words = columns.cell(plot.colour, name) + f", {source}" * (source != "measured")
                _marks(axes, points, words, *looks[name], FILLS[source])
            else:  # its x has a place on the axis
                xs = [x.at(row["x"]) for row in rows if row["x"] is not None]
                axes.plot(xs, [0.5] * len(xs), " ", transform=axes.get_xaxis_transform(), label="_")
        x.put_on(axes)
        y.put_on(axes)
        limits = axes.get_xlim(), axes.get_ylim()
        for (end, source, name), rows in ordered:
            if end:  # above the axes at its x; at the left edge where it has none
                place = axes.transAxes.transform((0, 1.03 + 0.05 * ends.index(end)))
                left, height = axes.transData.inverted().transform(place)
                xs = [left if row["x"] is None else x.at(row["x"]) for row in rows]
                words = ENDINGS[end].words + f", {source}" * (source != "measured")
                if plot.colour == "method" and name not in valued:  # nothing else tells its colour
                    words = f"{columns.cell(plot.colour, name)}, {words}"
                look = (looks[name][0], ENDINGS[end].marker, {"clip_on": False})
                _marks(axes, [(at_x, height) for at_x in xs], words, *look)
        axes.set(xlim=limits[0], ylim=limits[1])
        handles, words = axes.get_legend_handles_labels()
        once = {word[:LONGEST]: handle for handle, word in zip(handles, words, strict=True)}
        if plot.lines:  # an entry of a line shows its dashes beside its mark
            told_by = {columns.cell(plot.colour, name)[:LONGEST]: name for name in names}
            once |= {
                word: (handle, Line2D([], [], color=looks[name][0], linestyle=dashes[name]))
                for word, handle in once.items()
                if (name := told_by.get(word)) is not None
            }
        title = fields[plot.colour].label if plot.colour else None
        more = {"title": title, "handlelength": 3.5 if plot.lines else None}
        figure.legend(once.values(), once.keys(), loc="outside right upper", **more)
    return figure


def _marks(axes: Any, points: list[Any], words: str, color: str, marker: Any, more: Row) -> None:
    look = {"color": color, "marker": marker, "label": words, "linestyle": "none", "markersize": 5}
    look |= more
    if str(marker).startswith("$"):  # a letter is all edge
        look |= {"markeredgecolor": color, "markersize": 7}
    for kind in (float, str, datetime):  # a value and a moment have no order
        some = [point for point in points if isinstance(point[0], kind)]
        if some:
            axes.plot(*zip(*some, strict=True), **look)


def draw_losses(losses: Mapping[str, list[Any]], methods: Sequence[str]) -> Figure:
    """Losses over steps, by the name of the run; what is not finite is left out. Runs have the
    hues and marks of their `methods`, and dashes of their own."""
    from matplotlib.figure import Figure

    from workbench.figures.style import PAGE_IN, lighter, look_of, styled

    with styled():
        figure = Figure(figsize=(PAGE_IN, 2.2 + 0.16 * len(losses)), layout="constrained")
        axes = figure.subplots()
        for place, ((name, values), method) in enumerate(zip(losses.items(), methods, strict=True)):
            points = [(s, v) for s, v in enumerate(map(number, values), 1) if v is not None]
            own, dash = look_of(method), DASHES[place % len(DASHES)]
            before = sum(look_of(earlier).color == own.color for earlier in methods[:place])
            color = lighter(own.color) if before % 2 else own.color
            # Equal curves hide each other: later ones are thinner, with dashes of their own, and
            # every other one of a hue is paler.
            look = {"linewidth": max(0.8, 2 - 0.4 * place), "linestyle": dash, "color": color}
            look |= {"marker": own.marker if len(points) <= 60 else None, "label": name}
            look |= {"markersize": 5 - place % 4}
            axes.plot(*zip(*points or [(None, None)], strict=True), **look)
        axes.set(xlabel="step", ylabel="loss (nats per token)")
        axes.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(loc="outside upper left", handlelength=3.5)
    return figure


class _Axis:
    """One axis: its words, and values of records as values on it."""

    def __init__(
        self, axis: str, plot: Plot, rows: list[Row], fields: Mapping[str, Column]
    ) -> None:
        self._axis, self._field = axis, fields[getattr(plot, axis)]
        self._log = getattr(plot, f"log_{axis}")
        known = [abs(row[axis]) for row in rows if isinstance(row[axis], float)]
        self._factor, self._unit = columns.scaled(self._field.name, max(known, default=0.0))

    def at(self, value: Any) -> Any:
        if self._field.kind == "time" and value is not None:
            return datetime.fromtimestamp(value, UTC)
        return value * self._factor if isinstance(value, float) else value

    def put_on(self, axes: Any) -> None:
        words = f"{self._field.label} ({self._unit})" if self._unit else self._field.label
        axes.set(**{f"{self._axis}label": words})
        if self._log:
            axes.set(**{f"{self._axis}scale": "log"})
        elif self._axis == "y" and self._field.kind == "number":
            axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))  # empty space says how much smaller
        elif self._axis == "x" and self._field.kind == "time":
            axes.tick_params(axis="x", rotation=20)


def _runs(count: int) -> str:
    return f"{count:,} {'run' if count == 1 else 'runs'}"
