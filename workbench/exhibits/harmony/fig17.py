"""Harmony figure 17: time per iteration of GPT-2 with 10 to 40 billion parameters, by devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.exhibits.harmony import scaling
from workbench.exhibits.harmony.base import ESTIMATES, OTHER_END, by_runs, nothing_reduced
from workbench.exhibits.harmony.sizes import DP, PP
from workbench.exhibits.harmony.table import PLANNED, model_label
from workbench.figures import draw
from workbench.figures.rows import (
    MEASURED,
    OUR_PLAN,
    REFERENCE,
    SIMULATED,
    THEIR_PLAN,
    label_of,
    pick,
    quotient,
)
from workbench.figures.verdict import Verdict, at_least

NOT_SLOWER = 1.0
SECONDS = (25, 50, 100, 200, 400, 800, 1600)
"""Seconds at the axes' marks."""
WHY_DP = (
    "where the link keeps up, our runtime's replicas hide their loads and divide their updates, "
    "which the estimate does not"
)


class TimePerIteration(scaling.Scaling):
    """A panel a model, and what ran here."""

    figure, section = "harmony_17", "VLDB'22, figure 17: GPT-2 of 10 to 40 billion, minibatch 32"
    title = "Time per iteration of models beyond all devices' memory"
    claim = (
        "Harmony trains GPT-2 of 10 to 40 billion parameters on 1 to 8 cards of 11 GB, Harmony-PP"
        " in less time than Harmony-DP on any number of them."
    )

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

    def claims(self, rows: pd.DataFrame) -> Iterator[Verdict]:
        """DP's time over PP's: the worst number of devices of each model."""
        for model in scaling.MODELS:
            told, ours = (
                _worst(rows, model, source=source, variant=variant)
                for source, variant in ((REFERENCE, ""), PLANNED)
            )
            words = (
                f"{model_label(model)}: Harmony-PP takes no longer than Harmony-DP on 2, 4 and 8 "
                "devices (DP over PP, the least)"
            )
            yield at_least(words, told, ours, NOT_SLOWER, PLANNED, why_not=WHY_DP)
            words = (
                f"{model_label(model)}: our plans are no slower than the published packs of 2, in "
                "either mode (the least)"
            )
            yield at_least(words, None, _against_published(rows, model), NOT_SLOWER, PLANNED)
        own = pick(scaling.here(rows), source=MEASURED)
        for model in dict.fromkeys(own["model"]):
            part = pick(own, model=model)
            for method in [name for name in dict.fromkeys(part["method"]) if name != PP]:
                words = (
                    f"{model_label(model)}: Harmony-PP takes no longer than {label_of(method)} on "
                    "the most devices that both ran on"
                )
                yield by_runs(words, _on_the_most(part, model, method), part, PP, method)


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


def _on_the_most(rows: pd.DataFrame, model: str, method: str) -> float | None:
    """A method's time over Harmony-PP's; None where they have no several devices in common."""
    both = (set(pick(rows, method=name).dropna(subset=["value"])["ranks"]) for name in (method, PP))
    most = max(set.intersection(*both), default=1)
    if most == 1:
        return None
    return quotient(*(scaling.seconds(rows, model, name, most) for name in (method, PP)))


def _worst(rows: pd.DataFrame, model: str, **of: Any) -> float | None:
    ratios = [
        quotient(
            scaling.seconds(rows, model, DP, ranks, **of),
            scaling.seconds(rows, model, PP, ranks, **of),
        )
        for ranks in scaling.DEVICES[1:]
    ]
    return None if None in ratios else min(ratios)


def _against_published(rows: pd.DataFrame, model: str) -> float | None:
    ratios = [
        quotient(
            scaling.seconds(rows, model, method, ranks, source=SIMULATED, variant=THEIR_PLAN),
            scaling.seconds(rows, model, method, ranks, source=SIMULATED, variant=OUR_PLAN),
        )
        for method in (PP, DP)
        for ranks in scaling.DEVICES
    ]
    return None if None in ratios else min(ratios)


EXHIBIT = TimePerIteration()
