"""STRONGHOLD figure 9: time per iteration over the window."""

from __future__ import annotations

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.stronghold.line import Line
from workbench.exhibits.stronghold.sizes import Size
from workbench.figures import draw as drawing
from workbench.figures.rows import part_of
from workbench.figures.verdict import Verdict, at_least, busy_in

NOISE = 0.95
"""A larger window must not be slower by more than the noise of a run."""
CLEARLY = 1.1
"""Time of the smallest window over the largest from which there is an effect; published: 1.33."""
TWO_PROMISES = (
    "here a buffer is free once its copy is out, and an update is waited for only before the "
    "layer's next load; the published code waits for both W layers later, which is what its "
    "window buys"
)


class Window(Line):
    """Time over the window, and over the smallest window's."""

    figure, section = "9", "VI.C, page 10"
    title = "Effect of the window"
    claim = "A larger window hides more of the transfers, until compute alone decides."
    takes = ("layers", "hidden", "batch", "window", "steps", "seed", "machine", "overlay")
    lists = ("window",)
    over = "window (layers)", "time per iteration (ms)"
    over_first = "window, as a share of the layers", "time (smallest window = 1)"

    def specs(self, size: Size) -> list[RunSpec]:
        """STRONGHOLD on one model at every window."""
        return [size.timed("stronghold", window=window) for window in size.windows]

    def x_of(self, record: RunRecord) -> float:
        return record.spec["options"]["window"]

    def relative(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Time over that of each series' smallest window, window as a share of the layers."""
        out = drawing.relative_to_first(rows)
        return out.assign(x=out["x"] / out["layers"])

    def verdicts(self, rows: pd.DataFrame, source: str, variant: str) -> list[Verdict]:
        """Larger windows cost nothing, and they gain something."""
        published, here = (
            gain(part_of(rows, *series)) for series in (("published", ""), (source, variant))
        )
        return [
            at_least(
                "the largest window is at least as fast as the smallest",
                published,
                here,
                NOISE,
                (source, variant),
                busy=busy_in(rows, source, variant),
            ),
            at_least(
                f"the smallest window takes at least {CLEARLY - 1:.0%} longer than the largest",
                published,
                here,
                CLEARLY,
                (source, variant),
                busy=busy_in(rows, source, variant),
                why_not=TWO_PROMISES,
            ),
        ]


def gain(part: pd.DataFrame) -> float | None:
    """Time of the smallest window over that of the largest; None for fewer than two points."""
    part = part.dropna(subset=["value"]).sort_values("x")
    if len(part) < 2:
        return None
    return float(part["value"].iloc[0] / part["value"].iloc[-1])


EXHIBIT = Window()
