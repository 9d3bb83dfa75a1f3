"""STRONGHOLD figure 8b: time per iteration as the model grows deeper, window fixed."""

from __future__ import annotations

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.metrics import Asked, Found, by_name, straightness
from workbench.exhibits.stronghold.line import Line
from workbench.exhibits.stronghold.sizes import StrongholdSize
from workbench.figures import draw as drawing

NO_FIXED_WINDOW = "the planner chose the window at each depth, so these points have no fixed one"


def straight(asked: Asked) -> Found:
    """How well a straight line describes a series, if its window is fixed."""
    (source, variant), part = asked.series, asked.of_series()
    chosen = source == "measured" and bool(variant) and part["window"].isna().any()
    return Found(straightness(asked), cannot=NO_FIXED_WINDOW if chosen else "")


class Depth(Line):
    """Time over the layers, and over the shallowest model's."""

    metrics = by_name(straight)
    over = "layers", "time per iteration (ms)"
    over_first = "layers (shallowest = 1)", "time (shallowest = 1)"

    def specs(self, size: StrongholdSize) -> list[RunSpec]:
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
