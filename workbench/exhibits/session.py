"""One exhibit, from parameters to verdict: what a notebook, the command line and the report all
call.

    exhibit = open_exhibit("8a", size="smoke")
    exhibit.preview()          # what will run, how long, how much memory, what cannot fit and why
    rows = exhibit.run()       # runs what has no record yet
    exhibit.figure(rows)       # draws, and saves PDF, PNG and CSV
    exhibit.verdict(rows)      # claim, published, here, holds or not and why

Nothing is kept but the store's records, so all of it may be run twice, or be killed and run again.
`run` blocks and prints its progress; a user interface takes `stages` instead and polls them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from workbench.core import host
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures import measured_here
from workbench.figures import rows as tidy
from workbench.figures.exhibit import Exhibit, find, name_of
from workbench.figures.fig6a import planned
from workbench.figures.sizes import Size
from workbench.figures.style import COLUMN_IN, PAGE_IN, save, styled
from workbench.figures.verdict import as_table, series_to_judge
from workbench.published.here import OffloadRun, offload_runs
from workbench.runs.events import Event
from workbench.runs.executor import LocalExecutor
from workbench.runs.planning import answer
from workbench.runs.progress import Progress
from workbench.runs.search import Search
from workbench.runs.store import RECORD, REPOSITORY_RESULTS, Store
from workbench.runs.sweep import Sweep
from workbench.shown import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Stage = Search | Sweep
"""What runs: polled until it has ended, with points and events to show."""

PLOT_HEIGHT_IN = 2.1
"""Of the axes; legend and small print come on top."""


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

    def __init__(self, exhibit: Exhibit, size: Size, store: Store) -> None:
        self.exhibit, self.size, self.store = exhibit, size, store
        self.simulated = size.name == "paper" and not _has_gpu()
        """Whether nothing runs: the published sizes need a GPU, and are simulated without one."""
        if size.device == "cuda" and not self.simulated and not _has_gpu():
            raise ValueError(
                f"the size {size.name!r} needs a GPU, and none can be used here; use smoke, which "
                "runs anywhere, or paper, which is simulated without one"
            )

    @property
    def folder(self) -> Path:
        """Where the figure and its table go."""
        return self.store.root / "reports" / self.size.name

    @property
    def name(self) -> str:
        return name_of(self.exhibit.FIGURE)

    # -- runs -----------------------------------------------------------------------------------

    def preview(self) -> pd.DataFrame:
        """What `run` would do: one row a run, with its expected time and memory."""
        from workbench.exhibits.preview import preview

        return Shown(preview(self))

    def run(
        self, force: bool = False, on_event: Callable[[Event], None] | None = None
    ) -> pd.DataFrame:
        """Run what has no record yet (all of it with `force`) and return the rows.

        Blocks. Without `on_event` progress goes to standard output as plain lines.
        """
        records = self._ran(force, on_event)
        return self.rows([with_prediction(record, self.store) for record in records])

    def _ran(self, force: bool, on_event: Callable[[Event], None] | None) -> list[RunRecord]:
        records: list[RunRecord] = []
        for stage in self.stages(force):
            progress = Progress(sys.stdout, sweep=stage)
            if isinstance(stage, Search) and not stage.ended:
                progress.line(f"searching the largest model of {stage.spec.method}")
            try:
                stage.run(on_event or partial(shown_event, progress))
            finally:
                progress.end()
            if self.exhibit.FIGURE != "7a" or isinstance(stage, Sweep):
                records += records_of(stage)
        return records

    def stages(self, force: bool = False) -> Iterator[Stage]:
        """The searches and sweeps of this exhibit, one after the other; run each before the next.

        Figure 7a compares at the sizes that figure 6a's searches find.
        """
        if self.simulated:
            return
        largest: dict[str, int] = {}
        for search in self.searches(force=force and self.exhibit.FIGURE == "6a"):
            yield search
            largest[search.spec.method] = answer_of(search)
        if self.exhibit.FIGURE != "6a":
            yield self.sweep(largest, force=force)

    def searches(self, *, force: bool = False) -> list[Search]:
        """The largest-model searches this exhibit needs, none for most."""
        if self.exhibit.FIGURE not in ("6a", "7a"):
            return []
        specs = find("6a").specs(self.size, {})
        wanted = [s for s in specs if self.exhibit.FIGURE == "6a" or s.method != "stronghold"]
        return [
            Search(
                spec,
                self.store,
                limit=self.size.search_limit,
                force=force,
                executor=self._executor(),
            )
            for spec in wanted
        ]

    def sweep(self, largest: dict[str, int], *, force: bool = False) -> Sweep:
        """The runs of this exhibit; what failed for no reason of its own is tried again."""
        specs = self.exhibit.specs(self.size, largest)
        return Sweep(specs, self.store, force=force, retry_failed=True, executor=self._executor())

    def _executor(self) -> LocalExecutor:
        return LocalExecutor(self.store, what=f"{self.name} at size {self.size.name}")

    def records(self) -> list[RunRecord]:
        """Records there are of this exhibit's runs; nothing is run."""
        if self.simulated:
            return []
        searches = self.searches()
        if self.exhibit.FIGURE == "6a":
            return [record for search in searches for record in records_of(search)]
        sweep = self.sweep({search.spec.method: answer_of(search) for search in searches})
        return [with_prediction(record, self.store) for record in records_of(sweep)]

    def rows(self, records: list[RunRecord] | None = None) -> pd.DataFrame:
        """Published values, simulations of the published machine, and what the records say.

        `records` are by default those that the store has; nothing is run.
        """
        figure, size = self.exhibit.FIGURE, self.size.name
        parts = [tidy.published(figure)]
        if size == "paper":
            parts.append(measured_here.rows(figure, measured_runs(self.store)))
            parts.append(tidy.simulated(figure))
            parts.append(tidy.kept_here(self.store.published_here(), figure, size))
        records = self.records() if records is None else records
        if records:
            parts.append(self.exhibit.rows(records).assign(figure=figure, size=size))
        if figure == "6a" and records:
            said = [
                planned(search.spec.method, search.guess, search.spec.model, search.beyond)
                for search in self.searches()
            ]
            parts.append(tidy.table(said, figure=figure, size=size))
        return tidy.join(*parts)

    # -- what they show -------------------------------------------------------------------------

    @property
    def figsize(self) -> tuple[float, float]:
        """Inches that a figure is wide and, without legend and small print, high."""
        wide = self.size.name != "paper" or self.exhibit.FIGURE == "7a"
        return PAGE_IN if wide else COLUMN_IN, PLOT_HEIGHT_IN

    def paint(self, figure: Figure, rows: pd.DataFrame) -> None:
        """Draw on an empty figure: published values share the axes at their own size, else ratios
        do."""
        self.exhibit.draw(figure, rows, same_scale=self.size.name == "paper")

    def draw(self, rows: pd.DataFrame) -> Figure:
        """The figure."""
        from matplotlib.figure import Figure

        with styled():
            figure = Figure(figsize=self.figsize, layout="constrained")
            self.paint(figure, rows)
        return figure

    def figure(self, rows: pd.DataFrame) -> Drawing:
        """Draw, and save PDF, PNG and the table behind them in the reports folder."""
        figure = self.draw(rows)
        stem = self.folder / self.name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            paths = [*save(figure, stem), stem.with_suffix(".csv")]
            rows.to_csv(paths[-1], index=False)
        except OSError as error:
            raise self.store.unusable(error) from error
        return Drawing(paths=tuple(paths), width_px=round(figure.get_figwidth() * 110))

    def verdict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Claim, published and own ratio, whether it holds and why."""
        judged = [self.exhibit.verdicts(rows, *series) for series in series_to_judge(rows)]
        return Shown(as_table([verdict for verdicts in judged for verdict in verdicts]))

    def provenance(self) -> pd.DataFrame:
        """Where this exhibit's numbers come from: machine, code, packages, dates."""
        from workbench.exhibits.preview import origin

        facts = origin(self.records(), simulated=self.simulated)
        return Shown(facts.items(), columns=["what", "is"])


