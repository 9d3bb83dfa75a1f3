"""An exhibit of committed measurements: a session like any other, in which nothing runs.

The rows are those of ``results/published-here/<device>/offload.csv``; so the exhibit is the same on
every machine and at every size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.figures import here_offload
from workbench.figures.goals import as_table, goals
from workbench.figures.here_table import table
from workbench.figures.sizes import Size
from workbench.figures.style import PAGE_IN, styled
from workbench.runs.events import Event
from workbench.runs.record import RunRecord
from workbench.runs.store import Store
from workbench.session import Session, Stage, measured_runs
from workbench.shown import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class HereSession(Session):
    """The exhibit ``here_offload``; the size only says in which folder its figure lies."""

    def __init__(self, exhibit: Any, size: Size, store: Store) -> None:
        self.exhibit, self.size, self.store = exhibit, size, store
        self.simulated = False

    def preview(self) -> pd.DataFrame:
        """Which rows there are: one line a machine. Nothing will run."""
        rows = table(measured_runs(self.store))
        lines = [
            {
                "machine": device,
                "device": ", ".join(sorted(set(part["hardware"]))),
                "runs": len(part),
                "measured": f"{part['date'].min()} to {part['date'].max()}",
                "note": "nothing runs: these rows are committed",
            }
            for device, part in rows.groupby("device")
        ]
        absent = {"machine": "none", "device": "", "runs": 0, "measured": ""}
        return Shown(lines or [{**absent, "note": here_offload.ABSENT}])

    def stages(self, force: bool = False) -> Iterator[Stage]:
        """None."""
        return iter(())

    def run(
        self, force: bool = False, on_event: Callable[[Event], None] | None = None
    ) -> pd.DataFrame:
        """The rows; nothing runs, and nothing is run again."""
        return self.rows()

    def records(self) -> list[RunRecord]:
        """None: the rows are all there is of these runs."""
        return []

    def rows(self, records: list[RunRecord] | None = None) -> pd.DataFrame:
        """The runs of the machine that has most of them, as `figures.here_table` makes them.

        Raises ValueError for a file with a row that cannot be right.
        """
        rows = table(measured_runs(self.store))
        if rows.empty:
            return rows
        return rows[rows["device"] == rows["device"].value_counts().idxmax()]

    def draw(self, rows: pd.DataFrame) -> Figure:
        """Shares of plain training, and predictions beside measurements."""
        from matplotlib.figure import Figure

        with styled():
            figure = Figure(figsize=(PAGE_IN, here_offload.HEIGHT_IN), layout="constrained")
            here_offload.draw(figure, rows)
        return figure

    def verdict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Goal, what was measured, whether it holds and why."""
        return Shown(as_table(goals(rows)))

    def provenance(self) -> pd.DataFrame:
        """Where these numbers come from."""
        return Shown(facts(self.rows()).items(), columns=["what", "is"])


def facts(rows: pd.DataFrame) -> dict[str, str]:
    """Device, file, dates and code behind the rows."""
    if rows.empty:
        return {"numbers": here_offload.ABSENT}
    device = rows["device"].iloc[0]
    return {
        "GPU": ", ".join(sorted(set(rows["hardware"]))),
        "numbers": f"{len(rows)} settings in results/published-here/{device}/offload.csv",
        "measured": f"{rows['date'].min()} to {rows['date'].max()}",
        "commit": ", ".join(sorted(set(rows["commit"]))),
        "ended": ", ".join(f"{n} {status}" for status, n in rows["status"].value_counts().items()),
    }
