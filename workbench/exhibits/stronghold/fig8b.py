"""STRONGHOLD figure 8b: time per iteration as the model grows deeper, window fixed."""

from __future__ import annotations

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.stronghold.line import Line
from workbench.exhibits.stronghold.sizes import Size
from workbench.figures import draw as drawing
from workbench.figures.rows import part_of
from workbench.figures.verdict import Verdict, at_least, busy_in

LINEAR = 0.98
"""R squared of a straight line from which we call it linear; the published series has 0.9985."""
NO_FIXED_WINDOW = "the planner chose the window at each depth, so these points have no fixed one"


class Depth(Line):
    """Time over the layers, and over the shallowest model's."""

    figure, section = "8b", "VI.B, page 9"
    title = "Scaling with depth"
    claim = "With a fixed window, STRONGHOLD's time per iteration grows linearly with the layers."
    takes = ("layers", "hidden", "batch", "window", "steps", "seed", "machine", "overlay")
    lists = ("layers",)
    over = "layers", "time per iteration (ms)"
    over_first = "layers (shallowest = 1)", "time (shallowest = 1)"

    def specs(self, size: Size) -> list[RunSpec]:
        """STRONGHOLD at every depth with the same window."""
        return [
            size.timed("stronghold", layers=layers, window=min(size.window, layers))
            for layers in size.depths
        ]

    def x_of(self, record: RunRecord) -> float:
        return record.spec["model"]["layers"]

    def relative(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Depth and time over those of each series' shallowest model."""
        out = drawing.relative_to_first(rows)
        first = out.groupby(["source", "variant"])["x"].transform("min")
        return out.assign(x=out["x"] / first)

    def verdicts(self, rows: pd.DataFrame, source: str, variant: str) -> list[Verdict]:
        """A straight line describes the series."""
        published, here = (
            r_squared(part_of(rows, *series)) for series in (("published", ""), (source, variant))
        )
        windows = part_of(rows, source, variant)["window"]
        chosen = source == "measured" and bool(variant) and windows.isna().any()
        return [
            at_least(
                f"time over layers is a straight line (R squared at least {LINEAR})",
                published,
                here,
                LINEAR,
                (source, variant),
                cannot=NO_FIXED_WINDOW if chosen else "",
                busy=busy_in(rows, source, variant),
            )
        ]


def r_squared(part: pd.DataFrame) -> float | None:
    """How well a straight line describes a series; None for fewer than three points."""
    part = part.dropna(subset=["value"])
    if len(part) < 3:
        return None
    return float(part["x"].astype(float).corr(part["value"].astype(float)) ** 2)


EXHIBIT = Depth()
