"""What an exhibit of Harmony is: beside its runs stand estimates and plans, since nobody has the
paper's values."""

from __future__ import annotations

from typing import Any, Protocol

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures.harmony.sizes import HarmonySize
from workbench.figures.verdict import Verdict
from workbench.runs.store import Store


class HarmonyExhibit(Protocol):
    """The members every module of an exhibit has. Rows have the columns of `table.COLUMNS`."""

    FIGURE: str
    """Its name, ``harmony_8``."""
    TITLE: str
    SECTION: str
    """What the paper shows there."""
    CLAIM: str
    """In one sentence or two."""
    PLANS: tuple[str, ...]
    """Of the kept plans (`harmony_plans.questions`), by their figure: what `force` plans again."""

    def specs(self, size: HarmonySize, largest: dict[str, int]) -> list[RunSpec]:
        """The runs to make; `largest` is not used, no exhibit searches."""

    def rows(self, records: list[RunRecord], store: Store, size: HarmonySize) -> pd.DataFrame:
        """Measured and predicted values of those runs; `store` has their timelines."""

    def known(self, size: HarmonySize, plans: pd.DataFrame) -> pd.DataFrame:
        """Reference estimates, and plans under our simulator."""

    def absent(self, size: HarmonySize, why: str) -> pd.DataFrame:
        """A row for each thing that was not measured, and why."""

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Draw on an empty matplotlib figure."""

    def verdicts(self, rows: pd.DataFrame) -> list[Verdict]:
        """Judge the claim, each part by the series that can tell."""
