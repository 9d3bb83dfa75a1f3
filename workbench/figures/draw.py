"""The two drawings all five exhibits need: bars by method, and lines over a number.

Sources stand side by side, never stacked into one mark; spread is an error bar; a value that is
missing says why in its place.
"""

from __future__ import annotations

import textwrap
from typing import Any

import pandas as pd

from workbench.figures.style import SOURCES, bar_look, line_look

SHORT = {
    "oom_device": "out of device\nmemory",
    "oom_host": "out of host\nmemory",
    "oom_disk": "out of disk",
    "timeout": "timed out",
    "cancelled": "cancelled",
    "diverged": "diverged",
    "error": "failed",
    "": "not run",
}
"""What stands where a bar is missing."""


def series_of(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """(source, variant) pairs that occur, published first and measured last."""
    pairs = {(r.source, r.variant) for r in rows.itertuples()}
    return sorted(pairs, key=lambda pair: (SOURCES.index(pair[0]), pair[1]))


def bars(axes: Any, rows: pd.DataFrame, ylabel: str, *, order: list[str], number: str = "{:.3g}"):
    """One group of bars per label in `order`, one bar in it per (source, variant)."""
    series = series_of(rows)
    width = 0.8 / max(1, len(series))
    top = rows["value"].max()
    top = 1.0 if pd.isna(top) else float(top)
    for i, (source, variant) in enumerate(series):
        part = rows[(rows["source"] == source) & (rows["variant"] == variant)]
        for row in part.itertuples():
            if row.label not in order:
                continue
            x = order.index(row.label) + (i - (len(series) - 1) / 2) * width
            if row.value is None or pd.isna(row.value):
                why = SHORT.get(row.status or "", "no value")
                axes.text(x, top * 0.02, why, rotation=90, ha="center", va="bottom", fontsize=5.5)
                continue
            axes.bar(x, row.value, width * 0.92, **bar_look(row.method, source))
            if not (pd.isna(row.low) or pd.isna(row.high)):
                error = [[row.value - row.low], [row.high - row.value]]
                axes.errorbar(x, row.value, yerr=error, color="#333333", capsize=2, lw=0.8)
            axes.text(
                x, row.value + top * 0.015, number.format(row.value),
                ha="center", va="bottom", fontsize=5.5, rotation=90 if width < 0.3 else 0,
            )  # fmt: skip
    axes.set_xticks(range(len(order)), [label.replace("-", "-\n", 1) for label in order])
    axes.set_xlim(-0.6, len(order) - 0.4)
    axes.set_ylim(0, top * 1.28)
    axes.set_ylabel(ylabel)


def lines(axes: Any, rows: pd.DataFrame, xlabel: str, ylabel: str) -> None:
    """Value over x, one line per (source, variant), quartiles as a band of error bars."""
    for source, variant in series_of(rows):
        part = rows[(rows["source"] == source) & (rows["variant"] == variant)].sort_values("x")
        shown = part.dropna(subset=["value"])
        if shown.empty:
            continue
        look = line_look(shown["method"].iloc[0], source)
        if source == "simulated" and variant != "as published":
            look["marker"] = "P"
        label = source if not variant else f"{source}: {variant}"
        axes.plot(shown["x"], shown["value"], label=label, **look)
        spread = shown.dropna(subset=["low", "high"])
        if not spread.empty:
            error = [spread["value"] - spread["low"], spread["high"] - spread["value"]]
            axes.errorbar(
                spread["x"], spread["value"], yerr=error,
                fmt="none", color=look["color"], capsize=2, lw=0.8,
            )  # fmt: skip
        for row in part[part["value"].isna()].itertuples():
            axes.annotate(
                SHORT.get(row.status or "", "no value").replace("\n", " "),
                (row.x, 0.02), xycoords=("data", "axes fraction"),
                rotation=90, fontsize=5.5, ha="center",
            )  # fmt: skip
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_ylim(bottom=0)
    axes.legend(loc="best")


def footnote(figure: Any, text: str) -> None:
    """One line of small print under the axes: where the numbers come from."""
    figure.text(0.0, -0.02, textwrap.fill(text, 130), fontsize=5.8, color="#444444", va="top")
