"""Predicted times of an iteration beside those of training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.aceso import base
from workbench.exhibits.metrics import Asked, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import PUBLISHED, SIMULATED, pick
from workbench.figures.style import GREY, LOOKS
from workbench.published.aceso import searches

TIME = "iteration_time"
TRAINED, PREDICTED, FOUND = "training", "prediction", "prediction of the plan found here"
LABELS = {"actual": TRAINED, "predict": PREDICTED}
COLOURS = {TRAINED: GREY, PREDICTED: LOOKS[base.ACESO].color, FOUND: LOOKS[base.ACESO].color}


def worst(asked: Asked) -> float:
    """The least ratio, either way, of predicted to published training times."""
    part, source = pick(asked.part, setting=base.LARGE), asked.series[0]
    trained = pick(part, label=TRAINED).set_index("pair")["value"]
    name = PREDICTED if source == PUBLISHED else FOUND
    ratio = (pick(part, label=name, source=source).set_index("pair")["value"] / trained).dropna()
    return float(min(ratio.min(), 1 / ratio.max()))


class Times(base.AcesoExhibit):
    """A panel for the sizes of each large model, and one for the small settings."""

    metrics = by_name(worst, base.same)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [_told(row, base.LARGE, 1) for row in self.published().itertuples()]
        little = base.published("small")
        little = little[little["quantity"] == TIME]
        rows += [_told(row, base.LITTLE, 1e-3) for row in little.itertuples()]
        rows += _here()
        return self.tabled(at, rows, "model", "quantity", "setting")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """GPT above; Wide-ResNet and the small settings below."""
        titles = "GPT, batch 1,024", "Wide-ResNet, batch 1,536", "small settings, 4 GPUs"
        for axes, part, setting in base.panels(figure, rows, *titles):
            base.bars(axes, part, "iteration (s)", colors=COLOURS, number="{:.1f}")
            if setting == base.LITTLE:
                names = [base.MODELS[m] for m in dict.fromkeys(part["model"])]
                axes.set_xticklabels(names)
        parts = [(drawing.patch(color=COLOURS[name]), name) for name in LABELS.values()]
        drawing.place_legend(figure, [*parts, *base.sources(rows)])
        drawing.small_print(figure, self.printed())


def _told(row: Any, setting: str, scale: float) -> dict[str, Any]:
    own = {"label": LABELS[row.series], "setting": setting, "model": row.model, "unit": "s"}
    return base.told(row, **own) | {"value": row.value * scale}


def _here() -> Iterator[dict[str, Any]]:
    """Times of the published small plans, and of GPT's plans that were found here."""
    for model, (size, _) in base.SMALL.items():
        yield {
            "method": base.ACESO, "label": PREDICTED, "setting": base.LITTLE, "model": model,
            "unit": "s", "pair": f"{model} {size}", "x": base.GPUS,
            "value": base.golden(model).cost.time / 1000, "quantity": TIME,
            "source": SIMULATED, "status": "ok",
            "how": "the published plan, by the cost model here",
        }  # fmt: skip
    every = searches("large")
    for row in every[every["search"] == "faithful"].itertuples():
        own = {"label": FOUND, "setting": base.LARGE, "model": "gpt", "quantity": TIME, "unit": "s"}
        yield base.kept(row, SIMULATED, value=row.iteration_ms / 1000, **own)
