"""Predicted memory, normal and extra, beside that of training."""

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
from workbench.figures.style import GREY, LOOKS, bar_look, lighter
from workbench.published.aceso import searches

MEMORY = "memory"
TRAINED, NORMAL, EXTRA = "training", "predicted: normal", "predicted: extra"
LABELS = {"actual": TRAINED, "predict (norm)": NORMAL, "predict (extra)": EXTRA}
COLOURS = {
    TRAINED: GREY, NORMAL: LOOKS[base.ACESO].color, EXTRA: lighter(LOOKS[base.ACESO].color, 0.45),
}  # fmt: skip
LIMITS = {base.LARGE: base.LARGE_MB, base.LITTLE: base.LIMIT_MB}
GIB = 1024


def within_limit(asked: Asked) -> float:
    """The limit over the predicted memory of the fullest plan."""
    parts = pick(asked.of_series(), label=(NORMAL, EXTRA))
    return LIMITS[asked.given["limit"]] / parts.groupby("pair")["value"].sum().max()


class Memory(base.AcesoExhibit):
    """Bars of the fullest device; what is predicted is normal and extra, one on the other."""

    metrics = by_name(within_limit, base.same)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        little = base.published("small")
        parts = (base.LARGE, self.published()), (base.LITTLE, little[little["quantity"] == MEMORY])
        rows = [
            base.told(row, label=LABELS[row.series], setting=setting, model=row.model)
            for setting, part in parts
            for row in part.itertuples()
        ]
        rows += _here()
        return self.tabled(at, rows, "model", "quantity", "setting")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """GPT above; Wide-ResNet and the small settings below; the limit dashed."""
        titles = "GPT", "Wide-ResNet", "small settings, 4 GPUs"
        for axes, part, setting in base.panels(figure, rows, *titles):
            _stacked(axes, part)
            limit = LIMITS[setting] / GIB
            axes.axhline(limit, color=GREY, lw=0.7, ls=(0, (4, 2)), zorder=0)
            axes.set(ylabel="memory (GiB)", ylim=(0, max(axes.get_ylim()[1], 1.12 * limit)))
        drawn = [(drawing.patch(facecolor=c, edgecolor=GREY, lw=0.5), n)
                 for n, c in COLOURS.items()]  # fmt: skip
        line = drawing.stroke(color=GREY, lw=0.7, ls=(0, (4, 2))), "limit of the search"
        drawing.place_legend(figure, [*drawn, *base.sources(rows), line])
        drawing.small_print(figure, self.printed())


def _stacked(axes: Any, rows: pd.DataFrame) -> None:
    """A group of bars a size: training, and what each source predicts."""
    ticks = []
    for place, (pair, group) in enumerate(rows.groupby("pair", sort=False)):
        large = base.LARGE in set(group["setting"])
        ticks.append(
            base.size_words(pair, group["x"].iloc[0]) if large else base.MODELS[pair.split()[0]]
        )
        columns = ((TRAINED,), PUBLISHED), ((NORMAL, EXTRA), PUBLISHED), (
            (NORMAL, EXTRA), SIMULATED)  # fmt: skip
        for i, (labels, source) in enumerate(columns):
            bottom = 0.0
            for label in labels:
                part = pick(group, label=label, source=source)["value"]
                if part.empty:
                    continue
                look = bar_look(GREY if label == TRAINED else LOOKS[base.ACESO].color, source)
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
    for model, (size, _) in base.SMALL.items():
        reserved = base.published("small")
        reserved = reserved[(reserved["model"] == model) & (reserved["quantity"] == MEMORY)]
        yield from _parts(model, size, reserved.set_index("series")["value"])
    every = searches("large")
    for row in every[every["search"] == "faithful"].itertuples():
        for label, value in ((NORMAL, row.normal_mb), (EXTRA, row.reserved_mb)):
            own = {"label": label, "setting": base.LARGE, "model": "gpt", "quantity": MEMORY}
            yield base.kept(row, SIMULATED, value=value, unit="MB", **own)


def _parts(model: str, size: str, theirs: pd.Series) -> Iterator[dict[str, Any]]:
    """Both parts of the stage whose memory was published: that which trained with most."""
    stages = base.golden(model).cost.stages
    stage = min(stages, key=lambda s: abs(s.normal - theirs["predict (norm)"]))
    for label, value in ((NORMAL, stage.normal), (EXTRA, stage.reserved)):
        yield {
            "method": base.ACESO, "label": label, "setting": base.LITTLE, "model": model,
            "unit": "MB", "pair": f"{model} {size}", "x": base.GPUS, "value": value,
            "quantity": MEMORY, "source": SIMULATED, "status": "ok",
            "how": "the published plan, by the cost model here; the stage that was published",
        }  # fmt: skip
