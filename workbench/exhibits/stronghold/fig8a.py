"""STRONGHOLD figure 8a: throughput of all methods on one model that fits everywhere."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.core.methods import METHODS
from workbench.core.options import takes
from workbench.core.spec import RunSpec
from workbench.exhibits.stronghold.base import StrongholdExhibit
from workbench.exhibits.stronghold.sizes import StrongholdSize
from workbench.figures import draw as drawing


class Throughput(StrongholdExhibit):
    """Bars by method, and relative to Megatron-LM."""

    def specs(self, size: StrongholdSize) -> list[RunSpec]:
        """Every method on the same model, data, seed, precision and clipping."""
        return [
            size.timed(method, window=size.window if takes(method, "window") else "auto")
            for method in METHODS
        ]

    def absolute(self, axes: Any, rows: pd.DataFrame) -> None:
        drawing.bars(axes, rows, drawing.names_of(METHODS), "throughput (samples/s)")
