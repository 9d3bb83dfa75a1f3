"""STRONGHOLD figure 8b: time per iteration as the model grows deeper, window fixed."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.panels import draw_panels, notes_of_measured
from workbench.figures.sizes import Size
from workbench.figures.verdict import Verdict, at_least

FIGURE, SECTION = "8b", "VI.B, page 9"
TITLE = "Scaling with depth"
CLAIM = "With a fixed window, STRONGHOLD's time per iteration grows linearly with the layers."
LINEAR = 0.98
"""R squared of a straight line from which we call it linear; the published series has 0.9985."""
NO_FIXED_WINDOW = "the planner chose the window at each depth, so these points have no fixed one"


def specs(size: Size, largest: dict[str, int]) -> list[RunSpec]:
    """STRONGHOLD at every depth with the same window."""
    return [
        size.timed("stronghold", layers=layers, window=min(size.window, layers))
        for layers in size.depths
    ]


def rows(records: list[RunRecord]) -> pd.DataFrame:
    """Milliseconds per step over layers, measured and predicted."""
    out = []
    for record in records:
        out += tidy.both(record, "ms", x=record.spec["model"]["layers"])
    return tidy.table(out)


def draw(figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
    """A line over the layers."""

    def absolute(axes: Any, part: pd.DataFrame) -> None:
        drawing.lines(axes, part, "layers", "time per iteration (ms)")

    def ratios(axes: Any, part: pd.DataFrame) -> None:
        drawing.lines(axes, relative(part), "layers (shallowest = 1)", "time (shallowest = 1)")

    draw_panels(
        figure, rows, absolute, ratios, same_scale=same_scale, reduced="reduced size", rowwise=True
    )
    drawing.legend_of_lines(figure)
    drawing.small_print(figure, rows, *notes_of_measured(rows))


def relative(rows: pd.DataFrame) -> pd.DataFrame:
    """Depth and time over those of each series' shallowest model."""
    out = drawing.relative_to_first(rows)
    first = out.groupby(["source", "variant"])["x"].transform("min")
    return out.assign(x=out["x"] / first)


def r_squared(part: pd.DataFrame) -> float | None:
    """How well a straight line describes a series; None for fewer than three points."""
    part = part.dropna(subset=["value"])
    if len(part) < 3:
        return None
    return float(part["x"].astype(float).corr(part["value"].astype(float)) ** 2)


def verdicts(rows: pd.DataFrame, source: str, variant: str) -> list[Verdict]:
    """A straight line describes the series."""
    published, here = (
        r_squared(drawing.part_of(rows, *series))
        for series in (("published", ""), (source, variant))
    )
    windows = drawing.part_of(rows, source, variant)["window"]
    chosen = source == "measured" and bool(variant) and windows.isna().any()
    return [
        at_least(
            f"time over layers is a straight line (R squared at least {LINEAR})",
            published,
            here,
            LINEAR,
            (source, variant),
            cannot=NO_FIXED_WINDOW if chosen else "",
        )
    ]