def measured_runs(store: Store) -> list[OffloadRun]:
    """What this project measured on named hardware; a store's own file follows the repository's."""
    return offload_runs(measured_roots(store))


def measured_roots(store: Store) -> tuple[Path, ...]:
    """The folders with measurements on named hardware, a store's own after the repository's."""
    return (REPOSITORY_RESULTS, store.root)


def answer_of(search: Search) -> int:
    """The layers a search found; 0 where it has found nothing yet."""
    return search.layers if search.complete else 0


def with_prediction(record: RunRecord, store: Store) -> RunRecord:
    """A library that plans for itself leaves no prediction: ours of its schedule, on this machine.

    The record as it is where it has one, and where this machine has not been measured.
    """
    if record.predicted or record.status != "ok":
        return record
    planned = answer(RunSpec.from_dict(record.spec), store)
    if planned.source != "measured" or not planned.plan.step_seconds:
        return record
    told = {"how": "our model of the library's schedule, simulated", **planned.plan.to_dict()}
    return replace(record, predicted=told)


def records_of(stage: Stage) -> list[RunRecord]:
    """The records a search or a sweep has, each of the spec that was asked for: its key names that,
    while the copy in its file may be damaged. `Store.problems` names those that no figure can
    use."""
    found = []
    for point in stage.points:
        record = point.record
        if record is None:
            continue
        if record.status == "ok" and not min(record.step_seconds, default=0.0) > 0:
            path = stage.store.folder(point.key) / RECORD
            stage.store.problems[path] = f"its steps took {record.step_seconds} seconds"
        else:
            found.append(replace(record, method=point.spec.method, spec=point.spec.to_dict()))
    return found


def shown_event(progress: Progress, event: Event) -> None:
    """Progress without the single figures of the machine's profile, which `doctor` prints."""
    if event["event"] != "profile" or event["text"].startswith("measuring"):
        progress.on_event(event)


def _has_gpu() -> bool:
    return host.resolve_device("auto") == "cuda"
