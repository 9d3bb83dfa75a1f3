"""How figures look: one table of method colours, one rule for where a number comes from.

Published values are hollow, simulated ones hatched, measured ones filled, and no mark mixes two of
them. Colours are Okabe and Ito's, safe for colour-blind readers; every method also has a marker of
its own, so that a grey print still tells them apart. Widths are those of a column (3.3 in) and of a
page (7 in) of the usual two-column papers, so a figure is printed at the size it was drawn for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.figures.rows import HERE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN_IN, PAGE_IN = 3.3, 7.0
"""Widths of a figure, in inches."""

GREY = "#444444"
"""Of legends and text that belong to no method."""


@dataclass(frozen=True, slots=True)
class Look:
    """One method's colour and marker."""

    color: str
    marker: str
    pale: bool = False
    """Filled in a lighter tone of its colour, which remains at the edge."""


LOOKS = {
    "megatron-lm": Look("#0072B2", "s"),
    "l2l": Look("#E69F00", "^"),
    "zero-offload": Look("#009E73", "D"),
    "zero-infinity": Look("#CC79A7", "v"),
    "stronghold": Look("#D55E00", "o"),
}
"""The methods of the paper, in the order in which its figures have them."""

HERE_LOOKS = {
    "plain": Look("#000000", "P"),
    "megatron-core": LOOKS["megatron-lm"],
    "l2l": LOOKS["l2l"],
    "fsdp-offload": Look("#56B4E9", "X"),
    "zero-offload": LOOKS["zero-offload"],
    "zero-infinity": LOOKS["zero-infinity"],
    "zero-infinity-disk": Look("#CC79A7", "<", pale=True),
    "stronghold": LOOKS["stronghold"],
    "stronghold-disk": Look("#D55E00", "h", pale=True),
}
"""The methods of the offload benchmark: one that keeps state on a disk is a paler one of itself."""

EXACT = "ours, exact"
"""The second variant of a simulation: our own runtime on the published machine."""
HATCHES = {EXACT: "xxxxx", HERE: "\\\\\\\\\\"}
"""Of simulations; the published code's has the first hatch."""

RC = {
    "figure.dpi": 110,
    "figure.constrained_layout.h_pad": 0.05,
    "savefig.dpi": 220,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "workbench",
}


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's settings for all our figures, for the time of a `with`."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def lighter(color: str) -> tuple[float, float, float]:
    """A colour half way to white."""
    from matplotlib.colors import to_rgb

    red, green, blue = ((1 + part) / 2 for part in to_rgb(color))
    return red, green, blue


def bar_look(color: str, source: str, variant: str = "") -> dict[str, Any]:
    """Keyword arguments of `Axes.bar` for a value of a source."""
    look: dict[str, Any] = {"facecolor": "white", "edgecolor": color, "linewidth": 0.9}
    if source == "published":
        return {**look, "linewidth": 1.3}
    if source == "simulated":
        return {**look, "hatch": HATCHES.get(variant, "/////")}
    if not variant:
        return {**look, "facecolor": color}
    # On named hardware, beside what the machine at hand measured: filled too, with a black edge.
    return {**look, "facecolor": _tone(color, variant), "edgecolor": "black"}


def line_look(method: str, source: str, variant: str = "") -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for a method's series of a source.

    A marker cannot be hatched: simulated ones are half filled, in a shape of their own.
    """
    look = LOOKS[method]
    base = {"color": look.color, "marker": look.marker, "markersize": 4, "linewidth": 0.9}
    if source == "published":
        hollow = {"markerfacecolor": "white", "markersize": 5.5, "markeredgewidth": 1.2}
        return {**base, **hollow, "linestyle": ":"}
    if source == "simulated":
        marker = {EXACT: "s", HERE: "^"}.get(variant, "D")
        style = "-." if variant == EXACT else "--"
        half = {"fillstyle": "left", "markerfacecoloralt": "white", "markeredgewidth": 0.7}
        return {**base, **half, "marker": marker, "linestyle": style}
    if not variant:
        return {**base, "linestyle": "-"}
    tone = {"markerfacecolor": _tone(look.color, variant), "markeredgecolor": "black"}
    return {**base, **tone, "markeredgewidth": 0.7, "linestyle": "-"}


def _tone(color: str, variant: str) -> Any:
    """Two types of numbers, measured on one machine, are told apart by how dark their fill is."""
    return lighter(color) if variant == "fp32" else color


def name_of(source: str, variant: str, hardware: str = "") -> str:
    """A series in a legend: ``measured (AMD EPYC, 2 cores)``, ``simulated: ours, exact``."""
    words = source if not variant else f"{source}: {variant}"
    return f"{words} ({hardware})" if hardware and source == "measured" else words


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PDF and PNG, without dates, so that equal figures are equal files."""
    paths = []
    with styled():
        for suffix, metadata in ((".pdf", {"CreationDate": None}), (".png", {"Software": None})):
            path = stem.with_suffix(suffix)
            figure.savefig(path, metadata=metadata)
            paths.append(path)
    return paths


def as_svg(figure: Figure) -> str:
    """A figure as text that needs nothing else: letters are outlines, no date is in it."""
    from io import StringIO

    text = StringIO()
    with styled():
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
