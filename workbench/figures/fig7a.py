"""STRONGHOLD figure 7a: throughput at the largest model each baseline can train."""

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

FIGURE, SECTION = "7a", "VI.B, page 9"
TITLE = "Throughput at each baseline's largest model"
CLAIM = (
    "At the largest model a baseline can train, STRONGHOLD is faster than L2L (4.29 times), "
    "ZeRO-Offload (1.59) and ZeRO-Infinity (1.64), and keeps 0.89 of Megatron-LM's speed."
)
THRESHOLDS = {"megatron-lm": 0.8, "l2l": 1.0, "zero-offload": 1.0, "zero-infinity": 1.0}
BASELINES = tuple(THRESHOLDS)


def specs(size: Size, largest: dict[str, int]) -> list[RunSpec]:
    """For each baseline: itself and STRONGHOLD on its largest model, under the same budgets."""
    out = []
    for method in BASELINES:
        layers = largest.get(method)
        if not layers:
            continue
        for runner in (method, "stronghold"):
            out.append(
                size.spec(
                    runner,
                    layers=layers,
                    hidden=size.search_hidden,
                    device_memory=size.search_device_memory,
                    host_memory=size.search_host_memory,
                )
            )
    return out


def rows(records: list[RunRecord]) -> pd.DataFrame:
    """Two rows per baseline: its own throughput and STRONGHOLD's on the same model (x = layers)."""
    own = {r.method: r for r in records if r.method != "stronghold"}
    ours = {r.spec["model"]["layers"]: r for r in records if r.method == "stronghold"}
    out = []
    for method in BASELINES:
        record = own.get(method)
        if record is None:
            continue
        layers = record.spec["model"]["layers"]
        for each in (record, ours.get(layers)):
            if each is not None:
                row = tidy.measured(each, FIGURE, "samples/s", x=layers)
                row["label"] = METHODS[method].label
                out.append(row)
    return tidy.table(out)


def draw(figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
    order = [METHODS[method].label for method in BASELINES]
    if same_scale:
        axes = figure.subplots()
        drawing.bars(axes, paired(rows), "throughput (samples/s)", order=order)
        axes.set_title(TITLE)
        legend_of_sources(axes, list(rows["source"].unique()), loc="upper right")
        return
    left, right = figure.subplots(1, 2)
    own = paired(rows[rows["source"] != "published"])
    drawing.bars(left, own, "throughput (samples/s)", order=order)
    left.set_title("this machine: baseline, then STRONGHOLD")
    drawing.bars(right, relative(rows), "STRONGHOLD over baseline", order=order)
    right.axhline(1.0, color="#888888", linewidth=0.8)
    right.set_title("as ratios, beside the published ones")
    legend_of_sources(right, list(rows["source"].unique()), loc="upper right")


def paired(rows: pd.DataFrame) -> pd.DataFrame:
    """The baseline's bar and STRONGHOLD's beside it: two variants of each source."""
    out = rows.copy()
    is_ours = out["method"] == "stronghold"
    out["variant"] = out["variant"].where(~is_ours, out["variant"] + " (STRONGHOLD)")
    return out


def relative(rows: pd.DataFrame) -> pd.DataFrame:
    """STRONGHOLD's throughput over the baseline's, one row per baseline and source."""
    out = []
    for (source, variant, label), part in rows.groupby(["source", "variant", "label"], sort=False):
        ours = value(part, source, method="stronghold")
        baseline = part[part["method"] != "stronghold"]
        if baseline.empty:
            continue
        base = value(baseline, source)
        row = baseline.iloc[0].to_dict()
        row |= {"value": quotient(ours, base), "low": None, "high": None}
        row |= {"method": "stronghold", "label": label, "variant": variant}
        out.append(row)
    return tidy.table(out)


def verdicts(rows: pd.DataFrame, source: str) -> list[Verdict]:
    """STRONGHOLD over each baseline."""
    ratios = relative(rows)
    result = []
    for method, threshold in THRESHOLDS.items():
        label = METHODS[method].label
        result.append(
            at_least(
                f"STRONGHOLD keeps {threshold:.0%} of {label}"
                if threshold < 1
                else f"STRONGHOLD is faster than {label}",
                value(ratios, "published", label=label),
                value(ratios, source, label=label),
                threshold,
                source,
            )
        )
    return result
