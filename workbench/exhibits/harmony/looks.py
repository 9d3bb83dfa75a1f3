"""How Harmony's figures look: a colour and marker for each method, a fill for each source.

Reference estimates are hollow with dotted edges, simulations hatched (in lines: half filled, with
broken lines), measurements filled. Colours are Okabe and Ito's, and every method has a marker of
its own, so that a grey print still tells them apart.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

import pandas as pd

from workbench.exhibits.harmony.table import (
    HERE,
    MEASURED,
    OURS,
    REFERENCE,
    SIMULATED,
    THEIR_SEARCH,
    THEIRS,
    label_of,
    pick,
    series,
)
from workbench.figures.style import GREY, PAGE_IN, Look, lighter

LOOKS = {
    "harmony-pp": Look("#0072B2", "o"),
    "harmony-dp": Look("#D55E00", "s"),
    "pp-swap": Look("#003F63", ">"),
    "dp-swap": Look("#7A3600", "<"),
    "plain": Look("#000000", "P"),
    "data-parallel": Look("#E69F00", "^"),
    "gpipe": Look("#009E73", "D"),
    "1f1b": Look("#56B4E9", "v"),
    "zero-offload": Look("#6E2A50", "*"),
    "zero-infinity": Look("#CC79A7", "X"),
}
HATCHES = {OURS: "/////", THEIRS: "xxxxx", HERE: "\\\\\\\\\\"}
FILLS = {OURS: "left", THEIRS: "bottom", HERE: "top"}
"""Which half of a marker is filled, of simulations."""
DASHES = {OURS: "--", THEIRS: "-.", HERE: (0, (5, 1, 1, 1))}
UNDERNEATH = 6.5
"""Size of the markers that are drawn first."""
NOTE_PT = 6
PLOT_IN = 2.0
"""Height of a row of panels; legend and small print come on top."""
SHORT = {"oom_device": "out of device memory", "oom_host": "out of host memory"}


def bar_look(color: str, source: str, variant: str = "") -> dict[str, Any]:
    """Keyword arguments of `Axes.bar` for a value of a source."""
    look: dict[str, Any] = {"facecolor": "white", "edgecolor": color, "linewidth": 0.9}
    if source == REFERENCE:
        return {**look, "linestyle": ":", "linewidth": 1.3}
    if source == SIMULATED:
        return {**look, "hatch": HATCHES[variant]}
    return {**look, "facecolor": lighter(color) if variant == THEIR_SEARCH else color}


def line_look(method: str, source: str, variant: str = "") -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for a method's series of a source."""
    look = LOOKS[method]
    base = {"color": look.color, "marker": look.marker, "markersize": 4.5, "linewidth": 0.9}
    if source == REFERENCE:
        return {**base, "markerfacecolor": "white", "linestyle": ":", "markeredgewidth": 1.1}
    if source == SIMULATED:
        half = {"fillstyle": FILLS[variant], "markerfacecoloralt": "white", "markeredgewidth": 0.7}
        return {**base, **half, "linestyle": DASHES[variant]}
    return {**base, "linestyle": "-"}


def name_of(source: str, variant: str) -> str:
    """A series in words: ``simulated: our plan``."""
    return f"{source}: {variant}" if variant else source


def prepare(figure: Any, rows: int = 1) -> None:
    """Give an empty figure the size of so many rows of panels."""
    figure.set_size_inches(PAGE_IN, PLOT_IN * rows)


def bars(
    axes: Any,
    rows: pd.DataFrame,
    groups: dict[Any, str],
    ylabel: str,
    *,
    column: str,
    number: str = "{:.3g}",
) -> None:
    """One group of bars per key of `groups` (its value is the tick's label): the rows whose
    `column` is that key, source by source, in each of them method by method. What has no value says
    why in its place."""
    order = {key: place for place, key in enumerate(series(rows))}
    methods = {method: place for place, method in enumerate(LOOKS)}
    parts = [
        sorted(
            rows[rows[column] == key].itertuples(),
            key=lambda row: (order[row.source, row.variant], methods[row.method], row.Index),
        )
        for key in groups
    ]
    width = 0.86 / max(1, *(len(part) for part in parts))
    values = pd.concat([rows["value"], rows["high"]]).dropna()
    top = float(values.max()) if len(values) else 1.0
    upright = width * axes.figure.get_figwidth() / len(axes.figure.axes) / len(groups) < 0.3
    for place, part in enumerate(parts):
        for i, row in enumerate(part):
            x = place + (i - (len(part) - 1) / 2) * width
            _bar(axes, row, x, width, top, number, upright=upright)
    axes.set_xticks(range(len(groups)), list(groups.values()))
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.55, len(groups) - 0.45)
    axes.set_ylim(0, top * (1.32 if upright else 1.18))
    axes.set_ylabel(ylabel)


def _bar(
    axes: Any, row: Any, x: float, width: float, top: float, number: str, *, upright: bool
) -> None:
    place: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": NOTE_PT}
    if pd.isna(row.value):
        axes.text(x, top * 0.02, why_missing(row), rotation=90, color=GREY, **place)
        return
    look = bar_look(LOOKS[row.method].color, row.source, row.variant)
    axes.bar(x, row.value, width * 0.84, **look)
    end = row.value
    if not pd.isna(row.high):
        low = row.value if pd.isna(row.low) else row.low
        error = [[row.value - low], [row.high - row.value]]
        axes.errorbar(x, row.value, yerr=error, color="black", capsize=1.5, lw=0.7, capthick=0.7)
        end = max(end, row.high)
    axes.annotate(
        number.format(row.value), (x, end), xytext=(0, 2.5), textcoords="offset points",
        rotation=90 if upright else 0, **place,
    )  # fmt: skip


