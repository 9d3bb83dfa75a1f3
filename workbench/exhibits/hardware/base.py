"""Base of the exhibits of committed measurements: their rows lie in
``results/published-here/<device>/``, so nothing runs, and they are the same on every machine and at
every size."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.base import Exhibit
from workbench.exhibits.claims import Goal, goals_table
from workbench.exhibits.opened import Opened
from workbench.exhibits.stronghold import sizes
from workbench.published.here import SERVERS


class HardwareExhibit(Exhibit):
    """Rows that were measured on named hardware; the size only says in which folder a figure
    lies."""

    runs, dials = False, staticmethod(sizes.named)
    file: ClassVar[str]
    """Name of the sheet in a machine's folder."""
    link: ClassVar[str]

    @property
    def absent(self) -> str:
        """Words where there is no row."""
        return (
            f"nothing to show: no results/published-here/<device>/{self.file} has been measured "
            "and committed yet"
        )

    def machines(self, at: Opened) -> set[str]:
        return set(self.all_rows(at)["device"])

    @abstractmethod
    def all_rows(self, at: Opened, *, repeated: bool = False) -> pd.DataFrame:
        """The rows of all machines, with at least `device`, `hardware`, `date` and `commit`; with
        `repeated` also those of runs that were made again.

        Raises ValueError for a file that cannot be right.
        """

    def preview(self, at: Opened) -> pd.DataFrame:
        """The rows that there are: one line a machine. Nothing will run."""
        lines = [
            {
                "machine": device,
                "device": ", ".join(sorted(set(part["hardware"]))),
                self.counted: len(part),
                "measured": f"{part['date'].min()} to {part['date'].max()}",
                "note": "nothing runs: these rows are committed",
            }
            for device, part in self.all_rows(at).groupby("device")
        ]
        none = {"machine": "none", "device": "", self.counted: 0, "measured": ""}
        return pd.DataFrame(lines or [{**none, "note": self.absent}])

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        """The rows of the machine that was asked for, else of the one that has most of them. Raises
        ValueError as `all_rows` does."""
        rows = self.all_rows(at)
        if rows.empty:
            return rows
        return rows[rows["device"] == (at.machine or rows["device"].value_counts().idxmax())]

    def facts(self, at: Opened, rows: pd.DataFrame, records: list[RunRecord]) -> dict[str, str]:
        """Device, files, dates and code behind the rows."""
        if rows.empty:
            return {"numbers": self.absent}
        place = f"results/published-here/{rows['device'].iloc[0]}/{self.file}"
        others = sorted(set(self.all_rows(at)["device"]) - set(rows["device"]))
        told = {
            "GPU": ", ".join(sorted(set(rows["hardware"]))),
            "numbers": f"{len(rows)} {self.counted} in {place}",
            "measured": f"{rows['date'].min()} to {rows['date'].max()}",
            "commit": ", ".join(sorted(set(rows["commit"]))),
            "other machines": ", ".join(f"{name} (machine={name})" for name in others) or "none",
        }
        if "status" in rows:
            ended = rows["status"].value_counts().items()
            told["ended"] = ", ".join(f"{count} {status}" for status, count in ended)
        return told


class GoalsExhibit(HardwareExhibit):
    """An exhibit whose rows are runs, one for each setting, judged by this project's goals."""

    labels = {"method": SERVERS.labels.__getitem__}

    def goals(self, rows: pd.DataFrame, repeated: pd.DataFrame | None = None) -> list[Goal]:
        """All goals against the rows of one device; `repeated`: the same with every repeated run,
        so that two methods may be compared in the last round that has both."""
        return self.judge.verdicts(rows, every=repeated)

    def judged(self, at: Opened, rows: pd.DataFrame) -> pd.DataFrame:
        """Goal, what was measured, whether it holds and why."""
        every = self.all_rows(at, repeated=True)
        every = every[every["device"].isin(rows["device"])]
        return goals_table(self.goals(rows, every))
