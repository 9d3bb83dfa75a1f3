"""Speed-up of mixed stages over the number of blocks L that devices are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.ftpipe.base import (
    FAITHFUL,
    MIXED,
    NAMES,
    FtpipeExhibit,
    estimated,
    told,
    tried,
)
from workbench.exhibits.metrics import Asked, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import ESTIMATED, PUBLISHED, pick
from workbench.figures.style import line_look

MODEL = "T5-3B"
SPEED, MS = "speed-up", "ms"
GRAPHS = {False: "layer graph", True: "operator graph"}


def never_slower(asked: Asked) -> float:
    """The least ratio of a number of blocks' speed-up to the best of fewer blocks."""
    method = MIXED if asked.series[0] == ESTIMATED else FAITHFUL
    values = pick(asked.of_series(), method=method).sort_values("x")["value"]
    return float((values / values.cummax()).min())


def near_bound(asked: Asked) -> float:
    """The bound over the slowest stage, at the worst from so many blocks on."""
    part = pick(asked.rows, quantity=MS, method=MIXED)
    part = part[part["x"] >= asked.given["enough"]]
    return float(1 / (1 + part["error"].max()))


class OverBlocks(FtpipeExhibit):
    """A line for the published values, the published rules, and ours."""

    metrics = by_name(never_slower, near_bound)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        size = at.size
        theirs = self.published()
        theirs = theirs[(theirs["metric"] == SPEED) & (theirs["variant"] == GRAPHS[size.operators])]
        rows = [told(row, x=float(row.item), quantity=SPEED) for row in theirs.itertuples()]
        rows += _estimated(size.operators, size.blocks)
        return self.tabled(at, rows, "quantity", "error")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Speed-up over L, and how far the slowest stage is from the bound, both over log L."""
        drawing.prepare(figure)
        axes, beside = figure.subplots(1, 2)
        shown = pick(rows, quantity=SPEED)
        drawing.lines(axes, shown, "number of blocks L", "speed-up over L = 8", log="x",
                      ticks=sorted({*shown["x"]} - {9.0, 14.0}))  # fmt: skip
        slowest = pick(rows, quantity=MS)
        slowest = slowest.assign(value=1 + slowest["error"])
        drawing.lines(beside, slowest, "number of blocks L", "slowest stage / bound", log="x",
                      ticks=sorted({*slowest["x"]} - {9.0, 14.0}))  # fmt: skip
        beside.set_ylim(bottom=0.95)
        drawing.title(axes, "each line over its own L = 8")
        drawing.title(beside, "estimated")
        axes.set_ylim(bottom=min(0.9, shown["value"].min() - 0.05))
        parts = [(MIXED, ESTIMATED), (FAITHFUL, ESTIMATED), (FAITHFUL, PUBLISHED)]
        names = {method: NAMES[method].replace("\n", " ") for method in (MIXED, FAITHFUL)}
        keys = [
            (drawing.stroke(**line_look(method, source)), f"{names[method]}: {source}")
            for method, source in parts
        ]
        drawing.place_legend(figure, keys)
        graph = "a node an operator" if "small" in set(rows["size"]) else "whole blocks"
        drawing.small_print(figure, self.printed(graph=graph))


def _estimated(operators: bool, blocks: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    for method in (MIXED, FAITHFUL):
        first = None
        for count in blocks:
            found, status = tried(MODEL, operators, method, count)
            if found is None:
                yield estimated(method, None, x=count, quantity=SPEED, status=status)
                continue
            first = first or found.objective_ms
            about = {"x": count, "note": f"{len(found.stage_to_device)} stages"}
            values = {SPEED: (first / found.objective_ms, ""), MS: (found.objective_ms, "ms")}
            for quantity, (value, unit) in values.items():
                own = {"quantity": quantity, "unit": unit, "error": found.gap}
                yield estimated(method, value, **about, **own)
