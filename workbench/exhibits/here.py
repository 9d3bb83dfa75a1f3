"""An exhibit of committed measurements: a session like any other, in which nothing runs.

What is shown lies in ``results/published-here/<device>/``; so an exhibit is the same on every
machine and at every size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.session import Session, Stage, measured_roots, measured_runs
from workbench.figures import (
    goals,
    here_lanes,
    here_offload,
    here_servers,
    here_table,
    lanes_table,
    server_goals,
    server_table,
)
from workbench.figures.exhibit import HERE_LANES, HERE_OFFLOAD, HERE_SERVERS
from workbench.figures.sizes import Size
from workbench.figures.style import PAGE_IN
from workbench.published.lanes import measured_steps
from workbench.published.servers import server_runs
from workbench.runs.events import Event
from workbench.runs.store import Store
from workbench.shown import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class HereSession(Session, ABC):
    """What was measured on named hardware; the size only says in which folder a figure lies."""

    FILES: str
    """Of a machine's folder."""
    COUNTED: str
    """What a row is, in the plural."""
    figsize = (PAGE_IN, PAGE_IN)

    def __init__(self, exhibit: Any, size: Size, store: Store, machine: str = "") -> None:
        """`machine`: one that was measured, else the one with most rows. Raises ValueError for one
        that was not."""
        self.exhibit, self.size, self.store, self.machine = exhibit, size, store, machine
        self.simulated = False
        if machine and machine not in (known := sorted(set(self.all_rows()["device"]))):
            raise ValueError(
                f"machine {machine!r} has no {self.FILES}; those that have are "
                f"{', '.join(known) or 'none'}"
            )

    @abstractmethod
    def all_rows(self, *, repeated: bool = False) -> pd.DataFrame:
        """The rows of all machines, with at least `device`, `hardware`, `date` and `commit`; with
        `repeated` also those of runs that were made again.

        Raises ValueError for a file that cannot be right.
        """

    @abstractmethod
    def paint(self, figure: Figure, rows: pd.DataFrame) -> None:
        """Draw on an empty figure."""

    def preview(self) -> pd.DataFrame:
        """Which rows there are: one line a machine. Nothing will run."""
        lines = [
            {
                "machine": device,
                "device": ", ".join(sorted(set(part["hardware"]))),
                self.COUNTED: len(part),
                "measured": f"{part['date'].min()} to {part['date'].max()}",
                "note": "nothing runs: these rows are committed",
            }
            for device, part in self.all_rows().groupby("device")
        ]
        absent = {"machine": "none", "device": "", self.COUNTED: 0, "measured": ""}
        return Shown(lines or [{**absent, "note": self.exhibit.ABSENT}])

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
        """The rows of the machine that was asked for, else of the one that has most of them. Raises
        ValueError as `all_rows` does."""
        rows = self.all_rows()
        if rows.empty:
            return rows
        return rows[rows["device"] == (self.machine or rows["device"].value_counts().idxmax())]

    def provenance(self) -> pd.DataFrame:
        """Where these numbers come from."""
        return Shown(self.facts(self.rows()).items(), columns=["what", "is"])

    def facts(self, rows: pd.DataFrame) -> dict[str, str]:
        """Device, files, dates and code behind the rows."""
        if rows.empty:
            return {"numbers": self.exhibit.ABSENT}
        place = f"results/published-here/{rows['device'].iloc[0]}/{self.FILES}"
        return {
            "GPU": ", ".join(sorted(set(rows["hardware"]))),
            "numbers": f"{len(rows)} {self.COUNTED} in {place}",
            "measured": f"{rows['date'].min()} to {rows['date'].max()}",
            "commit": ", ".join(sorted(set(rows["commit"]))),
            "other machines": self._others(rows),
        }

    def _others(self, rows: pd.DataFrame) -> str:
        """Who else was measured, and how to see that."""
        others = sorted(set(self.all_rows()["device"]) - set(rows["device"]))
        return ", ".join(f"{name} (machine={name})" for name in others) or "none"


class RunsSession(HereSession):
    """An exhibit whose rows are runs, one for each setting."""

    COUNTED = "settings"
    GOALS: ModuleType
    """Its `goals` judges the rows."""

    def verdict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Goal, what was measured, whether it holds and why."""
        every = self.all_rows(repeated=True)
        every = every[every["device"].isin(rows["device"])]
        return Shown(goals.as_table(self.GOALS.goals(rows, every)))

    def facts(self, rows: pd.DataFrame) -> dict[str, str]:
        if rows.empty:
            return super().facts(rows)
        ended = ", ".join(f"{n} {status}" for status, n in rows["status"].value_counts().items())
        return {**super().facts(rows), "ended": ended}


class OffloadSession(RunsSession):
    """``here_offload``: every run of the offload benchmark, beside plain training."""

    FILES, GOALS = "offload.csv", goals

    def all_rows(self, *, repeated: bool = False) -> pd.DataFrame:
        return here_table.table(measured_runs(self.store), repeated=repeated)

    def paint(self, figure: Figure, rows: pd.DataFrame) -> None:
        """Shares of plain training, and predictions beside measurements."""
        here_offload.draw(figure, rows)


class ServersSession(RunsSession):
    """``here_servers``: every run on several GPUs, beside data parallelism and its plan."""

    FILES, GOALS = "servers.csv", server_goals

    def all_rows(self, *, repeated: bool = False) -> pd.DataFrame:
        return server_table.table(server_runs(measured_roots(self.store)), repeated=repeated)

    def paint(self, figure: Figure, rows: pd.DataFrame) -> None:
        """Throughput, bytes over the host links, scaling and predictions."""
        here_servers.draw(figure, rows)


class LanesSession(HereSession):
    """``here_lanes``: a step of some of those runs, lane by lane."""

    FILES, COUNTED = "lanes/*.csv", "steps"

    def all_rows(self, *, repeated: bool = False) -> pd.DataFrame:
        steps = measured_steps(measured_roots(self.store))
        return lanes_table.table(steps, here_table.table(measured_runs(self.store)))

    def paint(self, figure: Figure, rows: pd.DataFrame) -> None:
        """Bars of the lanes and the host memory's traffic, a panel each step."""
        steps = measured_steps(measured_roots(self.store))
        here_lanes.draw(figure, rows, [s for s in steps if s.device in set(rows["device"])])

    def verdict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """What each step reached, what bounds it, and whether the goal lies within the bound."""
        return Shown(here_lanes.judged(rows))


SESSIONS: dict[str, type[HereSession]] = {
    HERE_OFFLOAD: OffloadSession,
    HERE_LANES: LanesSession,
    HERE_SERVERS: ServersSession,
}
"""By exhibit."""
