"""STRONGHOLD figure 9: time per iteration over the window."""

from __future__ import annotations

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.stronghold.line import Line
from workbench.exhibits.stronghold.sizes import StrongholdSize
from workbench.figures import draw as drawing


class Window(Line):
    """Time over the window, and over the smallest window's."""

    over = "window (layers)", "time per iteration (ms)"
    over_first = "window, as a share of the layers", "time (smallest window = 1)"

    def specs(self, size: StrongholdSize) -> list[RunSpec]:
        """STRONGHOLD on one model at every window."""
        return [size.timed("stronghold", window=window) for window in size.windows]

    def x_of(self, record: RunRecord) -> float:
        return record.spec["options"]["window"]

    def relative(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Time over that of each series' smallest window, window as a share of the layers."""
        out = drawing.relative_to_first(rows)
        return out.assign(x=out["x"] / out["layers"])
