"""The slowest stage that each method finds, over the mean device; and the models that were said to
fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.ftpipe.base import (
    DEVICES,
    FAITHFUL,
    MEMORY,
    MIB,
    NAMES,
    FtpipeExhibit,
    estimated,
    mean_ms,
    told,
    tried,
)
from workbench.exhibits.metrics import Asked, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import pick
from workbench.figures.style import GREY, LOOKS

SLOWEST, PARAMETERS, BOUND = "slowest stage", "parameters", "bound"
METHODS = ("pipedream", "acyclic", "metis", "2dbin", FAITHFUL, "mpipe", "exact")
PUBLISHED_AS = {"T5-3B tied, 8 GPUs, 512/4": "T5-3B"}
"""Item of a published value -> model; otherwise the model that its words begin with."""
SUPPORTED = "supported"


def within(asked: Asked) -> float:
    """The bound over the slowest stage of a method, at the worst of all models."""
    method = asked.given["method"]
    ours = pick(asked.of_series(), quantity=SLOWEST, method=method).set_index("pair")["value"]
    bounds = pick(asked.of_series(), quantity=BOUND).set_index("pair")["value"]
    return float((bounds / ours).min())


def never_worse(asked: Asked) -> float:
    """The least ratio of another method's slowest stage to a method's."""
    part = pick(asked.of_series(), quantity=SLOWEST).dropna(subset=["value"])
    values = part.pivot(index="pair", columns="method", values="value")
    ours = values[asked.given["method"]]
    others = values.drop(columns=[asked.given["method"], "exact"], errors="ignore")
    return float(others.div(ours, axis=0).min().min())


class Partitions(FtpipeExhibit):
    """A group of bars a model, and the sizes of models."""

    metrics = by_name(within, never_worse)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        models = at.size.models
        theirs = self.published()
        rows = [each for model in models for each in _estimated(model, at.size.operators)]
        for row in theirs[theirs["metric"] == "speed-up"].itertuples():
            model = PUBLISHED_AS.get(row.item, next(filter(row.item.startswith, models), ""))
            if model in models and row.method:
                own = told(row, pair=model, quantity=SLOWEST)
                rows.append(own | {"value": DEVICES / float(row.value)})
        sizes = theirs[theirs["metric"] == PARAMETERS]
        rows += [
            told(row, pair=row.item, quantity=PARAMETERS, note=SUPPORTED if row.note else "")
            for row in sizes.itertuples()
        ]
        return self.tabled(at, rows, "quantity")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Bars of all methods, the bound as a line in each group; below, the sizes."""
        drawing.prepare(figure, 2)
        above, below = figure.subplots(2, 1, height_ratios=(1.5, 1))
        slowest, bounds = pick(rows, quantity=SLOWEST), pick(rows, quantity=BOUND)
        models = [*dict.fromkeys(bounds["pair"])]
        drawing.bars(above, slowest, {m: m for m in models}, "slowest stage / mean device",
                     column="pair", number="{:.2f}")  # fmt: skip
        for place, value in enumerate(bounds["value"]):
            above.plot([place - 0.45, place + 0.45], [value] * 2, color="black", lw=0.8, zorder=3)
        sizes = pick(rows, quantity=PARAMETERS)
        edges = [LOOKS["mpipe"].color if told == SUPPORTED else GREY for told in sizes["note"]]
        below.bar(sizes["pair"], sizes["value"], 0.6, facecolor="white", edgecolor=edges, lw=1.3)
        for place, value in enumerate(sizes["value"]):
            drawing.beside(below, f"{value:g}", (place, value), (0, 2), ha="center", fontsize=6)
        below.set(yscale="log", ylabel="parameters (billion)", ylim=(0.1, 3000))
        below.tick_params(axis="x", labelsize=6.3, length=0)
        drawing.title(below, "published: sizes of models; in colour, those said to fit")
        there = [name for name in METHODS if name in set(slowest["method"])]
        keys = [
            (drawing.patch(color=LOOKS[n].face, ec=LOOKS[n].color), NAMES[n].replace("\n", " "))
            for n in there
        ]
        bound = drawing.stroke(color="black", lw=0.8), "bound, proved"
        drawing.legend(figure, slowest, methods=False, more=[*keys, bound])
        drawing.small_print(figure, self.printed(devices=DEVICES, memory=f"{MEMORY / MIB:,.0f}"))


def _estimated(model: str, operators: bool) -> Iterator[dict[str, Any]]:
    """Every method's slowest stage, and the exact bound."""
    mean = mean_ms(model, operators)
    for method in METHODS:
        found, status = tried(model, operators, method)
        value = found and found.objective_ms / mean
        yield estimated(method, value, pair=model, quantity=SLOWEST, status=status)
        if method == "exact" and found:
            yield estimated(method, found.bound_ms / mean, pair=model, quantity=BOUND)
