"""Legend of a plot: the meaning of its marks, beside and below it."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from workbench.core.methods import known
from workbench.figures.style import GREY, Look
from workbench.ui.runs_table_classes import Classes
from workbench.ui.runs_table_fields import ENDINGS, Row
from workbench.ui.runs_table_plot import EDGE, NOWHERE, SOURCES, VALUE

MOST = 30
"""Letters of an entry."""
DASHES = {"published": ":", "simulated": "--", "measured": "-"}


def source_look(look: Look, source: str) -> dict[str, Any]:
    """Keyword arguments of a mark: the colour and shape of `look`, filled as its source is."""
    mark = {"color": look.color, "marker": look.marker, "markersize": 5}
    if source == "published":
        return mark | {"markerfacecolor": "white", "markeredgewidth": 1.2}
    if source == "simulated":
        half = {"fillstyle": "left", "markerfacecoloralt": "white", "markeredgewidth": 0.8}
        return mark | half
    return mark | {"markeredgecolor": "white", "markeredgewidth": 0.4}


def legend(
    figure: Figure, rows: list[Row], colour: dict[str, Any], colours: Classes, looks: list[Look]
) -> None:
    """At the right: colours, then sources, then endings that stand among the values."""
    entries: list[tuple[Any, str]] = []
    strokes = {end.words: end.marker for status, end in ENDINGS.items() if status != "ok"}
    sources = [source for source in SOURCES if any(row["source"] == source for row in rows)]
    if colour["label"]:
        entries.append((_heading(), colour["label"]))
        methods = known()
        by_status = colour["name"] == "status"
        for label, look in zip(colours.labels, looks, strict=True):
            words = methods[label].label if label in methods else label
            mark = source_look(look, "measured")
            if by_status and label in strokes:
                mark = {"color": look.color, "marker": strokes[label]}
            entries.append((Line2D([], [], linestyle="none", **mark), words))
    if sources and sources != ["measured"]:
        entries.append((_heading(), "where it comes from"))
        for source in sources:
            mark = source_look(Look(GREY, "o"), source)
            entries.append((Line2D([], [], linestyle=DASHES[source], linewidth=0.9, **mark),
                            source))  # fmt: skip
    ended = {row["status"] for row in rows if row["drawn"] != NOWHERE and row["y"] is not None}
    ended -= {"ok"}
    if ended and colour["name"] != "status":
        entries.append((_heading(), "how it ended"))
        for status, ending in ENDINGS.items():
            if status in ended:
                stroke = Line2D([], [], linestyle="none", color=GREY, marker=ending.marker)
                entries.append((stroke, ending.words))
    if entries:
        handles, words = zip(*entries, strict=True)
        names = [word if len(word) <= MOST else f"{word[: MOST - 1]}\u2026" for word in words]
        shown = figure.legend(handles, names, loc="outside right upper", handlelength=1.6)
        for handle, text in zip(handles, shown.get_texts(), strict=True):
            if handle.get_label() == "heading":
                text.set_weight("bold")


def small_print(figure: Figure, rows: list[Row]) -> None:
    """Below: which runs have no mark, or none at a value."""
    told = []
    lost = sum(row["drawn"] == NOWHERE for row in rows)
    if lost:
        told.append(f"{lost} {_runs(lost)} without such a value, or without a place on the axis.")
    if not any(row["drawn"] == VALUE for row in rows):
        told.insert(0, "No run has a value here yet.")
    aside = sum(row["drawn"] == EDGE and row["x"] is None for row in rows)
    if aside:
        told.append(f"{aside} {_runs(aside)} without a value of x: at the left edge.")
    if told:
        figure.supxlabel(" ".join(told), fontsize=6, color=GREY, ha="left", x=0.01)


def _runs(count: int) -> str:
    return "run is" if count == 1 else "runs are"


def _heading() -> Line2D:
    return Line2D([], [], linestyle="none", label="heading")
