"""Search time and throughput of GPT from 8 to 1,024 layers on 8 devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.aceso import base
from workbench.exhibits.metrics import Asked, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import MEASURED, PUBLISHED, SIMULATED, pick
from workbench.figures.style import GREY, line_look
from workbench.published.aceso import searches

COST, RATE, RATIO = "search_cost", "throughput", "over Megatron-LM"
BATCH = 1024


def planned(asked: Asked) -> float:
    """The share of depths for which a plan fits."""
    part = pick(asked.of_series(), quantity=RATE, method=asked.given["method"])
    return float(part["sound"].mean())


def least_at_any_depth(asked: Asked) -> float:
    """The least value of a method, of all depths."""
    return float(asked.of_series()["value"].min())


class Depths(base.AcesoExhibit):
    """Seconds, samples a second, and these over Megatron-LM's."""

    metrics = by_name(planned, least_at_any_depth)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [
            base.told(row, x=row.layers, layers=row.layers) for row in self.published().itertuples()
        ]
        rows += _found()
        grids = {(r["x"], r["source"]): r["value"] for r in rows
                 if r["quantity"] == RATE and r["method"] == base.MEGATRON}  # fmt: skip
        rows += [
            row | {"quantity": RATIO, "unit": "ratio", "value": row["value"] / known}
            for row in rows
            if row["quantity"] == RATE and (known := grids.get((row["x"], row["source"])))
        ]
        return self.tabled(at, rows, "quantity")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Three panels over the logarithm of layers."""
        drawing.prepare(figure, 1.15)
        panels = figure.subplots(1, 3)
        known = rows[rows["value"].notna()]
        depths = sorted({*rows["x"]})
        for axes, (quantity, words, log, title) in zip(
            panels,
            ((COST, "search (s)", "xy", "search"), (RATE, "samples/s", "xy", "throughput"),
             (RATIO, "over Megatron-LM", "x", "over Megatron-LM")),
            strict=True,
        ):  # fmt: skip
            part = pick(known, quantity=quantity)
            if quantity == RATIO:
                part = part[part["method"] != base.MEGATRON]
                axes.axhline(1, color=GREY, lw=0.7, ls=(0, (4, 2)))
            drawing.lines(axes, part, "layers", words, log=log, ticks=depths)
            axes.set_xticklabels([f"{x:g}" for x in depths], fontsize=5.5)
            drawing.title(axes, title)
        panels[2].set_ylim(0.9, None)
        of = {PUBLISHED: "published", SIMULATED: "simulated", MEASURED: "measured"}
        marks = [
            (drawing.stroke(**line_look(base.ACESO, source) | {"color": GREY, "marker": "o"}), name)
            for source, name in of.items()
        ]
        drawing.place_legend(
            figure, [*base.keys(base.MEGATRON, base.ALPA, base.ACESO, base.OURS), *marks]
        )
        drawing.small_print(figure, self.printed())


def _found() -> Iterator[dict[str, Any]]:
    for row in searches("scale").itertuples():
        own = {"x": row.layers, "layers": row.layers, "sound": row.fits}
        rate = BATCH / row.iteration_ms * 1000
        yield base.kept(row, SIMULATED, quantity=RATE, value=rate, unit="samples/s", **own)
        if row.search in ("faithful", "ours"):
            yield base.kept(row, MEASURED, quantity=COST, value=row.cpu_seconds, unit="s", **own)