def why_missing(row: Any) -> str:
    """Why there is no value, in the space a figure has."""
    return SHORT.get(row.status, row.status if row.status != "ok" else "no value")


def lines(
    axes: Any,
    rows: pd.DataFrame,
    xlabel: str,
    ylabel: str,
    *,
    log: str = "",
    ticks: Iterable[float] = (),
) -> None:
    """Value over x, a line per method, source and variant; the other end of an estimate is a thin
    bar. `log` names axes that are logarithmic: ``x``, ``y``, ``xy``."""
    for source, variant in series(rows):
        for method in LOOKS:
            part = rows[(rows["source"] == source) & (rows["variant"] == variant)]
            part = part[part["method"] == method].dropna(subset=["value"]).sort_values("x")
            if part.empty:
                continue
            look = line_look(method, source, variant)
            if method == next(iter(LOOKS)):  # others of equal value are drawn over it
                look["markersize"] = UNDERNEATH
            axes.plot(part["x"], part["value"], **look)
            spread = part.dropna(subset=["high"])
            low = spread["low"].fillna(spread["value"])
            error = [spread["value"] - low, spread["high"] - spread["value"]]
            if len(spread):
                axes.errorbar(
                    spread["x"], spread["value"], yerr=error, fmt="none", ecolor=look["color"],
                    capsize=1.5, lw=0.6,
                )  # fmt: skip
    if "x" in log:
        axes.set_xscale("log", base=2)
    if "y" in log:
        axes.set_yscale("log")
    shown = sorted({*ticks} or set(rows["x"].dropna()))
    axes.set_xticks(shown, [f"{x:g}" for x in shown])
    axes.minorticks_off()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.margins(x=0.08)
    if "y" not in log:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)


def empty(axes: Any, words: str, letters: int = 34) -> None:
    """A panel without any value, which says why, in lines of so many letters."""
    axes.set_axis_off()
    axes.text(
        0.5, 0.5, textwrap.fill(words, letters), transform=axes.transAxes, ha="center", va="center",
        fontsize=7, color=GREY,
    )  # fmt: skip


def nothing_reduced(axes: Any, rows: pd.DataFrame, letters: int = 34) -> None:
    """The panel of reduced models where none ran: why, or where the published ones are."""
    own = rows[rows["source"] == MEASURED]
    words = next(iter(own["note"]), "nothing was run at this size")
    if own["value"].notna().any():
        words = "the published models, in the panels beside"
    empty(axes, f"measured here: {words}", letters)


def title(axes: Any, words: str) -> None:
    """Above a panel, left."""
    axes.set_title(words, loc="left", fontsize=7.5)


def legend(
    figure: Any,
    rows: pd.DataFrame,
    *,
    as_lines: bool = False,
    methods: bool = True,
    more: Iterable[tuple[Any, str]] = (),
) -> None:
    """Above the axes: each method by its colour, then each source by its fill, then `more`
    (handle, name). The figure grows by it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, names = [], []
    shown = [method for method in LOOKS if method in set(rows["method"])] if methods else []
    for method in shown:
        look = LOOKS[method]
        handles.append(
            Line2D([], [], color=look.color, marker=look.marker, markersize=4.5, linewidth=0.9)
            if as_lines
            else Patch(color=look.color)
        )
        names.append(label_of(method))
    for source, variant in series(rows):
        part = rows[(rows["source"] == source) & (rows["variant"] == variant)]
        if as_lines:
            look = line_look("harmony-pp", source, variant) | {"color": GREY}
            handles.append(Line2D([], [], **look))
        else:
            handles.append(Patch(**bar_look(GREY, source, variant)))
        names.append(name_of(source, variant) + _where(part))
    for handle, name in more:
        handles.append(handle)
        names.append(name)
    columns, rows_needed = _columns(names, figure.get_figwidth())
    figure.set_figheight(figure.get_figheight() + 0.15 * rows_needed)
    figure.legend(
        handles, names, loc="outside upper center", ncols=columns, columnspacing=1.3,
        borderpad=0.1, handlelength=2.2,
    )  # fmt: skip


def _where(part: pd.DataFrame) -> str:
    names = [name for name in dict.fromkeys(part["hardware"]) if name]
    if part["source"].iloc[0] != MEASURED or len(names) != 1:
        return ""
    return f" ({names[0]})"


def _columns(names: list[str], width_in: float) -> tuple[int, int]:
    letters = width_in * 17  # of 7 point
    longest = max((len(name) + 7 for name in names), default=1)
    columns = max(1, min(len(names), int(letters // longest)))
    rows = -(-len(names) // columns)
    return -(-len(names) // rows), rows


def small_print(figure: Any, *sentences: str) -> None:
    """Under the axes, the figure growing by it."""
    width = int(figure.get_figwidth() * 22)  # characters of 6 point
    found = [line for text in sentences if text for line in textwrap.wrap(text, width)]
    if not found:
        return
    figure.set_figheight(figure.get_figheight() + 0.1 * len(found))
    figure.supxlabel("\n".join(found), fontsize=NOTE_PT, color=GREY, ha="left", x=0.01)


def not_run(rows: pd.DataFrame, lacking: Iterable[str]) -> str:
    """A sentence on what a size leaves out of a figure; empty where that is nothing."""
    told = "; ".join(lacking)
    size = next(iter(pick(rows, source=MEASURED)["size"]), "")
    return f"Not run at {size} size, which is to take little time: {told}." if told else ""


ESTIMATES = (
    "Reference estimates: what the authors' own scheduler says of these settings, recomputed from "
    "their published profiles. They are not measurements; the paper's values are not known."
)
OTHER_END = "Thin bars: the same estimate without overlap of transfers and compute."
"""Sentences that several figures have in their small print."""
