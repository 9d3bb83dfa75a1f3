"""STRONGHOLD figure 6a: the largest model each method can train within one server's memory."""

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

FIGURE, SECTION = "6a", "VI.A, page 8"
TITLE = "Largest trainable model"
CLAIM = (
    "Within the same device and host memory, STRONGHOLD trains a larger model than Megatron-LM "
    "(2.99 times), L2L (1.27), ZeRO-Offload and ZeRO-Infinity (2.04 each)."
)
PROBE_STEPS = 3


def specs(size: Size, largest: dict[str, int]) -> list[RunSpec]:
    """The searches: one spec per method, whose layers the search varies (session.py)."""
    return [
        size.spec(
            method,
            hidden=size.search_hidden,
            steps=PROBE_STEPS,
            device_memory=size.search_device_memory,
            host_memory=size.search_host_memory,
            window=size.small_window if METHODS[method].windowed else "auto",
            resident=0 if METHODS[method].windowed else "auto",
            activations="host" if METHODS[method].windowed else "recompute",
        )
        for method in METHODS
    ]


def rows(records: list[RunRecord]) -> pd.DataFrame:
    """The largest run of each method that ended well, with the reason the next one did not."""
    out = []
    for method in METHODS:
        own = [r for r in records if r.method == method]
        done = [r for r in own if r.status == "ok"]
        failed = [r for r in own if r.status != "ok"]
        if not done:
            if failed:
                out.append(tidy.measured(failed[0], FIGURE, "parameters"))
            continue
        best = max(done, key=lambda r: r.spec["model"]["layers"])
        row = tidy.measured(best, FIGURE, "parameters")
        row["value"] = best.parameters / 1e6
        row["unit"] = "million parameters"
        beyond = [r for r in failed if r.spec["model"]["layers"] > best.spec["model"]["layers"]]
        if beyond:
            next_one = min(beyond, key=lambda r: r.spec["model"]["layers"])
            row["note"] = f"at {next_one.spec['model']['layers']} layers: {next_one.message}"
            row["status"] = next_one.status
        out.append(row)
    return tidy.table(out)


def draw(figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
    order = [method.label for method in METHODS.values()]
    if same_scale:
        axes = figure.subplots()
        drawing.bars(axes, rows, "model size (billion parameters)", order=order)
        axes.set_title(TITLE)
        legend_of_sources(axes, list(rows["source"].unique()), loc="upper left")
        return
    left, right = figure.subplots(1, 2)
    own = rows[rows["source"] != "published"]
    drawing.bars(left, own, "model size (million parameters)", order=order)
    left.set_title("this machine, reduced size")
    drawing.bars(right, relative(rows), "size relative to Megatron-LM", order=order)
    right.set_title("as ratios, beside the published ones")
    legend_of_sources(right, list(rows["source"].unique()), loc="upper left")


def relative(rows: pd.DataFrame) -> pd.DataFrame:
    """Each source's sizes over its Megatron-LM size."""
    out = rows.copy()
    for source, variant in drawing.series_of(rows):
        mask = (out["source"] == source) & (out["variant"] == variant)
        base = value(rows[mask], source, method="megatron-lm")
        out.loc[mask, "value"] = out.loc[mask, "value"] / base if base else None
    out["low"] = out["high"] = None
    return out


def verdicts(rows: pd.DataFrame, source: str) -> list[Verdict]:
    """STRONGHOLD against each baseline, in parameters."""
    result = []
    for method in METHODS:
        if method == "stronghold":
            continue
        published = quotient(
            value(rows, "published", method="stronghold"), value(rows, "published", method=method)
        )
        here = quotient(
            value(rows, source, method="stronghold"), value(rows, source, method=method)
        )
        label = METHODS[method].label
        result.append(
            at_least(f"STRONGHOLD trains more than {label}", published, here, 1.0, source)
        )
    return result
