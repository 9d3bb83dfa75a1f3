"""Seconds that a search takes: Aceso's, ours, and Alpa's as published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.aceso.base import (
    ACESO,
    ALPA,
    GPUS,
    KINDS,
    MODELS,
    NAMES,
    NO_PROFILES,
    OURS,
    SMALL,
    AcesoExhibit,
    bars,
    core,
    kept,
    keys,
    published,
    search_small,
    sources,
    told,
)
from workbench.exhibits.metrics import Asked, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import MEASURED, PUBLISHED, one, pick, quotient
from workbench.published.aceso import searches

COST = "search_cost"
LARGE, LITTLE = "large", "small"


def alpa_over(asked: Asked) -> float | None:
    """Alpa's published seconds over those of a search."""
    theirs = one(asked.part, method=ALPA, source=PUBLISHED)
    return quotient(theirs, asked.value({"method": asked.given["method"]}))


class SearchCost(AcesoExhibit):
    """Three panels, over logarithms of seconds."""

    metrics = by_name(alpa_over)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [told(row, label=row.model, setting=LARGE) for row in self.published().itertuples()]
        little = published("small")
        rows += [
            told(row, label=row.model, setting=LITTLE)
            for row in little[little["quantity"] == COST].itertuples()
        ]
        same = {"quantity": COST, "unit": "s"}
        rows += [
            kept(row, MEASURED, value=row.cpu_seconds, label="gpt", setting=LARGE, **same)
            for row in searches("large").itertuples()
            if KINDS[row.search] in (ACESO, OURS)
        ]
        rows += (row | same for model in at.size.models for row in _here(model))
        return self.tabled(at, rows, "quantity", "setting")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Large settings above, small ones below."""
        drawing.prepare(figure, 2)
        grid = figure.add_gridspec(2, 2, width_ratios=(1.35, 1))
        panels = (
            (grid[0, :], {"setting": LARGE, "label": "gpt"}, "GPT, batch 1,024, 28,000 MB"),
            (
                grid[1, 0],
                {"setting": LARGE, "label": "resnet"},
                f"Wide-ResNet, {NO_PROFILES.format('resnet')}",
            ),
            (grid[1, 1], {"setting": LITTLE}, f"small settings:\n{GPUS} GPUs of 12,000 MB"),
        )
        known = rows[rows["value"].notna()]
        for place, where, title in panels:
            axes, part = figure.add_subplot(place), pick(known, **where)
            part = part[part["x"] > 1]  # published of several devices alone
            bars(axes, part, "search (s)", title, number="{:,.1f}")
            if where.get("setting") == LITTLE:
                names = [f"{MODELS[m]}\n{SMALL[m][0].replace('_', '.')}"
                         for m in dict.fromkeys(part["label"])]  # fmt: skip
                axes.set_xticklabels(names)
            axes.set(yscale="log", ylim=(0.3, 2e6))
        drawing.place_legend(figure, [*keys(ALPA, ACESO, OURS), *sources(known)])
        drawing.small_print(figure, self.printed())


def _here(model: str) -> Iterator[dict[str, Any]]:
    """Searches of a small setting over all numbers of stages, made now."""
    for kind in ("faithful", "ours"):
        outcome = search_small(kind, model)
        explored = sum(found.explored for found in outcome.found.values())
        yield {
            "method": KINDS[kind], "label": model, "setting": LITTLE, "x": GPUS,
            "value": outcome.cpu_seconds,
            "pair": f"{model} {SMALL[model][0]}", "source": MEASURED, "status": "ok",
            "note": f"{NAMES[KINDS[kind]]}: {explored} plans rated", "hardware": core(),
            "how": "processor seconds of one search over all numbers of stages",
        }  # fmt: skip
