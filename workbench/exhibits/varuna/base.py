"""Base of Varuna's exhibits. The values of its paper were not available to this project: facts of
its released code, and of its simulator, take their place."""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd

from workbench.exhibits.base import Exhibit, Opened
from workbench.exhibits.harmony import sizes
from workbench.exhibits.preview import preview
from workbench.figures.verdict import as_table
from workbench.model.corpus import STDLIB


class VarunaExhibit(Exhibit):
    """An exhibit with the columns that it lists and the claims that it judges."""

    system, headline_form = "Varuna", "Varuna (EuroSys'22)"
    introduction = (
        "Varuna (EuroSys'22): pipelines on machines that come and go",
        "Exhibits of the third system. The values of its paper were not available to this project: "
        "of the paper only the abstract is quoted. Hollow is published, or (dotted) what another "
        "simulator of the same rules gives; hatched (in lines: half filled) is simulated, filled "
        "is measured.",
    )

    parameters = {
        "size": "smoke: any machine; small: the GPUs there are; paper: the GPUs, or nothing",
    }

    @property
    def words(self) -> str:
        return f"Varuna, {self.figure.removeprefix('varuna_')}"

    about: ClassVar[str]
    """Where its numbers are from, if nothing runs."""

    def sized(self, size: str, text: str = STDLIB) -> Any:
        return sizes.named(size)

    def preview(self, at: Opened) -> pd.DataFrame:
        """Runs of the size, where any can be made."""
        if self.runs and not at.simulated:
            return preview(self.stages(at), at.store)
        return pd.DataFrame([{"run": "nothing runs", "note": self.about}])

    def unmeasured(self, at: Opened) -> str:
        """Why no run is shown."""
        return self.about if at.simulated else "not run yet"

    def judged(self, at: Opened, rows: pd.DataFrame) -> pd.DataFrame:
        return as_table(self.judge.verdicts(rows))
