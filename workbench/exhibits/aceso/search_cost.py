"""Seconds that a search takes: Aceso's, ours, and Alpa's as published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.aceso import base
from workbench.exhibits.metrics import Asked, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import MEASURED, PUBLISHED, one, quotient
from workbench.published.aceso import searches

COST = "search_cost"


def alpa_over(asked: Asked) -> float | None:
    """Alpa's published seconds over those of a search."""
    theirs = one(asked.part, method=base.ALPA, source=PUBLISHED)
    return quotient(theirs, asked.value({"method": asked.given["method"]}))


class SearchCost(base.AcesoExhibit):
    """Three panels, over logarithms of seconds."""

    metrics, times = by_name(alpa_over), True

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [
            base.told(row, label=row.model, setting=base.LARGE)
            for row in self.published().itertuples()
        ]
        little = base.published("small")
        rows += [
            base.told(row, label=row.model, setting=base.LITTLE)
            for row in little[little["quantity"] == COST].itertuples()
        ]
        same = {"quantity": COST, "unit": "s"}
        rows += [
            base.kept(row, MEASURED, value=row.cpu_seconds, label="gpt", setting=base.LARGE, **same)
            for row in searches("large").itertuples()
            if base.KINDS[row.search] in (base.ACESO, base.OURS)
        ]
        rows += (row | same for model in at.size.models for row in _here(model))
        return self.tabled(at, rows, "quantity", "setting")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Large settings above, small ones below."""
        known = rows[rows["value"].notna()]
        titles = (
            "GPT, batch 1,024, 28,000 MB", f"Wide-ResNet, {base.NO_PROFILES.format('resnet')}",
            f"small settings:\n{base.GPUS} GPUs of 12,000 MB",
        )  # fmt: skip
        for axes, part, setting in base.panels(figure, known, *titles, by="label", wide=1.35):
            part = part[part["x"] > 1]  # published of several devices alone
            base.bars(axes, part, "search (s)", number="{:,.1f}")
            if setting == base.LITTLE:
                names = [f"{base.MODELS[m]}\n{base.SMALL[m][0].replace('_', '.')}"
                         for m in dict.fromkeys(part["label"])]  # fmt: skip
                axes.set_xticklabels(names)
            axes.set(yscale="log", ylim=(0.3, 2e6))
        drawing.place_legend(
            figure, [*base.keys(base.ALPA, base.ACESO, base.OURS), *base.sources(known)]
        )
        drawing.small_print(figure, self.printed())


def _here(model: str) -> Iterator[dict[str, Any]]:
    """Searches of a small setting over all numbers of stages, made now."""
    for kind in ("faithful", "ours"):
        outcome = base.search_small(kind, model)
        explored = sum(found.explored for found in outcome.found.values())
        yield {
            "method": base.KINDS[kind], "label": model, "setting": base.LITTLE, "x": base.GPUS,
            "value": outcome.cpu_seconds,
            "pair": f"{model} {base.SMALL[model][0]}", "source": MEASURED, "status": "ok",
            "note": f"{base.NAMES[base.KINDS[kind]]}: {explored} plans rated",
            "hardware": base.core(),
            "how": "processor seconds of one search over all numbers of stages",
        }  # fmt: skip
