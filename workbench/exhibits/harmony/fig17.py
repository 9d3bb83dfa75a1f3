"""Harmony figure 17: time per iteration of GPT-2 with 10 to 40 billion parameters, by devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from workbench.exhibits.harmony.scaling import MODELS, Scaling
from workbench.exhibits.harmony.sizes import PP
from workbench.exhibits.metrics import Asked, by_name
from workbench.figures import draw
from workbench.figures.rows import one, pick, quotient

SECONDS = (25, 50, 100, 200, 400, 800, 1600)
"""Seconds at the axes' marks."""


def on_the_most(asked: Asked) -> float | None:
    """A method's time over Harmony-PP's; None where they have no several devices in common."""
    part = pick(asked.part, quantity="iteration_s").dropna(subset=["value"])
    names = (asked.given["method"], PP)
    both = ({*pick(part, method=name)["ranks"]} for name in names)
    most = max(set.intersection(*both), default=1)
    if most == 1:
        return None
    return quotient(*(one(part, method=name, ranks=most) for name in names))


class TimePerIteration(Scaling):
    """Seconds of all models."""

    metrics = by_name(on_the_most)

    def places(self, figure: Any, *, ran: bool) -> dict[str, Any]:
        draw.prepare(figure, 2 if ran else 1.2)
        if ran:
            return figure.subplot_mosaic([[*MODELS[:3]], [MODELS[3], "here", "here"]])
        return figure.subplot_mosaic([[*MODELS], ["here"] * 4], height_ratios=(1, 0.12))

    def panel(self, axes: Any, rows: pd.DataFrame, ticks: Sequence[float]) -> None:
        """Where four share a line the first has the label; of published models all is
        logarithmic."""
        place, published = axes.get_subplotspec(), {*rows["model"]} <= {*MODELS}
        labelled = place.is_first_col() or place.get_gridspec().ncols < len(MODELS)
        words = "time per iteration (s)" if labelled else ""
        draw.lines(axes, rows, "devices", words, log="xy" if published else "", ticks=ticks)
        if published:
            _plain_ticks(axes, rows)


def _plain_ticks(axes: Any, rows: pd.DataFrame) -> None:
    """Seconds that people read, on a logarithmic axis."""
    values = pd.concat([rows["value"], rows["high"]]).dropna()
    if values.empty:
        return
    ticks = [n for n in SECONDS if values.min() / 2 < n < 2 * values.max()]
    axes.set_yticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
