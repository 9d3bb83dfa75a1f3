"""How figures look: one table of colours and markers by method, one rule for where a number comes
from.

Published values and reference estimates are hollow, simulated ones hatched (in lines: half filled),
those of counted operations (estimated) dotted, measured ones filled, and no mark mixes two of them.
Colours are Okabe and Ito's and darker tones of them, safe for colour-blind readers; every method
also has a marker of its own, so that a grey print still tells them apart. Widths are those of a
column (3.3 in) and of a page (7 in) of the usual two-column papers, so a figure is printed at the
size it was drawn for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.methods import known
from workbench.figures.rows import (
    BEFORE,
    ESTIMATED,
    EXACT,
    HERE,
    OUR_PLAN,
    PUBLISHED,
    REFERENCE,
    THEIR_PLAN,
    THEIR_SEARCH,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN_IN, PAGE_IN = 3.3, 7.0
"""Widths of a figure, in inches."""

GREY = "#444444"
"""Colour of legends and text that belong to no method."""


@dataclass(frozen=True, slots=True)
class Look:
    """One method's colour and marker."""

    color: str
    marker: str
    pale: bool = False
    """Filled in a lighter tone of its colour, which remains at the edge."""

    @property
    def face(self) -> Any:
        """Colour of what is filled."""
        return lighter(self.color) if self.pale else self.color


LOOKS = {
    "harmony-pp": Look("#0072B2", "o"),
    "harmony-dp": Look("#D55E00", "s"),
    "pp-swap": Look("#003F63", ">"),
    "dp-swap": Look("#7A3600", "<"),
    "plain": Look("#000000", "P"),
    "megatron-lm": Look("#0072B2", "s"),
    "megatron-parallel": Look("#0072B2", "$M$"),
    "data-parallel": Look("#E69F00", "p"),
    "gpipe": Look("#009E73", "D"),
    "1f1b": Look("#56B4E9", "v"),
    "interleaved": Look("#E69F00", "h"),
    "zb-h1": Look("#CC79A7", "$Z$"),
    "varuna": Look("#5B3A8C", "$V$"),
    "ftpipe": Look("#D55E00", "$F$"),
    "alpa": Look("#E69F00", "^"),
    "aceso": Look("#009E73", "$A$"),
    "aceso-ours": Look("#D55E00", "X"),
    "mpipe": Look("#D55E00", "o"),
    "mpipe-faithful": Look("#D55E00", "D", pale=True),
    "pipedream": Look("#0072B2", "s"),
    "acyclic": Look("#56B4E9", "^"),
    "2dbin": Look("#CC79A7", "X"),
    "metis": Look("#E69F00", "v"),
    "exact": Look("#000000", "P"),
    "torch-gpipe": Look("#009E73", "d", pale=True),
    "torch-1f1b": Look("#56B4E9", "^", pale=True),
    "torch-interleaved": Look("#E69F00", "H", pale=True),
    "torch-zero-bubble": Look("#CC79A7", "8", pale=True),
    "deepspeed-pipe": Look("#6E2A50", "v", pale=True),
    "l2l": Look("#E69F00", "^"),
    "fsdp": Look("#56B4E9", "d"),
    "zero-offload": Look("#6E2A50", "*"),
    "zero-twin-flow": Look("#777777", "8"),
    "zero-infinity": Look("#CC79A7", "X"),
    "zero-infinity-disk": Look("#CC79A7", "x", pale=True),
    "stronghold": Look("#D55E00", "o"),
    "stronghold-disk": Look("#D55E00", "h", pale=True),
}
"""Look of every method, in the order in which figures draw and name them. Methods that share a
colour (of systems that no figure shows together) differ in their markers; one that keeps state on a
disk, is a library's pipeline, or follows published rules, is paler. Some partition graphs, or plan
operators."""
LOOKS |= {"megatron-core": LOOKS["megatron-lm"], "fsdp-offload": LOOKS["fsdp"]}  # in benchmarks
ORDER = tuple(LOOKS)


