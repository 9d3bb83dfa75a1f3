"""Harmony figure 18: how those models' speed grows with the devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.exhibits.harmony import scaling
from workbench.exhibits.harmony.base import ESTIMATES, by_runs, nothing_reduced
from workbench.exhibits.harmony.sizes import DP, PP
from workbench.exhibits.harmony.table import PLANNED, model_label
from workbench.figures import draw
from workbench.figures.rows import MEASURED, OUR_PLAN, REFERENCE, one, pick, quotient
from workbench.figures.verdict import Verdict, at_least

LEAST = 5.0
"""Times the speed of one device that 8 should reach; estimated: 6.0 to 6.8."""
SATURATED = 1.25
"""From 4 to 8 devices: what doubling them may add where a method has saturated, a quarter of what
it would add in proportion. Estimated: 1.15 to 1.16."""
WHY_DP = (
    "our replicas hide the loads of weights behind compute and divide the updates, which the "
    "estimate does not"
)


class SpeedUp(scaling.Scaling):
    """Speed over that of one device: the smallest and the largest model, and what ran here."""

    figure, section = "harmony_18", "VLDB'22, figure 18: GPT-2 of 10 to 40 billion, minibatch 32"
    title = "Scaling to 8 devices"
    claim = (
        "Harmony-PP's speed grows nearly with the number of devices; Harmony-DP's saturates, "
        "since every device loads the weights over a link that all share."
    )

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

    def claims(self, rows: pd.DataFrame) -> Iterator[Verdict]:
        """PP from 1 to 8 devices, both from 4 to 8, of every model; what ran from 1 to its most."""
        for model in scaling.MODELS:
            label = model_label(model)
            told, ours = (
                _gain(rows, model, PP, 1, 8, *each) for each in ((REFERENCE, ""), PLANNED)
            )
            words = (
                f"{label}: Harmony-PP on 8 devices has at least {LEAST:g} times the speed of one"
            )
            yield at_least(words, told, ours, LEAST, PLANNED)
            gains = {
                method: [
                    _gain(rows, model, method, 4, 8, *each) for each in ((REFERENCE, ""), PLANNED)
                ]
                for method in (PP, DP)
            }
            words = (
                f"{label}: from 4 to 8 devices Harmony-PP gains more than Harmony-DP (its gain "
                "over Harmony-DP's)"
            )
            yield at_least(words, *map(quotient, gains[PP], gains[DP]), 1.0, PLANNED)
            told, ours = gains[DP]
            both = "" if told is None or ours is None else (
                f"8 devices are {ours:.2f} times as fast as 4, {told:.2f} times in the estimate"
            )  # fmt: skip
            words = (
                f"{label}: Harmony-DP saturates, 8 devices are at most {SATURATED:g} times as fast "
                f"as 4 ({SATURATED:g} over how many times they are)"
            )
            yield at_least(
                words,
                quotient(SATURATED, told),
                quotient(SATURATED, ours),
                1.0,
                PLANNED,
                why=both,
                why_not=f"{both}: {WHY_DP}",
            )
        own = pick(scaling.here(rows), source=MEASURED)
        for model in dict.fromkeys(own["model"]):
            part = pick(own, model=model, method=PP)
            most = part.dropna(subset=["value"])["ranks"].max()
            first, last = one(part, ranks=1), one(part, ranks=most) if most > 1 else None
            words = (
                f"{model_label(model)}: Harmony-PP is faster on the most devices that ran than on "
                "one"
            )
            yield by_runs(words, quotient(first, last), part)


def _panel(axes: Any, rows: pd.DataFrame, devices: tuple[float, ...]) -> None:
    axes.plot(devices, devices, color="#888888", lw=0.8, ls=(0, (4, 2)), zorder=0.5)
    draw.lines(axes, rows, "devices", "speed (one device = 1)", ticks=devices)


def _gain(
    rows: pd.DataFrame, model: str, method: str, few: int, many: int, source: str, variant: str
) -> float | None:
    of = {"source": source, "variant": variant}
    return quotient(*(scaling.seconds(rows, model, method, ranks, **of) for ranks in (few, many)))


EXHIBIT = SpeedUp()
