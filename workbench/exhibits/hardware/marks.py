"""Marks that figures of this project's own measurements share: bars in groups of one setting and
cap, and points of predictions over measurements.

Every bar has its method's marker at its foot, which a grey print leaves to tell methods apart.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.exhibits.hardware.table import mean_deviation, own_ratios
from workbench.figures import draw as drawing
from workbench.figures.style import GREY, LOOKS, Look, lighter
from workbench.published.here import in_words

CAP_GAP, GROUP_GAP = 0.8, 2.0
"""Between bars of two caps and between groups, in bars."""
KEEP = "keep"
"""Variant of a method that keeps activations."""
EDGE = 0.9
"""From the middle of the first bar to the edge of the axes."""


@dataclass(frozen=True, kw_only=True)
class Cap:
    """The bars of one cap of device memory."""

    gib: float | None
    """None: no cap."""
    middle: float
    bars: tuple[tuple[float, Any], ...]
    """x and run (a row as a named tuple), from the left."""

    @property
    def words(self) -> str:
        return "no limit" if self.gib is None else f"{self.gib:g} GiB"


@dataclass(frozen=True, kw_only=True)
class Group:
    """The bars of one setting, cap by cap."""

    rows: pd.DataFrame
    middle: float
    """Where its name stands."""
    caps: tuple[Cap, ...]


def arranged(
    rows: pd.DataFrame, keys: list[str], *, least: float, least_cap: float
) -> tuple[list[Group], float]:
    """Groups of equal `keys`, caps apart within one, all bars equally wide; and where the next
    group would begin. The rows come in their order. A group has the width of at least `least` bars,
    which its name needs, a cap that of `least_cap`."""
    out, x = [], 0.0
    for _, group in rows.groupby(keys, sort=False):
        parts = group.groupby("device_cap_gib", sort=False, dropna=False)
        slots = [max(len(part), least_cap) for _, part in parts]
        wide = sum(slots) + CAP_GAP * (len(slots) - 1)
        start, x = x, x + max(0.0, least - wide) / 2
        caps = []
        for slot, (cap, part) in zip(slots, parts, strict=True):
            middle = x + (slot - 1) / 2
            left = middle - (len(part) - 1) / 2
            bars = tuple((left + i, run) for i, run in enumerate(part.itertuples()))
            caps.append(Cap(gib=None if pd.isna(cap) else cap, middle=middle, bars=bars))
            x += slot + CAP_GAP
        middle = start + (max(least, wide) - 1) / 2
        out.append(Group(rows=group, middle=middle, caps=tuple(caps)))
        x = start + max(least, wide) + GROUP_GAP
    return out, x


def frame(axes: Any, groups: list[Group], end: float, room: float) -> None:
    """Caps as ticks, and room for at least `room` bars, so that a few do not become walls."""
    ticks = {cap.middle: cap.words for group in groups for cap in group.caps}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.tick_params(axis="x", length=0, labelsize=6, pad=8)
    empty = max(0.0, room - end) / 2
    axes.set_xlim(-EDGE - empty, end - GROUP_GAP - 0.1 + empty)


def name(axes: Any, words: str, x: float) -> None:
    """A group's name below its caps."""
    look = {"ha": "center", "va": "top", "fontsize": 6.5, "linespacing": 1.1}
    drawing.beside(axes, words, (x, 0), (0, -18), xycoords=("data", "axes fraction"), **look)


def point(look: Look, size: float) -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for a method's marker, in points."""
    tone = {"markerfacecolor": look.face, "markeredgecolor": look.color, "markeredgewidth": 0.7}
    return {"marker": look.marker, "linestyle": "none", "markersize": size, **tone}


def bar(
    axes: Any,
    look: Look,
    x: float,
    height: float,
    words: str,
    *,
    pale: bool = False,
    words_at: tuple[float, float] | None = None,
) -> None:
    """A bar with words above it, and the method's marker below it; where there is no height, the
    words stand in its place. `words_at`: over which height the words begin, and how many points."""
    foot = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.plot(x, -0.045, **point(look, 3.2), **foot)
    text = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 5.5}
    if pd.isna(height):
        axes.text(x, 0.02, words, color=look.color, transform=axes.get_xaxis_transform(), **text)
        return
    face = lighter(look.color) if pale else look.face
    axes.bar(x, height, 0.86, facecolor=face, edgecolor=look.color, linewidth=0.8)
    over, gap = words_at or (height, 2.5)
    drawing.beside(axes, words, (x, over), (0, gap), **text)


