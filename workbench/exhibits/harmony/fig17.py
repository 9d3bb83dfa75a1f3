"""Harmony figure 17: time per iteration of GPT-2 with 10 to 40 billion parameters, by devices."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.exhibits.harmony import scaling
from workbench.exhibits.harmony.base import ESTIMATES, OTHER_END, nothing_reduced
from workbench.exhibits.harmony.sizes import PP
from workbench.exhibits.harmony.table import model_label
from workbench.exhibits.metrics import Asked, by_name
from workbench.figures import draw
from workbench.figures.rows import (
    OUR_PLAN,
    one,
    pick,
    quotient,
)

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


class TimePerIteration(scaling.Scaling):
    """A panel a model, and what ran here."""

    metrics = by_name(on_the_most)

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        own = scaling.here(rows)
        own = own[~own["model"].isin(scaling.MODELS)].dropna(subset=["value"])
        axes = _places(figure, ran=len(own) > 0)
        theirs = rows[rows["variant"].isin(("", OUR_PLAN))]
        for model in scaling.MODELS:
            words = "" if own.empty and model != scaling.MODELS[0] else "time per iteration (s)"
            draw.lines(
                axes[model], pick(theirs, model=model), "devices", words,
                log="xy", ticks=scaling.DEVICES,
            )  # fmt: skip
            draw.title(axes[model], model_label(model))
            _plain_ticks(axes[model], pick(theirs, model=model))
        if len(own):
            ticks = sorted(set(own["x"]))
            draw.lines(axes["here"], own, "devices", "time per iteration (s)", ticks=ticks)
            draw.title(axes["here"], f"here: {own['model'].iloc[0]}, reduced size")
        else:
            nothing_reduced(axes["here"], rows, letters=110)
        shown = pd.concat([pick(theirs, model=scaling.MODELS), own])
        draw.legend(figure, shown.dropna(subset=["value"]), as_lines=True)
        draw.small_print(figure, ESTIMATES, f"{OTHER_END} On one device both are the same.")


def _places(figure: Any, *, ran: bool) -> dict[str, Any]:
    """Axes of the models, and of what ran or of the words why nothing did."""
    first, last = scaling.MODELS[:3], scaling.MODELS[3]
    if ran:
        draw.prepare(figure, 2)
        return figure.subplot_mosaic([list(first), [last, "here", "here"]])
    draw.prepare(figure, 1.2)
    return figure.subplot_mosaic([[*first, last], ["here"] * 4], height_ratios=(1, 0.12))


def _plain_ticks(axes: Any, rows: pd.DataFrame) -> None:
    """Seconds that people read, on a logarithmic axis."""
    values = pd.concat([rows["value"], rows["high"]]).dropna()
    if values.empty:
        return
    ticks = [n for n in SECONDS if values.min() / 2 < n < 2 * values.max()]
    axes.set_yticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()


EXHIBIT = TimePerIteration()
