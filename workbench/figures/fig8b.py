"""STRONGHOLD figure 8b: time per iteration as the model grows deeper, window fixed."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.exhibit import value
from workbench.figures.sizes import Size
from workbench.figures.verdict import Verdict, at_least
from workbench.runs.record import RunRecord
from workbench.runs.spec import RunSpec

FIGURE, SECTION = "8b", "VI.B, page 9"
TITLE = "Scaling with depth"
CLAIM = "With a fixed window, STRONGHOLD's time per iteration grows linearly with the layers."
LINEAR = 0.98
"""R squared of a straight line from which we call it linear; the published series has 0.9985."""


def specs(size: Size, largest: dict[str, int]) -> list[RunSpec]:
    """STRONGHOLD at every depth with the same window."""
    return [
        size.spec(
            "stronghold",
            layers=layers,
            window=min(size.window, layers),
            link_bytes_per_s=size.link_bytes_per_s,
        )
        for layers in size.depths
    ]


def rows(records: list[RunRecord]) -> pd.DataFrame:
    """Milliseconds per step over layers, measured and predicted."""
    out = []
    for record in records:
        layers = record.spec["model"]["layers"]
        out.append(tidy.measured(record, FIGURE, "ms", x=layers))
        out.append(tidy.predicted(record, FIGURE, "ms", x=layers))
    return tidy.table(out)


def draw(figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
    if same_scale:
        axes = figure.subplots()
        drawing.lines(axes, rows, "layers", "time per iteration (ms)")
        axes.set_title(TITLE)
        return
    left, right = figure.subplots(1, 2)
    drawing.lines(left, rows[rows["source"] != "published"], "layers", "time per iteration (ms)")
    left.set_title("this machine, reduced size")
    drawing.lines(
        right,
        relative(rows),
        "layers, the shallowest model being 1",
        "time, the shallowest being 1",
    )
    right.set_title("as ratios, beside the published ones")


def relative(rows: pd.DataFrame) -> pd.DataFrame:
    """Depth and time over those of each series' shallowest model."""
    parts = []
    for source, variant in drawing.series_of(rows):
        part = rows[(rows["source"] == source) & (rows["variant"] == variant)]
        part = part.dropna(subset=["value"]).sort_values("x").copy()
        if part.empty:
            continue
        for column in ("low", "high", "value"):
            part[column] = part[column] / part["value"].iloc[0]
        part["x"] = part["x"] / part["x"].iloc[0]
        parts.append(part)
    return pd.concat(parts) if parts else rows.iloc[:0]


def r_squared(rows: pd.DataFrame, source: str) -> float | None:
    """How well a straight line describes the source's series."""
    part = rows[rows["source"] == source].dropna(subset=["value"])
    part = part[part["variant"] == part["variant"].iloc[0]] if len(part) else part
    if len(part) < 3:
        return None
    x, y = part["x"].astype(float), part["value"].astype(float)
    return float(x.corr(y) ** 2)


def verdicts(rows: pd.DataFrame, source: str) -> list[Verdict]:
    """A straight line describes the series."""
    return [
        at_least(
            f"time over layers is a line (R squared at least {LINEAR})",
            r_squared(rows, "published"),
            r_squared(rows, source),
            LINEAR,
            source,
            why="" if value(rows, source) is not None else "no depth could be run",
        )
    ]