def look_of(method: str) -> Look:
    """A method's look in every figure and panel, by its name or its label, however its run ended;
    grey of one that is not in the table."""
    labels = {each.label: name for name, each in known().items()}
    return LOOKS.get(labels.get(method, method)) or Look(GREY, "p", pale=True)


@dataclass(frozen=True, slots=True)
class Simulated:
    """How one variant of a simulation is told from the others."""

    hatch: str
    """Hatch of bars."""
    dash: Any
    """Style of lines."""
    half: str = "left"
    """Half of a marker that is filled."""
    marker: str = ""
    """In place of the method's; empty where lines are of several methods."""


SIMULATED = {
    EXACT: Simulated("xxxxx", "-.", marker="s"),
    HERE: Simulated("\\\\\\\\\\", "--", marker="^"),
    OUR_PLAN: Simulated("/////", "--"),
    THEIR_PLAN: Simulated("xxxxx", "-.", "bottom"),
    BEFORE: Simulated("\\\\\\\\\\", (0, (5, 1, 1, 1)), "top"),
}
"""By variant; `AS_PUBLISHED` of any other."""
AS_PUBLISHED = Simulated("/////", "--", marker="D")
PALE = ("fp32", THEIR_SEARCH)
"""Variants of a measurement that are filled in a lighter tone than the other one."""

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


def lighter(color: str, share: float = 0.5) -> tuple[float, float, float]:
    """Mix a colour with white; `share` of it is left."""
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - share * (1 - part) for part in to_rgb(color))
    return red, green, blue


def bar_look(color: str, source: str, variant: str = "") -> dict[str, Any]:
    """Keyword arguments of `Axes.bar` for a value of a source."""
    look: dict[str, Any] = {"facecolor": "white", "edgecolor": color, "linewidth": 0.9}
    if source == PUBLISHED:
        return {**look, "linewidth": 1.3}
    if source == REFERENCE:
        return {**look, "linewidth": 1.3, "linestyle": ":"}
    if source == ESTIMATED:
        return {**look, "hatch": "....", "facecolor": lighter(color, 0.25)}
    if source == "simulated":
        return {**look, "hatch": SIMULATED.get(variant, AS_PUBLISHED).hatch}
    # On named hardware, beside what the machine at hand measured: filled too, with a black edge.
    edge = "black" if variant else color
    return {**look, "facecolor": _tone(color, variant), "edgecolor": edge}


def line_look(method: str, source: str, variant: str = "") -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for a method's series of a source."""
    look = look_of(method)
    base = {"color": look.color, "marker": look.marker, "markersize": 4.5, "linewidth": 0.9}
    if source in (PUBLISHED, REFERENCE):
        wide = {"markersize": 5.5} if source == PUBLISHED else {}
        return {**base, **wide, "markerfacecolor": "white", "markeredgewidth": 1.1, "ls": ":"}
    if source == ESTIMATED:
        return {**base, "markerfacecolor": lighter(look.color, 0.4), "ls": (0, (1, 1))}
    if source == "simulated":
        own = SIMULATED.get(variant, AS_PUBLISHED)
        half = {"fillstyle": own.half, "markerfacecoloralt": "white", "markeredgewidth": 0.7}
        return {**base, **half, "marker": own.marker or look.marker, "ls": own.dash}
    if not variant:
        return {**base, "ls": "-"} | ({"markerfacecolor": look.face} if look.pale else {})
    tone = {"markerfacecolor": _tone(look.color, variant), "markeredgecolor": "black"}
    return {**base, **tone, "markeredgewidth": 0.7, "ls": "-"}


def _tone(color: str, variant: str) -> Any:
    """Two types of numbers, measured on one machine, are told apart by how dark their fill is."""
    return lighter(color) if variant in PALE else color


def name_of(source: str, variant: str, hardware: str = "") -> str:
    """A series in a legend: ``measured (AMD EPYC, 2 cores)``, ``simulated: our plan``."""
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
