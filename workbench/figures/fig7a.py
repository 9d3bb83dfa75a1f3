"""STRONGHOLD figure 7a: throughput at the largest model each baseline can train."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.exhibit import quotient, value
from workbench.figures.fig8a import THRESHOLDS, claim
from workbench.figures.sizes import Size
from workbench.figures.verdict import Verdict, at_least, no_speed_of
from workbench.runs.methods import METHODS
from workbench.runs.record import RunRecord
from workbench.runs.spec import RunSpec

FIGURE, SECTION = "7a", "VI.B, page 9"
TITLE = "Throughput at each baseline's largest model"
CLAIM = (
    "At the largest model a baseline can train, STRONGHOLD is faster than L2L, ZeRO-Offload and "
    "ZeRO-Infinity, and keeps most of Megatron-LM's speed."
)
BASELINES = tuple(THRESHOLDS)


def specs(size: Size, largest: dict[str, int]) -> list[RunSpec]:
    """For each baseline: itself and STRONGHOLD on its largest model, under the same budgets.

    STRONGHOLD chooses window and residency itself, as far as the budgets allow.
    """
    out = []
    for method in BASELINES:
        layers = largest.get(method)
        if layers:
            out += [_spec(size, method, layers), _spec(size, "stronghold", layers)]
    return out


def _spec(size: Size, method: str, layers: int) -> RunSpec:
    from workbench.figures.fig6a import ROOMIEST

    return size.timed(
        method,
        layers=layers,
        hidden=size.search_hidden,
        device_memory=size.search_device_memory,
        host_memory=size.search_host_memory,
        activations=ROOMIEST.get(method, "recompute"),
    )


def rows(records: list[RunRecord]) -> pd.DataFrame:
    """Two rows per baseline: its own throughput and STRONGHOLD's on the same model."""
    own = {r.method: r for r in records if r.method != "stronghold"}
    ours = {r.spec["model"]["layers"]: r for r in records if r.method == "stronghold"}
    out = []
    for method in BASELINES:
        if method not in own:
            continue
        layers = own[method].spec["model"]["layers"]
        for record in (own[method], ours.get(layers)):
            if record is not None:
                out += tidy.both(record, "samples/s", x=layers, pair=method)
    return tidy.table(out)


def draw(figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
    """Bars in pairs, a baseline and STRONGHOLD."""
    if same_scale:
        axes = figure.subplots()
        drawing.bars(axes, rows, _names(rows), "throughput (samples/s)", column="pair")
    else:
        left, right = figure.subplots(1, 2)
        own = drawing.without(rows, "published")
        drawing.bars(left, own, _names(own), "throughput (samples/s)", column="pair")
        left.set_title("this machine, reduced size and budgets")
        ratios = relative(drawing.compared(rows))
        names = {method: METHODS[method].label.replace("-", "-\n", 1) for method in BASELINES}
        drawing.bars(
            right, ratios, names, "STRONGHOLD over baseline", column="pair", number="{:.2f}"
        )
        right.axhline(1.0, color="#888888", linewidth=0.8, linestyle="--")
        right.set_title("as ratios, beside the published ones")
    drawing.legend_of_bars(figure, rows, pairs=True)
    drawing.small_print(figure, rows)


def _names(rows: pd.DataFrame) -> dict[str, str]:
    """A baseline and the depth of its largest model."""
    names = {}
    for method in BASELINES:
        layers = rows[rows["pair"] == method]["layers"].dropna()
        depth = f"{int(layers.iloc[0])} layers" if len(layers) else "no model fits"
        names[method] = f"{METHODS[method].label}\n{depth}"
    return names


def relative(rows: pd.DataFrame) -> pd.DataFrame:
    """STRONGHOLD's throughput over the baseline's, one row per baseline and series."""
    out = []
    for source, variant in drawing.series_of(rows):
        for method in BASELINES:
            pair = rows[rows["pair"] == method]
            ours = value(pair, source, variant, method="stronghold")
            base = value(pair, source, variant, method=method)
            mine = pair[pair["method"] == "stronghold"]
            mine = drawing.part_of(mine, source, variant)
            if mine.empty:
                continue
            row = mine.iloc[0].to_dict()
            row |= {"value": quotient(ours, base), "unit": "ratio", "low": None, "high": None}
            out.append(row)
    return tidy.table(out)


def verdicts(rows: pd.DataFrame, source: str, variant: str) -> list[Verdict]:
    """STRONGHOLD over each baseline."""
    ratios = relative(rows)
    return [
        at_least(
            f"{claim(method, threshold)} at its largest model",
            value(ratios, "published", pair=method),
            value(ratios, source, variant, pair=method),
            threshold,
            (source, variant),
            cannot=no_speed_of(rows, source, method),
        )
        for method, threshold in THRESHOLDS.items()
    ]
