"""STRONGHOLD figure 8a: throughput of all methods on one model that fits everywhere."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.exhibit import quotient, value
from workbench.figures.sizes import Size
from workbench.figures.style import legend_of_sources
from workbench.figures.verdict import Verdict, at_least
from workbench.runs.methods import METHODS
from workbench.runs.record import RunRecord
from workbench.runs.spec import RunSpec

FIGURE, SECTION = "8a", "VI.B, page 9"
TITLE = "Throughput on one model"
CLAIM = (
    "On a model that fits everywhere, STRONGHOLD keeps 0.89 of Megatron-LM's speed and is 3.8 "
    "times as fast as L2L, 1.8 times as ZeRO-Offload and 1.9 times as ZeRO-Infinity."
)
THRESHOLDS = {"megatron-lm": 0.8, "l2l": 1.0, "zero-offload": 1.0, "zero-infinity": 1.0}


def specs(size: Size, largest: dict[str, int]) -> list[RunSpec]:
    """Every method on the same model, data, seed, precision and clipping."""
    return [
        size.spec(method, window=size.window if METHODS[method].windowed else "auto")
        for method in METHODS
    ]


def rows(records: list[RunRecord]) -> pd.DataFrame:
    """Samples per second, measured and predicted."""
    out = []
    for record in records:
        out.append(tidy.measured(record, FIGURE, "samples/s"))
        if record.predicted.get("step_seconds"):
            out.append(tidy.predicted(record, FIGURE, "samples/s", x=None))
    return tidy.table(out)


def draw(figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
    order = [method.label for method in METHODS.values()]
    if same_scale:
        axes = figure.subplots()
        drawing.bars(axes, rows, "throughput (samples/s)", order=order)
        axes.set_title(TITLE)
        legend_of_sources(axes, list(rows["source"].unique()), loc="upper right")
        return
    left, right = figure.subplots(1, 2)
    own = rows[rows["source"] != "published"]
    drawing.bars(left, own, "throughput (samples/s)", order=order)
    left.set_title("this machine, reduced size")
    drawing.bars(right, relative(rows), "throughput relative to Megatron-LM", order=order)
    right.set_title("as ratios, beside the published ones")
    legend_of_sources(right, list(rows["source"].unique()), loc="upper right")


def relative(rows: pd.DataFrame) -> pd.DataFrame:
    """Each source's throughput over its Megatron-LM's."""
    out = rows.copy()
    for source, variant in drawing.series_of(rows):
        mask = (out["source"] == source) & (out["variant"] == variant)
        base = value(rows[mask], source, method="megatron-lm")
        out.loc[mask, "value"] = out.loc[mask, "value"] / base if base else None
    out["low"] = out["high"] = None
    return out.dropna(subset=["value"])


def verdicts(rows: pd.DataFrame, source: str) -> list[Verdict]:
    """STRONGHOLD against each baseline."""
    result = []
    for method, threshold in THRESHOLDS.items():
        label = METHODS[method].label
        words = (
            f"STRONGHOLD keeps {threshold:.0%} of {label}"
            if threshold < 1
            else f"STRONGHOLD is faster than {label}"
        )
        published, here = (
            quotient(value(rows, s, method="stronghold"), value(rows, s, method=method))
            for s in ("published", source)
        )
        result.append(at_least(words, published, here, threshold, source))
    return result
