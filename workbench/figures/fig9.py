"""STRONGHOLD figure 9: time per iteration over the window."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.panels import draw_panels, notes_of_measured
from workbench.figures.sizes import Size
from workbench.figures.verdict import Verdict, at_least

FIGURE, SECTION = "9", "VI.C, page 10"
TITLE = "Effect of the window"
CLAIM = "A larger window hides more of the transfers, until compute alone decides."
NOISE = 0.95
"""A larger window must not be slower by more than the noise of a run."""
CLEARLY = 1.1
"""Time of the smallest window over the largest from which there is an effect; published: 1.33."""
TWO_PROMISES = (
    "here a buffer is free once its copy is out, and an update is waited for only before the "
    "layer's next load; the published code waits for both W layers later, which is what its "
    "window buys"
)


def specs(size: Size, largest: dict[str, int]) -> list[RunSpec]:
    """STRONGHOLD on one model at every window."""
    return [size.timed("stronghold", window=window) for window in size.windows]


def rows(records: list[RunRecord]) -> pd.DataFrame:
    """Milliseconds per step over the window asked for, measured and predicted."""
    out = []
    for record in records:
        out += tidy.both(record, "ms", x=record.spec["options"]["window"])
    return tidy.table(out)


def draw(figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
    """A line over the window."""

    def absolute(axes: Any, part: pd.DataFrame) -> None:
        drawing.lines(axes, part, "window (layers)", "time per iteration (ms)")

    def ratios(axes: Any, part: pd.DataFrame) -> None:
        words = ("window, as a share of the layers", "time (smallest window = 1)")
        drawing.lines(axes, relative(part), *words)

    draw_panels(
        figure, rows, absolute, ratios, same_scale=same_scale, reduced="reduced size", rowwise=True
    )
    drawing.legend_of_lines(figure)
    drawing.small_print(figure, rows, *notes_of_measured(rows))


def relative(rows: pd.DataFrame) -> pd.DataFrame:
    """Time over that of each series' smallest window, window as a share of the layers."""
    out = drawing.relative_to_first(rows)
    return out.assign(x=out["x"] / out["layers"])


def gain(part: pd.DataFrame) -> float | None:
    """Time of the smallest window over that of the largest; None for fewer than two points."""
    part = part.dropna(subset=["value"]).sort_values("x")
    if len(part) < 2:
        return None
    return float(part["value"].iloc[0] / part["value"].iloc[-1])


def verdicts(rows: pd.DataFrame, source: str, variant: str) -> list[Verdict]:
    """Larger windows cost nothing, and they gain something."""
    published, here = (
        gain(drawing.part_of(rows, *series)) for series in (("published", ""), (source, variant))
    )
    return [
        at_least(
            "the largest window is at least as fast as the smallest",
            published,
            here,
            NOISE,
            (source, variant),
        ),
        at_least(
            f"the smallest window takes at least {CLEARLY - 1:.0%} longer than the largest",
            published,
            here,
            CLEARLY,
            (source, variant),
            why_not=TWO_PROMISES,
        ),
    ]
