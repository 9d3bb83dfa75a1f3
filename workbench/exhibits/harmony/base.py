"""Base of Harmony's exhibits: beside runs stand estimates and plans, since nobody has the
paper's values.

Reference estimates of the authors' own model take the place of published values
(published/harmony.py), and plans of the published settings, theirs and ours, under our simulator
(published/harmony_plans.py). Both are kept in the repository and shown at every size. Where all is
to be done again and the published profiles are at hand, an exhibit also plans again; its answers
are kept in the results folder and shown instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.base import Exhibit
from workbench.exhibits.harmony import sizes
from workbench.exhibits.harmony.sizes import HarmonySize
from workbench.exhibits.harmony.table import COLUMNS, model_label, table
from workbench.exhibits.opened import Opened
from workbench.figures import draw
from workbench.figures.rows import MEASURED, join, kept_here, label_of, pick
from workbench.published import harmony_plans
from workbench.published.harmony import profiles_folder
from workbench.runs.store import Store

KEPT = ("estimates and plans of the published settings are kept", "kept")
"""Why nothing runs for an exhibit that has no runs, and what becomes of it."""
NOT_RUN = "nothing has been run at this size yet"


class HarmonyExhibit(Exhibit):
    """A figure or table of the paper. Rows have the columns of `table.COLUMNS`."""

    dials = staticmethod(sizes.named)
    labels = {"model": model_label, "method": label_of, "swapped": label_of}
    plans: ClassVar[tuple[str, ...]] = ()
    """Keys of the kept plans (`harmony_plans.questions`), by their figure: what can be planned
    again."""
    without_gpu: ClassVar[tuple[str, str]]
    """Why nothing runs where there is no GPU, and what becomes of the exhibit then."""

    # -- runs -----------------------------------------------------------------------------------

    def nothing_runs(self, at: Opened) -> dict[str, str]:
        why, state = self.without_gpu if at.simulated else KEPT
        return {"run": "nothing runs", "state": state, "note": why}

    def plan_again(self, at: Opened) -> Iterator[str]:
        """Answer the exhibit's questions again; does nothing where the profiles are not there."""
        folder = profiles_folder(at.store.root)
        if folder is None or not self.plans:
            return
        from workbench.published.harmony_answers import answers

        rows = []
        for figure in self.plans:
            for question in harmony_plans.questions(figure):
                yield question.words
                rows += answers(question, folder)
        path = own_plans(at.store)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            harmony_plans.write(rows, path)
        except OSError as error:
            raise at.store.unusable(error) from error

    # -- rows -----------------------------------------------------------------------------------

    def rows(self, records: list[RunRecord], store: Store, size: HarmonySize) -> pd.DataFrame:
        """Measured and predicted values of those runs; `store` has their timelines."""
        return table([])

    def known(self, size: HarmonySize, plans: pd.DataFrame) -> pd.DataFrame:
        """Reference estimates, and plans under our simulator; by default none is known."""
        return table([])

    def absent(self, size: HarmonySize, why: str) -> pd.DataFrame:
        """A row for each thing that was not measured, and why."""
        return table([])

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        """Reference estimates, plans, what was measured on named hardware, and what the records
        say; where they say nothing, why."""
        figure, size = self.figure, at.size.name
        kept = kept_here(at.store.published_here(), figure, size, COLUMNS)
        if records:
            own = self.rows(records, at.store, at.size)
        elif kept.empty:
            own = self.absent(at.size, self.without_gpu[0] if at.simulated else NOT_RUN)
        else:
            own = table([])
        own = own.assign(size=size)
        return join(self.known(at.size, plans_of(at.store)), kept, own).assign(figure=figure)

    def facts(self, at: Opened, rows: pd.DataFrame, records: list[RunRecord]) -> dict[str, str]:
        planned = plans_of(at.store)["planned"]
        return {
            "reference": "estimates of the authors' own model, in workbench/published/harmony.csv",
            "plans": f"on the published profiles, {planned.min()} to {planned.max()}",
            **super().facts(at, rows, records),
        }


def plans_of(store: Store) -> pd.DataFrame:
    """The plans there are: kept ones, and instead of a figure's those made again in this store."""
    kept = harmony_plans.kept()
    if not own_plans(store).exists():
        return kept
    own = harmony_plans.kept(path=own_plans(store))
    return pd.concat([kept[~kept["figure"].isin(set(own["figure"]))], own], ignore_index=True)


def own_plans(store: Store) -> Path:
    """The file of the plans that were made again in this store."""
    return store.root / "plans" / harmony_plans.KEPT.name


def nothing_reduced(axes: Any, rows: pd.DataFrame, letters: int = 34) -> None:
    """The panel of reduced models where none ran: why, or where the published ones are."""
    own = rows[rows["source"] == MEASURED]
    words = next(iter(own["note"]), "nothing was run at this size")
    if own["value"].notna().any():
        words = "the published models, in the panels beside"
    draw.empty(axes, f"measured here: {words}", letters)


def not_run(rows: pd.DataFrame, lacking: Iterable[str]) -> str:
    """A sentence on what a size leaves out of a figure; empty where that is nothing."""
    told = "; ".join(lacking)
    size = next(iter(pick(rows, source=MEASURED)["size"]), "")
    return f"Not run at {size} size, which is to take little time: {told}." if told else ""
