"""STRONGHOLD figure 9: time per iteration over the window."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.exhibit import quotient
from workbench.figures.sizes import Size
from workbench.figures.verdict import Verdict, at_least
from workbench.runs.record import RunRecord
from workbench.runs.spec import RunSpec

FIGURE, SECTION = "9", "VI.C, page 10"
TITLE = "Effect of the window"
CLAIM = (
    "A larger window hides more of the transfers: on 32 layers, window 15 takes three quarters of "
    "the time of window 2."
)
NOISE = 0.95
"""A larger window must not be slower by more than the noise of a run."""


def specs(size: Size, largest: dict[str, int]) -> list[RunSpec]:
    """STRONGHOLD on one model at every window."""
    return [
        size.spec("stronghold", window=window, link_bytes_per_s=size.link_bytes_per_s)
        for window in size.windows
    ]


def rows(records: list[RunRecord]) -> pd.DataFrame:
    """Milliseconds per step over the window asked for, measured and predicted."""
    out = []
    for record in records:
        window = record.spec["window"]
        out.append(tidy.measured(record, FIGURE, "ms", x=window))
        out.append(tidy.predicted(record, FIGURE, "ms", x=window))
    return tidy.table(out)


def draw(figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
    if same_scale:
        axes = figure.subplots()
        drawing.lines(axes, rows, "window (layers)", "time per iteration (ms)")
        axes.set_title(TITLE)
        return
    left, right = figure.subplots(1, 2)
    own = rows[rows["source"] != "published"]
    drawing.lines(left, own, "window (layers)", "time per iteration (ms)")
    left.set_title("this machine, reduced size")
    drawing.lines(
        right, relative(rows), "window, share of the layers", "time, the smallest window being 1"
    )
    right.set_title("as ratios, beside the published ones")


def relative(rows: pd.DataFrame) -> pd.DataFrame:
    """Time over that of each series' smallest window, window as a share of the layers."""
    parts = []
    for source, variant in drawing.series_of(rows):
        part = rows[(rows["source"] == source) & (rows["variant"] == variant)]
        part = part.dropna(subset=["value"]).sort_values("x").copy()
        if part.empty:
            continue
        for column in ("low", "high", "value"):
            part[column] = part[column] / part["value"].iloc[0]
        part["x"] = part["x"] / part["layers"]
        parts.append(part)
    return pd.concat(parts) if parts else rows.iloc[:0]


def gain(rows: pd.DataFrame, source: str) -> float | None:
    """Time of the smallest window over that of the largest."""
    part = rows[rows["source"] == source].dropna(subset=["value"])
    part = part[part["variant"] == part["variant"].iloc[0]] if len(part) else part
    part = part.sort_values("x")
    if len(part) < 2:
        return None
    return quotient(float(part["value"].iloc[0]), float(part["value"].iloc[-1]))


def verdicts(rows: pd.DataFrame, source: str) -> list[Verdict]:
    """The largest window is at least as fast as the smallest."""
    return [
        at_least(
            "the largest window is at least as fast as the smallest",
            gain(rows, "published"),
            gain(rows, source),
            NOISE,
            source,
        )
    ]
