"""Predicted memory, normal and extra, beside that of training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.aceso.base import (
    ACESO,
    GPUS,
    LARGE_MB,
    LIMIT_MB,
    MODELS,
    SMALL,
    AcesoExhibit,
    golden,
    kept,
    published,
    same,
    size_words,
    sources,
    told,
)
from workbench.exhibits.metrics import Asked, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import PUBLISHED, SIMULATED, pick
from workbench.figures.style import GREY, LOOKS, bar_look, lighter
from workbench.published.aceso import searches

MEMORY = "memory"
TRAINED, NORMAL, EXTRA = "training", "predicted: normal", "predicted: extra"
LABELS = {"actual": TRAINED, "predict (norm)": NORMAL, "predict (extra)": EXTRA}
COLOURS = {
    TRAINED: GREY, NORMAL: LOOKS[ACESO].color, EXTRA: lighter(LOOKS[ACESO].color, 0.45),
}  # fmt: skip
LARGE, LITTLE = "large", "small"
LIMITS = {LARGE: LARGE_MB, LITTLE: LIMIT_MB}
GIB = 1024


def within_limit(asked: Asked) -> float:
    """The limit over the predicted memory of the fullest plan."""
    parts = pick(asked.of_series(), label=(NORMAL, EXTRA))
    return LIMITS[asked.given["limit"]] / parts.groupby("pair")["value"].sum().max()


class Memory(AcesoExhibit):
    """Bars of the fullest device; what is predicted is normal and extra, one on the other."""

    metrics = by_name(within_limit, same)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        little = published("small")
        parts = (LARGE, self.published()), (LITTLE, little[little["quantity"] == MEMORY])
        rows = [
            told(row, label=LABELS[row.series], setting=setting, model=row.model)
            for setting, part in parts
            for row in part.itertuples()
        ]
        rows += _here()
        return self.tabled(at, rows, "model", "quantity", "setting")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """GPT above; Wide-ResNet and the small settings below; the limit dashed."""
        drawing.prepare(figure, 2)
        grid = figure.add_gridspec(2, 2, width_ratios=(1.5, 1))
        panels = (
            (grid[0, :], {"setting": LARGE, "model": "gpt"}, "GPT"),
            (grid[1, 0], {"setting": LARGE, "model": "resnet"}, "Wide-ResNet"),
            (grid[1, 1], {"setting": LITTLE}, "small settings, 4 GPUs"),
        )
        for place, where, title in panels:
            axes, part = figure.add_subplot(place), pick(rows, **where)
            _stacked(axes, part)
            limit = LIMITS[where["setting"]] / GIB
            axes.axhline(limit, color=GREY, lw=0.7, ls=(0, (4, 2)), zorder=0)
            axes.set(ylabel="memory (GiB)", ylim=(0, max(axes.get_ylim()[1], 1.12 * limit)))
            drawing.title(axes, title)
        drawn = [(drawing.patch(facecolor=c, edgecolor=GREY, lw=0.5), n)
                 for n, c in COLOURS.items()]  # fmt: skip
        line = drawing.stroke(color=GREY, lw=0.7, ls=(0, (4, 2))), "limit of the search"
        drawing.place_legend(figure, [*drawn, *sources(rows), line])
        drawing.small_print(figure, self.printed())


def _stacked(axes: Any, rows: pd.DataFrame) -> None:
    """A group of bars a size: training, and what each source predicts."""
    ticks = []
    for place, (pair, group) in enumerate(rows.groupby("pair", sort=False)):
        large = LARGE in set(group["setting"])
        ticks.append(size_words(pair, group["x"].iloc[0]) if large else MODELS[pair.split()[0]])
        columns = ((TRAINED,), PUBLISHED), ((NORMAL, EXTRA), PUBLISHED), (
            (NORMAL, EXTRA), SIMULATED)  # fmt: skip
        for i, (labels, source) in enumerate(columns):
            bottom = 0.0
            for label in labels:
                part = pick(group, label=label, source=source)["value"]
                if part.empty:
                    continue
                look = bar_look(GREY if label == TRAINED else LOOKS[ACESO].color, source)
                if label == EXTRA:
                    look["facecolor"] = COLOURS[EXTRA]
                value = float(part.iloc[0]) / GIB
                axes.bar(place + 0.28 * (i - 1), value, 0.24, bottom, **look)
                bottom += value
            if bottom:
                at = (place + 0.28 * (i - 1), bottom)
                drawing.beside(axes, f"{bottom:.1f}", at, (0, 2), ha="center", fontsize=5.5)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.tick_params(axis="x", length=0)


def _here() -> Iterator[dict[str, Any]]:
    """Memory of the published small plans, and of GPT's plans that were found here."""
    for model, (size, _) in SMALL.items():
        reserved = published("small")
        reserved = reserved[(reserved["model"] == model) & (reserved["quantity"] == MEMORY)]
        yield from _parts(model, size, reserved.set_index("series")["value"])
    every = searches("large")
    for row in every[every["search"] == "faithful"].itertuples():
        for label, value in ((NORMAL, row.normal_mb), (EXTRA, row.reserved_mb)):
            own = {"label": label, "setting": LARGE, "model": "gpt", "quantity": MEMORY}
            yield kept(row, SIMULATED, value=value, unit="MB", **own)


def _parts(model: str, size: str, theirs: pd.Series) -> Iterator[dict[str, Any]]:
    """Both parts of the stage whose memory was published: that which trained with most."""
    stages = golden(model).cost.stages
    stage = min(stages, key=lambda s: abs(s.normal - theirs["predict (norm)"]))
    for label, value in ((NORMAL, stage.normal), (EXTRA, stage.reserved)):
        yield {
            "method": ACESO, "label": label, "setting": LITTLE, "model": model, "unit": "MB",
            "pair": f"{model} {size}", "x": GPUS, "value": value, "quantity": MEMORY,
            "source": SIMULATED, "status": "ok",
            "how": "the published plan, by the cost model here; the stage that was published",
        }  # fmt: skip
