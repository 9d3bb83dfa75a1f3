"""Worth of Harmony's schedules on servers of several GPUs that this project measured.

Throughput of every method under the caps of small cards, beside methods that have all of the GPUs;
bytes over the host links, counted and planned; how more GPUs help; and predictions over
measurements. The rows were measured by the benchmark and are committed; nothing runs for this
exhibit, so it is the same at every size.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.exhibits.claims import Goal
from workbench.exhibits.hardware import marks
from workbench.exhibits.hardware import server_panels as panels
from workbench.exhibits.hardware.base import GoalsExhibit
from workbench.exhibits.hardware.server_goals import (
    METRICS,
    PEAK_WITHIN,
    STEP_WITHIN,
    missing,
    told,
)
from workbench.exhibits.hardware.table import SERVER_RUNTIME as OWN_RUNTIME
from workbench.exhibits.hardware.table import SERVERS as COLUMNS
from workbench.exhibits.hardware.table import table
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.style import PAGE_IN
from workbench.methods.pipeline.orders import ORDERS
from workbench.published.here import SERVERS, days

LINE_IN, LOW_IN = 1.75, 1.55
"""Heights of a line of bars and of a line of other panels, with the words around them."""
ACROSS = 3
"""Panels of scaling in a line."""

ELSEWHERE = (*ORDERS, "torch-interleaved", "torch-zero-bubble")
"""Methods of the sheet that another exhibit shows (pipelines.py)."""

NOT_DRAWN = {
    "moved": "bytes over the host links (no run counts them)",
    "scaling": "scaling (no model ran on several numbers of GPUs in one round, all else equal)",
    "predicted": "predictions (no run has one)",
}
"""Panels that may be absent, by their sentences in the small print, and why."""
UNFINISHED = f"nothing to show: no run in {SERVERS.file} came to an end"


class Servers(GoalsExhibit):
    """Throughput, bytes over the host links, scaling and predictions."""

    file, metrics = SERVERS.file, METRICS

    def all_rows(self, at: Opened, *, repeated: bool = False) -> pd.DataFrame:
        runs = (run for run in SERVERS.runs(at.roots()) if run.method not in ELSEWHERE)
        return table(runs, COLUMNS, repeated=repeated)

    def goals(self, rows: pd.DataFrame, repeated: pd.DataFrame | None = None) -> list[Goal]:
        return super().goals(told(rows), rows if repeated is None else repeated)

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Throughput, bytes, scaling and predictions, as far as there are rows of each. `rows`:
        `table.SERVERS`, of one device."""
        bars = panels.shown(rows)
        if bars.empty:
            figure.set_size_inches(PAGE_IN, 1.2)
            drawing.empty(figure.subplots(), UNFINISHED if len(rows) else self.absent)
            return
        lines, moved = panels.lines_of(bars), panels.moving(bars)
        series = panels.series_of(bars)
        scaling = [series[i : i + ACROSS] for i in range(0, len(series), ACROSS)]
        tall = [LINE_IN] * len(lines) + [LOW_IN] * len(scaling)
        tall += [LOW_IN] if _predicted(rows) else []
        figure.set_size_inches(PAGE_IN, sum(tall))
        places = iter(figure.add_gridspec(len(tall), 1, height_ratios=tall))
        drawn = [each for line in lines for each in _draw_bars(figure, next(places), line)]
        panels.one_scale(drawn)
        for line in scaling:
            every = _side_by_side(figure, next(places), [1.0] * ACROSS, len(line))
            for axes, part in zip(every, line, strict=True):
                panels.draw_scaling(axes, part)
        if _predicted(rows):
            step, peak = _side_by_side(figure, next(places), [1.0, 1.0], 2)
            marks.draw_predictions(step, rows, marks.STEP, OWN_RUNTIME, STEP_WITHIN)
            marks.draw_predictions(peak, rows, marks.PEAK, OWN_RUNTIME, PEAK_WITHIN)
        _legend(figure, rows, moved=len(moved) > 0, scaling=bool(scaling))
        drawing.small_print(figure, self.printed(**facts_of(rows)))


def _draw_bars(figure: Any, place: Any, line: list[panels.Panel]) -> list[tuple[Any, panels.Panel]]:
    """Panels of bars side by side, as wide as they need; each with its axes."""
    widths = [panel.width for panel in line]
    drawn = [*zip(_side_by_side(figure, place, widths, len(line)), line, strict=True)]
    for axes, panel in drawn:
        panel.draw(axes, panel.rows, panels.ROOM * panel.width / sum(widths))
    return drawn


def _side_by_side(figure: Any, place: Any, widths: list[float], count: int) -> list[Any]:
    """The first `count` axes in a line of the figure, which has room for more where it has more
    `widths`."""
    grid = place.subgridspec(1, len(widths), width_ratios=widths)
    return [figure.add_subplot(grid[0, i]) for i in range(count)]


def _predicted(rows: pd.DataFrame) -> bool:
    ok = rows[rows["status"] == "ok"]
    return bool(ok[["step_ratio", "peak_ratio"]].notna().any(axis=None))


def _legend(figure: Any, rows: pd.DataFrame, *, moved: bool, scaling: bool) -> None:
    """Every method that is there, then what is no method's mark."""
    more: list[tuple[Any, str]] = []
    if rows["device_cap_gib"].isna().any():
        more.append((drawing.patch(facecolor=panels.GROUND), "no limit: all of the GPU"))
    if moved:
        more.append((drawing.stroke(**panels.PLANNED), "planned (simulated)"))
    if scaling:
        more.append((drawing.stroke(**panels.IDEAL), "in proportion"))
    marks.legend(figure, SERVERS.labels, set(rows["method"]), [*more, *marks.kept(rows)])


def facts_of(rows: pd.DataFrame) -> dict[str, Any]:
    """Facts of the rows, for the small print: where they are from, and what is missing."""
    bars = panels.shown(rows)
    drawn = {
        "moved": len(panels.moving(bars)),
        "scaling": len(panels.series_of(bars)),
        "predicted": _predicted(rows),
    }
    absent = [name for name in NOT_DRAWN if not drawn[name]]
    lists = {
        "Not drawn": [NOT_DRAWN[name] for name in absent],
        "No run came to an end": panels.unfinished(rows),
        "Not measured": missing(rows),
    }
    return {
        "hardware": rows["hardware"].iloc[0],
        "when": days(rows["date"]),
        "step_within": STEP_WITHIN,
        "peak_within": PEAK_WITHIN,
        "lacking": " ".join(f"{words}: {'; '.join(of)}." for words, of in lists.items() if of),
        **dict.fromkeys(absent, ""),
    }
