"""One exhibit, from parameters to verdict: what a notebook, the command line and the report all
call.

    exhibit = open_exhibit("8a", size="smoke")
    exhibit.preview()          # what will run, how long, how much memory, what cannot fit and why
    rows = exhibit.run()       # runs what has no record yet
    exhibit.figure(rows)       # draws, and saves PDF, PNG and CSV
    exhibit.verdict(rows)      # claim, published, here, holds or not and why

`open_exhibit("9", batch=8)` is the same figure with another batch.

Nothing is kept but the store's records, so all of it may be run twice, or be killed and run again.
`run` blocks and prints its progress; a user interface takes `stages` instead and polls them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.core.mistakes import in_a_sentence
from workbench.core.record import RunRecord
from workbench.exhibits.base import Exhibit
from workbench.exhibits.preview import Stage
from workbench.figures.draw import BUSY, PRINT_IN, small_print
from workbench.figures.finish import finish
from workbench.figures.style import save, styled
from workbench.figures.verdict import busy_in
from workbench.model.corpus import STDLIB
from workbench.runs.events import Event
from workbench.runs.progress import Progress
from workbench.runs.search import Search
from workbench.runs.store import Store
from workbench.shown import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_HEIGHT_IN = 2.1
"""Height of the axes, where an exhibit does not say; legend and small print come on top."""


@dataclass(frozen=True)
class Drawing:
    """A figure on the disk, which a notebook shows."""

    paths: tuple[Path, ...]
    """PDF, PNG and the CSV of the rows behind it."""
    width_px: int

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        png = next(path for path in self.paths if path.suffix == ".png")
        return png.read_bytes(), {"width": self.width_px}


class Session:
    """An exhibit at a size, and the store its runs are in."""

    def __init__(
        self,
        exhibit: Exhibit,
        size: str,
        store: Store,
        text: str = STDLIB,
        machine: str = "",
        **changes: Any,
    ) -> None:
        """Starts nothing. `changes`: parameters of the exhibit (`Exhibit.takes`) in place of the
        size's. Raises ValueError as `Exhibit.opened` and `Exhibit.changed` do."""
        self.exhibit, self.store = exhibit, store
        self.at = exhibit.changed(exhibit.opened(size, store, text, machine), changes)
        self._judged: tuple[pd.DataFrame | None, pd.DataFrame] = None, pd.DataFrame()
        """Rows that were judged last, and their verdicts: a report asks three times."""

    @property
    def size(self) -> Any:
        return self.at.size

    @property
    def simulated(self) -> bool:
        return self.at.simulated

    @property
    def name(self) -> str:
        return self.exhibit.name

    # -- runs -----------------------------------------------------------------------------------

    @in_a_sentence()
    def preview(self) -> pd.DataFrame:
        """The runs that `run` would make: one row each, with its expected time and memory."""
        return Shown(self.exhibit.preview(self.at))

    @in_a_sentence()
    def run(
        self, force: bool = False, on_event: Callable[[Event], None] | None = None
    ) -> pd.DataFrame:
        """Run what has no record yet (all of it with `force`, and plan again where that can be) and
        return the rows.

        Blocks. Without `on_event` progress goes to standard output as plain lines.
        """
        if force:
            for words in self.exhibit.plan_again(self.at):
                Progress(sys.stdout).line(f"planning {words}")
        return self.rows(self.exhibit.records(self.at, self._ran(force, on_event)))

    def _ran(self, force: bool, on_event: Callable[[Event], None] | None) -> Iterator[Stage]:
        for stage in self.stages(force):
            progress = Progress(sys.stdout, sweep=stage)
            if isinstance(stage, Search) and not stage.ended:
                progress.line(f"searching the largest model of {stage.spec.method}")
            try:
                stage.run(on_event or partial(shown_event, progress))
            finally:
                progress.end()
            yield stage

    def stages(self, force: bool = False) -> Iterator[Stage]:
        """The searches and sweeps of this exhibit, one after the other; run each before the
        next."""
        return iter(()) if self.simulated else self.exhibit.stages(self.at, force=force)

    def records(self) -> list[RunRecord]:
        """Records there are of this exhibit's runs; nothing is run."""
        return self.exhibit.records(self.at, self.stages())

    # -- what they show -------------------------------------------------------------------------

    def rows(self, records: list[RunRecord] | None = None) -> pd.DataFrame:
        """The rows that the exhibit shows. `records` are by default those that the store has;
        nothing is
        run."""
        return self.exhibit.table(self.at, self.records() if records is None else records)

    def draw(self, rows: pd.DataFrame, *, printed: bool = True) -> Figure:
        """The figure; unless `printed`, its small print is its label alone, for a page that has it
        as text."""
        from matplotlib.figure import Figure

        with styled():
            size = (self.exhibit.width_in(self.at), PLOT_HEIGHT_IN)
            figure = Figure(figsize=size, layout="constrained")
            self.exhibit.paint(self.at, figure, rows)
            if told := busy_in(rows):
                small_print(figure, f"{BUSY} The machine was busy: {told}.")
            if not printed and (lines := figure.get_supxlabel().splitlines()):
                figure.set_figheight(figure.get_figheight() - PRINT_IN * len(lines))
                figure.supxlabel("")
            finish(figure, "; ".join([self.exhibit.headline, *self.at.told]))
        return figure

    @in_a_sentence()
    def figure(self, rows: pd.DataFrame) -> Drawing:
        """Draw, and save PDF, PNG and the table behind them in the reports folder."""
        return self._saved(self.draw(rows), rows)

    def renew(self, rows: pd.DataFrame) -> None:
        """Draw and save over the files of an earlier figure, if these show other rows: a run was
        repeated since, or this machine measured again."""
        table = self._stem.with_suffix(".csv")
        if table.exists() and table.read_text() != rows.to_csv(index=False):
            self._saved(self.draw(rows), rows)

    @property
    def _stem(self) -> Path:
        told = "-".join([self.name, *(re.sub(r"\W+", "_", words) for words in self.at.told)])
        return self.store.root / "reports" / self.size.name / told

    def _saved(self, figure: Figure, rows: pd.DataFrame) -> Drawing:
        try:
            self._stem.parent.mkdir(parents=True, exist_ok=True)
            paths = [*save(figure, self._stem), self._stem.with_suffix(".csv")]
            rows.to_csv(paths[-1], index=False)
        except OSError as error:
            raise self.store.unusable(error) from error
        return Drawing(paths=tuple(paths), width_px=round(figure.get_figwidth() * 110))

    @in_a_sentence()
    def verdict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Claim, ratios, whether it holds and why; of this project's own exhibits the goals."""
        if self._judged[0] is not rows:
            self._judged = rows, self.exhibit.judged(self.at, rows)
        return Shown(self._judged[1].copy())

    def facts(self, rows: pd.DataFrame) -> dict[str, str]:
        """Where the numbers of these rows come from."""
        return self.exhibit.facts(self.at, rows, self.records())

    @in_a_sentence()
    def provenance(self) -> pd.DataFrame:
        """The facts of what there is, as a table."""
        return Shown(self.facts(self.rows()).items(), columns=["what", "is"])


def shown_event(progress: Progress, event: Event) -> None:
    """Progress without the single figures of the machine's profile, which `doctor` prints."""
    if event["event"] != "profile" or event["text"].startswith("measuring"):
        progress.on_event(event)
