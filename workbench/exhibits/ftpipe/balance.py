"""Memory and utilization of each device: mixed stages beside contiguous ones, on T5-3B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.ftpipe.base import (
    CUT,
    DEVICES,
    MEMORY,
    MIXED,
    NAMES,
    FtpipeExhibit,
    cut,
    estimated,
    told,
)
from workbench.exhibits.metrics import Asked, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import pick
from workbench.figures.style import LOOKS

MODEL = "T5-3B"
BUSY, HELD = "utilization", "memory"
UNITS = {BUSY: "%", HELD: "GiB"}
MIB, GIB = 2**20, 2**30
IN_FLIGHT = 5
"""Micro-batches of an update, as published."""
NEWER = "newer plot"


def least(asked: Asked) -> float:
    """The least utilization of a device, in percent, over a limit."""
    return asked.of_series()["value"].min() / asked.given["limit"]


def mean_over(asked: Asked) -> float:
    """The mean utilization of the devices under mixed stages, over that under contiguous ones."""
    part = asked.of_series()
    mixed, other = (pick(part, method=name)["value"].mean() for name in (MIXED, CUT))
    return mixed / other


class Balance(FtpipeExhibit):
    """A group of bars a device."""

    metrics = by_name(least, mean_over)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [*_estimated(at.size.operators), *map(_told, self.published().itertuples())]
        return self.tabled(at, rows, "quantity")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """A panel for each quantity and partition; published bars are those of the newer plot."""
        drawing.prepare(figure, 1.8)
        panels = figure.subplots(2, 2, sharey="row")
        shown = rows[rows["variant"].isin(["", NEWER])]
        for line, (quantity, words) in zip(
            panels, ((BUSY, "busy (%)"), (HELD, "memory (GiB)")), strict=True
        ):
            for axes, method in zip(line, (CUT, MIXED), strict=True):
                part = pick(shown, method=method, quantity=quantity)
                drawing.bars(axes, part, {n: f"{n}" for n in range(DEVICES)}, words, column="x",
                             number="{:.0f}" if quantity == BUSY else "{:.1f}")  # fmt: skip
                if quantity == HELD:
                    axes.axhline(MEMORY / GIB, color="#444444", lw=0.7, ls=(0, (4, 2)))
                    axes.set_xlabel("device")
                drawing.title(axes, f"{NAMES[method]}: {quantity}")
        colours = [
            (drawing.patch(color=LOOKS[m].color), f"{NAMES[m]} stages") for m in (CUT, MIXED)
        ]
        dashed = drawing.stroke(color="#444444", lw=0.7, ls=(0, (4, 2))), "memory of a device"
        drawing.legend(figure, shown, methods=False, more=[*colours, dashed])
        drawing.small_print(figure, self.printed())


def _estimated(operators: bool) -> Iterator[dict[str, Any]]:
    for method in (CUT, MIXED):
        found = cut(MODEL, operators, method, in_flight=IN_FLIGHT)
        stages = f"stages on devices {' '.join(map(str, found.stage_to_device))}"
        for device, (load, held) in enumerate(zip(found.loads_ms, found.memory_bytes, strict=True)):
            values = {BUSY: 100 * load / found.objective_ms, HELD: held / GIB}
            for quantity, value in values.items():
                about = {"x": device, "quantity": quantity, "unit": UNITS[quantity]}
                yield estimated(method, value, note=stages, **about)


def _told(row: Any) -> dict[str, Any]:
    plot = NEWER if row.variant.endswith("(B)") else "older plot"
    own = told(row, x=int(row.item), quantity=row.metric, variant=plot, unit=UNITS[row.metric])
    return own | ({"value": own["value"] * MIB / GIB} if row.metric == HELD else {})
