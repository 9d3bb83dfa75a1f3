"""STRONGHOLD figure 8a: throughput of all methods on one model that fits everywhere."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.core.methods import METHODS
from workbench.core.options import takes
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.exhibit import advantage
from workbench.figures.panels import draw_panels, notes_of_measured
from workbench.figures.sizes import Size
from workbench.figures.verdict import Verdict, at_least, no_speed_of

FIGURE, SECTION = "8a", "VI.B, page 9"
TITLE = "Throughput on one model"
CLAIM = (
    "On a model that fits everywhere, STRONGHOLD is faster than L2L, ZeRO-Offload and "
    "ZeRO-Infinity, and keeps most of Megatron-LM's speed."
)
THRESHOLDS = {"megatron-lm": 0.8, "l2l": 1.0, "zero-offload": 1.0, "zero-infinity": 1.0}
"""Ratio of throughputs from which a claim holds; the published ones are 0.89 and 1.8 to 3.8."""


def specs(size: Size, largest: dict[str, int]) -> list[RunSpec]:
    """Every method on the same model, data, seed, precision and clipping."""
    return [
        size.timed(method, window=size.window if takes(method, "window") else "auto")
        for method in METHODS
    ]


def rows(records: list[RunRecord]) -> pd.DataFrame:
    """Samples per second, measured and predicted."""
    return tidy.table([row for record in records for row in tidy.both(record, "samples/s")])


def draw(figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
    """Bars by method."""
    names = {name: method.label.replace("-", "-\n", 1) for name, method in METHODS.items()}

    def absolute(axes: Any, part: pd.DataFrame) -> None:
        drawing.bars(axes, part, names, "throughput (samples/s)")

    def ratios(axes: Any, part: pd.DataFrame) -> None:
        part = drawing.relative_to_method(part, "megatron-lm")
        drawing.bars(axes, part, names, "relative to Megatron-LM", number="{:.2f}")

    draw_panels(figure, rows, absolute, ratios, same_scale=same_scale, reduced="reduced size")
    drawing.legend_of_bars(figure, rows)
    drawing.small_print(figure, rows, *notes_of_measured(rows))


def verdicts(rows: pd.DataFrame, source: str, variant: str) -> list[Verdict]:
    """STRONGHOLD against each baseline."""
    result = []
    for method, threshold in THRESHOLDS.items():
        published = advantage(rows, "published", over=method)
        here = advantage(rows, source, variant, over=method)
        result.append(
            at_least(
                claim(method, threshold),
                published,
                here,
                threshold,
                (source, variant),
                cannot=no_speed_of(rows, source, method),
            )
        )
    return result


def claim(method: str, threshold: float) -> str:
    """A threshold in words."""
    label = METHODS[method].label
    if threshold < 1:
        return f"STRONGHOLD keeps at least {threshold:.0%} of {label}'s throughput"
    return f"STRONGHOLD is faster than {label}"
