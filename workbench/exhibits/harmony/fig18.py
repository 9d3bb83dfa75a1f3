"""Harmony figure 18: how those models' speed grows with the devices."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.exhibits.harmony import scaling
from workbench.exhibits.harmony.base import ESTIMATES, nothing_reduced
from workbench.exhibits.harmony.table import model_label
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.figures import draw
from workbench.figures.rows import OUR_PLAN, REFERENCE, one, pick, quotient

WHY_DP = (
    "our replicas hide the loads of weights behind compute and divide the updates, which the "
    "estimate does not"
)


def saturation(asked: Asked) -> Found:
    """A limit over how many times as fast more devices are; and the times, in words."""
    there, here = asked.inside((REFERENCE, "")).ratio(), asked.ratio()
    both = "" if there is None or here is None else (
        f"8 devices are {here:.2f} times as fast as 4, {there:.2f} times in the estimate"
    )  # fmt: skip
    ratio = quotient(asked.given["limit"], asked.ratio())
    return Found(ratio, why=both, why_not=f"{both}: {WHY_DP}")


def one_over_most(asked: Asked) -> float | None:
    """Time on one device over that on the most that ran."""
    part = asked.part
    most = part.dropna(subset=["value"])["ranks"].max()
    return quotient(one(part, ranks=1), one(part, ranks=most) if most > 1 else None)


class SpeedUp(scaling.Scaling):
    """Speed over that of one device: the smallest and the largest model, and what ran here."""

    metrics = by_name(saturation, one_over_most)

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        draw.prepare(figure)
        axes = figure.subplots(1, 3)
        shown = scaling.speedups(rows)
        theirs = shown[shown["variant"].isin(("", OUR_PLAN))]
        for place, model in zip(axes, (scaling.MODELS[0], scaling.MODELS[-1]), strict=False):
            _panel(place, pick(theirs, model=model), scaling.DEVICES)
            draw.title(place, model_label(model))
        own = shown[~shown["model"].isin(scaling.MODELS)].dropna(subset=["value"])
        if len(own):
            _panel(axes[2], own, tuple(sorted(set(own["x"]))))
            draw.title(axes[2], f"here: {own['model'].iloc[0]}, reduced size")
        else:
            nothing_reduced(axes[2], rows)
        drawn = pd.concat([pick(theirs, model=scaling.MODELS), own])
        draw.legend(figure, drawn.dropna(subset=["value"]), as_lines=True)
        draw.small_print(figure, ESTIMATES, "Grey: as many times as devices.")


def _panel(axes: Any, rows: pd.DataFrame, devices: tuple[float, ...]) -> None:
    axes.plot(devices, devices, color="#888888", lw=0.8, ls=(0, (4, 2)), zorder=0.5)
    draw.lines(axes, rows, "devices", "speed (one device = 1)", ticks=devices)


EXHIBIT = SpeedUp()
