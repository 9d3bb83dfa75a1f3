"""A plot of records as data: which fields are drawn, and the tidy table that is drawn.

A run that ran out of memory, out of time, or failed has no honest result. It keeps its place in the
table with the status as its reason, and is drawn at the axis' edge with the symbol and the word of
that, never as 0. Where a number comes from follows it: the planner's predictions of a run (the
``predicted_`` fields) are simulated, also in the record of a run that was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from workbench.ui.runs_table_fields import (
    NOT_SHOWN,
    Field,
    Row,
    is_result,
    moment,
    number,
    plain,
    scaled,
)

KINDS = ("points", "lines")
SOURCES = ("published", "simulated", "measured")
NONE = ""
"""Colour or facet that tells nothing apart."""
VALUE, EDGE, NOWHERE = "value", "edge", "nowhere"
"""Where a record is drawn: at its value, at the axis' edge, or not at all."""
DRAWABLE = frozenset({"ok", "diverged"})
"""Statuses whose results are what the spec asked for; a run of another one stopped before."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot to draw. Raises ValueError for an unknown kind."""

    x: str
    y: str
    colour: str = "method"
    facet: str = NONE
    kind: str = "points"
    """``points``, or ``lines`` through the medians of equal x."""
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a plot is of {' or '.join(KINDS)}, not of {plain(self.kind, 40)!r}")


def plot_rows(plot: Plot, rows: Iterable[Row], fields: Mapping[str, Field]) -> list[Row]:
    """The tidy table of a plot, one row a record that has a place in it.

    ``key, method, source, status, drawn``, then ``x, y, colour, facet``: values in the units of
    records (bytes, seconds; times as seconds since 1970), None where there is none. ``drawn`` is
    ``value``, ``edge`` (x or y is None, or no result of a whole run), or ``nowhere``: a run that
    ended well and still has no such value, or one without a place on a logarithmic axis.

    Raises ValueError for a field that no record has, or that has no logarithm.
    """
    for what, name in asdict(plot).items():
        if what in ("x", "y", "colour", "facet") and name != NONE:
            _check(what, name, fields)
    for what, name, log in (("x", plot.x, plot.log_x), ("y", plot.y, plot.log_y)):
        if log and fields[name].kind != "number":
            raise ValueError(f"{what} is {plain(name)}, which is no number and has no logarithm")
    predicted = any(name.startswith("predicted_") for name in (plot.x, plot.y))
    return [_plot_row(plot, row, fields, predicted=predicted) for row in rows]


def plot_order(plot: Plot, rows: list[Row], fields: Mapping[str, Field]) -> dict[str, Any]:
    """A drawing as plain data, JSON-able as it is: the plot, its rows, its axes in words."""
    axes = {}
    for what, name in (("x", plot.x), ("y", plot.y)):
        known = [row[what] for row in rows if isinstance(row[what], float)]
        factor, words = scaled(name, max(map(abs, known), default=0.0))
        title = fields[name].label
        axes[what] = {
            "kind": fields[name].kind,
            "factor": factor,
            "label": f"{title} ({words})" if words else title,
        }
    for what, name in (("colour", plot.colour), ("facet", plot.facet)):
        axes[what] = {
            "kind": fields[name].kind if name != NONE else "text",
            "name": name,
            "label": fields[name].label if name != NONE else "",
        }
    return {"draw": "plot", "plot": asdict(plot), "axes": axes, "rows": rows}


def words_of(order: Mapping[str, Any]) -> str:
    """Description of a drawing, for readers who cannot see it."""
    plot, axes, rows = order["plot"], order["axes"], order["rows"]
    at = {place: sum(row["drawn"] == place for row in rows) for place in (VALUE, EDGE, NOWHERE)}
    text = f"{axes['y']['label']} over {axes['x']['label']}, {plot['kind']}, {_runs(at[VALUE])}"
    if plot["colour"] != NONE:
        text += f", coloured by {axes['colour']['label']}"
    if plot["facet"] != NONE:
        text += f", a panel for each {axes['facet']['label']}"
    if at[EDGE]:
        text += f"; {_runs(at[EDGE])} without a result at the edge, with the status"
    if at[NOWHERE]:
        text += f"; {_runs(at[NOWHERE])} without such a value, not drawn"
    return f"{text}."


def _runs(count: int) -> str:
    return f"{count:,} {'run' if count == 1 else 'runs'}"


def _check(what: str, name: str, fields: Mapping[str, Field]) -> None:
    if name not in fields or name in NOT_SHOWN:
        raise ValueError(f"{what} is {plain(name, 60)!r}, a field that no record has")


def _plot_row(plot: Plot, row: Row, fields: Mapping[str, Field], *, predicted: bool) -> Row:
    status = row.get("status", "")
    whole = status in DRAWABLE
    x, y = (
        _drawn(row.get(name), fields[name]) if whole or not is_result(name) else None
        for name in (plot.x, plot.y)
    )
    off = (plot.log_x and x is not None and x <= 0) or (plot.log_y and y is not None and y <= 0)
    if off:
        drawn = NOWHERE
    elif x is not None and y is not None:
        drawn = VALUE
    else:
        drawn = NOWHERE if status == "ok" else EDGE
    source = row.get("source")
    return {
        "key": plain(row.get("key", ""), 128),
        "method": plain(row.get("method", ""), 60),
        "source": "simulated" if predicted else source if source in SOURCES else "measured",
        "status": status,
        "drawn": drawn,
        "x": x,
        "y": y,
        "colour": _told(row, plot.colour, fields),
        "facet": _told(row, plot.facet, fields),
    }


def _told(row: Row, name: str, fields: Mapping[str, Field]) -> float | str | None:
    """A value that tells series or panels apart; None where none is to."""
    if name == NONE:
        return None
    value = row.get(name)
    when = moment(value) if fields[name].kind == "time" else None
    return _word(value) if when is None else when


def _drawn(value: Any, field: Field) -> float | str | None:
    """A value on an axis: a number, or a word; None where it has no place there."""
    if field.kind == "number":
        return number(value)
    if field.kind == "time":
        return moment(value)
    return None if value is None else _word(value)


def _word(value: Any) -> float | str:
    """A number, or a text of one line."""
    finite = number(value)
    return finite if finite is not None else "none" if value is None else plain(value, 40)
