"""How figures look: one table of method colours, one rule for where a number comes from.

Published values are hollow, measured ones filled, simulated ones hatched, and no mark mixes two of
them. Colours are Okabe and Ito's, safe for colour-blind readers; every method also has a marker of its
own, so that a grey print still tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Look:
    """One method's colour and marker."""

    color: str
    marker: str


LOOKS = {
    "megatron-lm": Look("#0072B2", "s"),
    "l2l": Look("#E69F00", "^"),
    "zero-offload": Look("#009E73", "D"),
    "zero-infinity": Look("#CC79A7", "v"),
    "stronghold": Look("#D55E00", "o"),
    "plain": Look("#000000", "x"),
}

SOURCES = ("published", "simulated", "measured")

RC = {
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.7,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "workbench",
    "legend.frameon": False,
}


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's settings for all our figures, for the time of a `with`."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def bar_look(method: str, source: str) -> dict[str, Any]:
    """Keyword arguments of `Axes.bar` for a method's value of a source."""
    color = LOOKS[method].color
    if source == "published":
        return {"facecolor": "white", "edgecolor": color, "linewidth": 1.3}
    if source == "simulated":
        return {"facecolor": "white", "edgecolor": color, "hatch": "/////", "linewidth": 0.8}
    return {"facecolor": color, "edgecolor": color, "linewidth": 0.8}


def line_look(method: str, source: str) -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for a method's series of a source."""
    look = LOOKS[method]
    base = {"color": look.color, "marker": look.marker, "markersize": 4.5, "linewidth": 1.1}
    if source == "published":
        return {**base, "markerfacecolor": "white", "linestyle": ":"}
    if source == "simulated":
        return {**base, "markerfacecolor": "white", "linestyle": "--", "fillstyle": "left"}
    return {**base, "linestyle": "-"}


def legend_of_sources(axes: Any, sources: list[str], **options: Any) -> None:
    """A legend that says which mark is published, simulated, measured."""
    from matplotlib.patches import Patch

    marks = {
        "published": Patch(facecolor="white", edgecolor="#444444", linewidth=1.3),
        "simulated": Patch(facecolor="white", edgecolor="#444444", hatch="/////"),
        "measured": Patch(facecolor="#444444", edgecolor="#444444"),
    }
    names = [source for source in SOURCES if source in sources]
    axes.legend([marks[name] for name in names], names, **options)


def save(figure: Any, stem: Any) -> list[Any]:
    """Write a figure as PDF, PNG beside `stem`, without dates so that equal figures are equal files."""
    paths = []
    for suffix, metadata in ((".pdf", {"CreationDate": None}), (".png", {"Software": None})):
        path = stem.with_suffix(suffix)
        figure.savefig(path, metadata=metadata)
        paths.append(path)
    return paths
