"""Whether the simulator explains the published numbers: each beside its simulation.

The simulated machine has the constants of the published one and the schedule is the published
code's, defects included. No constant belongs to a point: five runs calibrate all of them, and their
points say so, since they are no predictions.
"""

from __future__ import annotations

import pandas as pd

from workbench.core.methods import METHODS
from workbench.published.predict import FIGURES, compare

UNITS = {"6a": "layers", "7a": "samples/s", "8a": "samples/s"}


def explained_table() -> pd.DataFrame:
    """Published beside simulated, figure by figure."""
    parts = []
    for figure in FIGURES:
        found = compare(figure)
        found = found.assign(
            figure=figure,
            method=found["method"].map(lambda name: METHODS[name].label),
            unit=UNITS.get(figure, "ms"),
            off=(100 * found["deviation"]).round(1),
            remark=[
                _remark(sound, calibrated)
                for sound, calibrated in zip(found["sound"], found["calibrated"], strict=True)
            ],
        )
        parts.append(found)
    whole = pd.concat(parts, ignore_index=True)
    names = {"value_published": "published", "value": "simulated", "off": "off (%)"}
    whole = whole.rename(columns=names)
    columns = ["figure", "method", "layers", "window", "published", "simulated", "unit", "off (%)"]
    return whole[[*columns, "remark"]]


def explained_summary(table: pd.DataFrame) -> str:
    """The largest deviation of each figure, in a sentence."""
    worst = table.assign(off=table["off (%)"].abs()).groupby("figure", sort=False)["off"].max()
    words = ", ".join(f"{figure} {off:.0f} %" for figure, off in worst.items())
    return f"Largest deviation of the simulation from the published value: {words}."


def _remark(sound: bool, calibrated: bool) -> str:
    remarks = ["calibrates the simulation"] if calibrated else []
    return "; ".join([*remarks, *([] if sound else ["published run not sound"])])
