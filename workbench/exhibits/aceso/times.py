"""Predicted times of an iteration beside those of training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.aceso.base import (
    ACESO,
    GPUS,
    MODELS,
    SMALL,
    AcesoExhibit,
    bars,
    golden,
    kept,
    published,
    same,
    sources,
    told,
)
from workbench.exhibits.metrics import Asked, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import PUBLISHED, SIMULATED, pick
from workbench.figures.style import GREY, LOOKS
from workbench.published.aceso import searches

TIME = "iteration_time"
TRAINED, PREDICTED, FOUND = "training", "prediction", "prediction of the plan found here"
LABELS = {"actual": TRAINED, "predict": PREDICTED}
COLOURS = {TRAINED: GREY, PREDICTED: LOOKS[ACESO].color, FOUND: LOOKS[ACESO].color}
LARGE, LITTLE = "large", "small"


def worst(asked: Asked) -> float:
    """The least ratio, either way, of predicted to published training times."""
    part, source = pick(asked.part, setting=LARGE), asked.series[0]
    trained = pick(part, label=TRAINED).set_index("pair")["value"]
    name = PREDICTED if source == PUBLISHED else FOUND
    ratio = (pick(part, label=name, source=source).set_index("pair")["value"] / trained).dropna()
    return float(min(ratio.min(), 1 / ratio.max()))


class Times(AcesoExhibit):
    """A panel for the sizes of each large model, and one for the small settings."""

    metrics = by_name(worst, same)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [_told(row, LARGE, 1) for row in self.published().itertuples()]
        little = published("small")
        little = little[little["quantity"] == TIME]
        rows += [_told(row, LITTLE, 1e-3) for row in little.itertuples()]
        rows += _here()
        return self.tabled(at, rows, "model", "quantity", "setting")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """GPT above; Wide-ResNet and the small settings below."""
        drawing.prepare(figure, 2)
        grid = figure.add_gridspec(2, 2, width_ratios=(1.5, 1))
        panels = (
            (grid[0, :], {"setting": LARGE, "model": "gpt"}, "GPT, batch 1,024"),
            (grid[1, 0], {"setting": LARGE, "model": "resnet"}, "Wide-ResNet, batch 1,536"),
            (grid[1, 1], {"setting": LITTLE}, "small settings, 4 GPUs"),
        )
        for place, where, title in panels:
            axes, part = figure.add_subplot(place), pick(rows, **where)
            bars(axes, part, "iteration (s)", title, colors=COLOURS, number="{:.1f}")
            if where["setting"] == LITTLE:
                names = [MODELS[m] for m in dict.fromkeys(part["model"])]
                axes.set_xticklabels(names)
        parts = [(drawing.patch(color=COLOURS[name]), name) for name in LABELS.values()]
        drawing.place_legend(figure, [*parts, *sources(rows)])
        drawing.small_print(figure, self.printed())


def _told(row: Any, setting: str, scale: float) -> dict[str, Any]:
    own = {"label": LABELS[row.series], "setting": setting, "model": row.model, "unit": "s"}
    return told(row, **own) | {"value": row.value * scale}


def _here() -> Iterator[dict[str, Any]]:
    """Times of the published small plans, and of GPT's plans that were found here."""
    for model, (size, _) in SMALL.items():
        yield {
            "method": ACESO, "label": PREDICTED, "setting": LITTLE, "model": model, "unit": "s",
            "pair": f"{model} {size}", "x": GPUS, "value": golden(model).cost.time / 1000,
            "quantity": TIME, "source": SIMULATED, "status": "ok",
            "how": "the published plan, by the cost model here",
        }  # fmt: skip
    every = searches("large")
    for row in every[every["search"] == "faithful"].itertuples():
        own = {"label": FOUND, "setting": LARGE, "model": "gpt", "quantity": TIME, "unit": "s"}
        yield kept(row, SIMULATED, value=row.iteration_ms / 1000, **own)
