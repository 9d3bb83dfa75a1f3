"""Harmony figure 18: how those models' speed grows with the devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from workbench.exhibits.harmony.scaling import MODELS, Scaling, speedups
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.figures import draw
from workbench.figures.rows import REFERENCE, one, quotient


def saturation(asked: Asked) -> Found:
    """A limit over how many times as fast more devices are; and the times, in words."""
    there, here = asked.inside((REFERENCE, "")).ratio(), asked.ratio()
    both = "" if there is None or here is None else (
        f"8 devices are {here:.2f} times as fast as 4, {there:.2f} times in the estimate"
    )  # fmt: skip
    ratio = quotient(asked.given["limit"], asked.ratio())
    return Found(ratio, why=both, why_not=f"{both}: {asked.given['why']}")


def one_over_most(asked: Asked) -> float | None:
    """Time on one device over that on the most that ran."""
    part = asked.part
    most = part.dropna(subset=["value"])["ranks"].max()
    return quotient(one(part, ranks=1), one(part, ranks=most) if most > 1 else None)


class SpeedUp(Scaling):
    """Speed over that of one device: the smallest and the largest model, and what ran here."""

    metrics = by_name(saturation, one_over_most)
    letters = 34

    def shown(self, rows: pd.DataFrame) -> pd.DataFrame:
        return speedups(rows)

    def places(self, figure: Any, *, ran: bool) -> dict[str, Any]:
        draw.prepare(figure)
        return dict(zip((MODELS[0], MODELS[-1], "here"), figure.subplots(1, 3), strict=True))

    def panel(self, axes: Any, rows: pd.DataFrame, ticks: Sequence[float]) -> None:
        axes.plot(ticks, ticks, color="#888888", lw=0.8, ls=(0, (4, 2)), zorder=0.5)
        draw.lines(axes, rows, "devices", "speed (one device = 1)", ticks=ticks)
