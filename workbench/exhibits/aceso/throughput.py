"""Throughput over Megatron-LM's, by size of three models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.aceso import base
from workbench.exhibits.metrics import by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import SIMULATED, pick
from workbench.figures.style import GREY
from workbench.published.aceso import searches


class Throughput(base.AcesoExhibit):
    """Three panels; Megatron-LM is the line at 1."""

    metrics = by_name(base.never_slower)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [base.told(row, label=row.model) for row in self.published().itertuples()]
        rows += _found()
        return self.tabled(at, rows, "quantity")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """GPT above, and the others below."""
        drawing.prepare(figure, 2)
        grid = figure.add_gridspec(2, 2)
        places = {"gpt": grid[0, :], "resnet": grid[1, 0], "t5": grid[1, 1]}
        shown = rows[(rows["method"] != base.MEGATRON) & rows["value"].notna()]
        for model, place in places.items():
            axes, part = figure.add_subplot(place), pick(shown, label=model)
            title = base.MODELS[model]
            if SIMULATED not in set(part["source"]):
                title += f", {base.NO_PROFILES.format(model)}"
            base.bars(axes, part, "over Megatron-LM", number="{:.2f}")
            drawing.title(axes, title)
            axes.axhline(1, color=GREY, lw=0.7, ls=(0, (4, 2)))
        line = drawing.stroke(color=GREY, lw=0.7, ls=(0, (4, 2))), "Megatron-LM"
        drawing.place_legend(
            figure, [*base.keys(base.ALPA, base.ACESO, base.OURS), *base.sources(shown), line]
        )
        drawing.small_print(figure, self.printed())


def _found() -> Iterator[dict[str, Any]]:
    """Plans of GPT on profiles of the published machine."""
    every = searches("large")
    grid = every[every["search"] == "megatron"].set_index("size")["iteration_ms"]
    for row in every.itertuples():
        value = grid[row.size] / row.iteration_ms
        own = {"quantity": "normalized_throughput", "unit": "ratio to Megatron-LM", "label": "gpt"}
        yield base.kept(row, SIMULATED, value=value, **own)