def variant_words(variant: str) -> str:
    """A variant at the end of the words at a bar; empty for the method's own choice."""
    return f" {in_words(variant)}" if variant else ""


def kept(rows: pd.DataFrame) -> list[tuple[Any, str]]:
    """An entry of the legend on runs that keep activations, where there are any."""
    words = "kept: activations are kept, else recomputed"
    return [(drawing.patch(alpha=0), words)] if KEEP in set(rows["variant"]) else []


def why_missing(status: str, otherwise: str) -> str:
    """Text in the place of a missing bar: how the run ended, or why a good one has no height."""
    return drawing.upright_words(status) if status != "ok" else otherwise


STEP = "step_seconds", "step_ratio", "step time", "s"
PEAK = "peak_device_gib", "peak_ratio", "device peak", "GiB"
"""Predictions of a step and of a device: columns of what was measured and of predicted over
measured, and words."""


def draw_predictions(
    axes: Any,
    rows: pd.DataFrame,
    of: tuple[str, str, str, str],
    own: Container[str],
    within: float,
    judged: pd.DataFrame | None = None,
) -> None:
    """Predicted over measured, over what was measured (`STEP` or `PEAK`), with the band of good
    ones; in the title how far those of the methods `own` are off on the mean, of the rows that are
    `judged` (of all)."""
    from matplotlib.ticker import FuncFormatter

    column, ratio, words, unit = of
    axes.set_xscale("log")
    axes.set_xlabel(f"measured {words} ({unit})")
    axes.set_ylabel("predicted ÷ measured")
    axes.axhspan(1 - within, 1 + within, color="#eeeeee", zorder=0)
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--", zorder=0.5)
    known = rows[(rows["status"] == "ok") & rows[ratio].notna() & (rows[column] > 0)]
    if known.empty:
        axes.set_xticks([])
        axes.text(0.5, 0.8, "no run has a prediction", transform=axes.transAxes, ha="center")
        return
    for method, part in known.groupby("method", sort=False):
        thin = {} if LOOKS[method].pale else {"markeredgecolor": "white", "markeredgewidth": 0.5}
        axes.plot(part[column], part[ratio], **point(LOOKS[method], 4.5) | thin, alpha=0.85)
    far = max(1.6 * within, 1.15 * float((known[ratio] - 1).abs().max()))
    axes.set_ylim(1 - far, 1 + far)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    _set_ticks(axes, known[column])
    ratios = own_ratios(rows if judged is None else judged, ratio, own)
    runs = "own run" if len(ratios) == 1 else "own runs"
    off = mean_deviation(ratios)
    mean = "" if off is None else f": {off:.1%} off on the mean of {len(ratios)} {runs}"
    axes.set_title(f"{words}{mean}", fontsize=7)


def _set_ticks(axes: Any, values: pd.Series) -> None:
    """1, 2 and 5 of each decade: on a logarithm over less than one there may be no tick at all."""
    from matplotlib.ticker import NullLocator

    low, high = values.min() / 1.15, values.max() * 1.15
    ticks = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    axes.set_xlim(low, high)
    seen = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(seen or [values.max()])
    axes.xaxis.set_minor_locator(NullLocator())


def legend(
    figure: Any,
    labels: Mapping[str, str],
    there: Container[str],
    more: Iterable[tuple[Any, str]] = (),
) -> None:
    """Above it all: every method that is `there` once, by its label and with its marker; then
    `more` (handle, name)."""
    entries: list[tuple[Any, str]] = []
    for method in (each for each in labels if each in there):
        look = LOOKS[method]
        patch = drawing.patch(facecolor=look.face, edgecolor=look.color)
        entries.append(((patch, drawing.stroke(**point(look, 4))), labels[method]))
    drawing.place_legend(figure, [*entries, *more])
