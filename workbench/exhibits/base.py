"""An exhibit: a claim of a paper, the runs that test it, its rows, drawing, verdicts and preview.

An exhibit is a class in a file and, in a TOML file beside it, its words and claims (`words.py`); a
system's exhibits share a base class that says what stands beside the runs (published values,
estimates, plans) and how it is told. An `Exhibit` has no state: what was chosen when it was opened
comes as `Opened`. `session.py` runs any of them.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from workbench.core import host
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.claim_rows import Claim
from workbench.exhibits.claims import Judge
from workbench.exhibits.metrics import Asked, Metric
from workbench.exhibits.opened import Opened, read
from workbench.exhibits.preview import COLUMNS as PREVIEWED
from workbench.exhibits.preview import Stage, preview_of
from workbench.exhibits.provenance import origin
from workbench.exhibits.words import read_words
from workbench.figures.rows import COLUMNS, label_of, table
from workbench.figures.style import PAGE_IN
from workbench.figures.verdict import as_table, cannot_tell
from workbench.model.corpus import STDLIB
from workbench.runs.store import RECORD, Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ADDED = ("parameters", "sentences")
"""Words that are added to those above a class."""


class Exhibit(ABC):
    """One figure or table. Subclasses say what is abstract here, and override the rest."""

    figure: ClassVar[str]
    """Key in rows and results: the number in the paper (``8a``), or a name (``harmony_8``)."""
    title: ClassVar[str]
    subject: ClassVar[str] = ""
    """In the notebook's heading, where that is not the title."""
    section: ClassVar[str]
    """Where the paper shows it."""
    claim: ClassVar[str]
    """In one sentence or two."""
    tested: ClassVar[str]
    """How, in paragraphs."""
    small_print: ClassVar[str] = ""
    """Below the figure, with names in braces of what its rows tell."""
    sentences: ClassVar[dict[str, str]] = {}
    """Sentences of the small print that not every figure has, by their names in braces."""
    sizes: ClassVar[dict[str, tuple[str, str]]] = {}
    """Size -> what runs, and how long it takes; empty where nothing runs."""
    claims: ClassVar[list[Claim]] = []
    metrics: ClassVar[Mapping[str, Metric]] = MappingProxyType({})
    """Metrics of its own that its claims name."""
    labels: ClassVar[Mapping[str, Callable[[Any], str]]] = MappingProxyType({"method": label_of})
    """Column -> what a sentence calls its values."""
    system: ClassVar[str] = ""
    """The paper's system, for the report's summary; empty for this project's own exhibits."""
    runs: ClassVar[bool] = True
    """Whether anything runs for it; where not, it shows what is committed."""
    times: ClassVar[bool] = False
    """Whether it takes the time of something else than runs."""
    dials: ClassVar[Callable[[str], Any]]
    """Reads the dials of a size (`sizes.py` of the system)."""
    about: ClassVar[str] = ""
    """Where its numbers are from, if nothing runs."""
    previewed: ClassVar[tuple[str, ...]] = PREVIEWED
    """Columns of its preview."""
    reference: ClassVar[str] = "published"
    """Source of the ratios beside which its own stand."""
    reads: ClassVar[str] = ""
    """Field of the size whose model trains on a text that people may choose; empty for none."""

    takes: ClassVar[tuple[str, ...]] = ()
    """Parameters that a notebook may change, by the names of the command line; `methods` chooses
    some of those that run, `machine` whose committed rows are shown, `overlay` how the figure is
    drawn."""
    lists: ClassVar[tuple[str, ...]] = ()
    """Those of them that the figure varies: ``2, 4, 8``."""
    parameters: ClassVar[dict[str, str]] = {}
    """Words on parameters in the notebook, where they are not the common ones."""

    introduction: ClassVar[tuple[str, str] | None] = None
    """Heading and words of the report before the system's exhibits, where they are a part of their
    own."""
    stored: ClassVar[str] = "Shown from stored results."
    """Said in the report where nobody ran the notebook."""
    judgement: ClassVar[str] = "Verdict"
    """Heading of the verdicts in the report."""
    columns: ClassVar[dict[str, str]]
    """Columns of the rows, as the report names them."""
    counted: ClassVar[str] = "values"
    """Name of rows in the plural."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Take the words that lie beside the class, in place of those above it."""
        super().__init_subclass__(**options)
        path = Path(inspect.getfile(cls)).with_suffix(".toml")
        for name, value in read_words(path, cls).items() if path.exists() else ():
            setattr(cls, name, getattr(cls, name) | value if name in ADDED else value)

    @property
    def measures(self) -> bool:
        """Whether it wants the machine for itself."""
        return self.runs or self.times

    # -- names: forms with the figure, its number without the system, and its title --------------

    name_form: ClassVar[str] = "{figure}"
    notebook_form: ClassVar[str] = "{figure}"
    words_form: ClassVar[str] = "exhibit {figure}"
    heading_form: ClassVar[str] = "{words}: {title}"
    place_form: ClassVar[str] = "{section}"
    headline_form: ClassVar[str] = "This project"

    def _formed(self, form: str, **more: str) -> str:
        number = self.figure.removeprefix(f"{self.system.lower()}_")
        return form.format(figure=self.figure, number=number, title=self.title, **more)

    @property
    def name(self) -> str:
        """On the command line and of files: ``fig8a``, ``harmony_8``."""
        return self._formed(self.name_form)

    @property
    def notebook(self) -> str:
        """The stem of the notebook: ``stronghold_8a``, ``harmony_8``, ``here_offload``."""
        return self._formed(self.notebook_form)

    @property
    def words(self) -> str:
        """In a sentence: ``figure 8a``, ``Harmony, table 1``, ``exhibit here_offload``."""
        return self._formed(self.words_form)

    @property
    def heading(self) -> str:
        """Heading of the report's section."""
        return self._formed(self.heading_form, words=self.words)

    @property
    def headline(self) -> str:
        """Title of the figure: paper, number in it and subject."""
        return self._formed(f"{self.headline_form}: {{title}}")

    @property
    def subject_words(self) -> str:
        """Heading of the notebook: ``Harmony, figure 8: balance of the devices``."""
        if not self.system:
            return self.title
        words = self.words.removeprefix(f"{self.system}, ")
        subject = self.subject or self.title[0].lower() + self.title[1:]
        return f"{self.system}, {words}: {subject}"

    @property
    def link(self) -> str:
        """On the first page of the report."""
        return self.words

    @property
    def place(self) -> str:
        """Where the claim is made, as the report says it; empty where no paper makes it."""
        return self.place_form.format(section=self.section)

    # -- opening --------------------------------------------------------------------------------

    def sized(self, size: str, text: str = STDLIB) -> Any:
        """The dials of a size; raises ValueError naming the known ones."""
        return self.dials(size)

    def machines(self, at: Opened) -> set[str]:
        """Folders in ``published-here`` that have rows for the exhibit at this size."""
        return set()

    def opened(self, size: str, store: Store, text: str, machine: str) -> Opened:
        """These choices; raises ValueError for an unknown size, or one that needs a GPU where none
        is, and for a machine without rows."""
        self.check_names(["machine"] if machine else [])
        dials = self.sized(size, text)
        simulated = self.runs and dials.name == "paper" and not has_gpu()
        if self.runs and dials.device == "cuda" and not simulated and not has_gpu():
            raise ValueError(
                f"the size {dials.name!r} needs a GPU, and none can be used here; use smoke, which "
                "runs anywhere, or paper, which is simulated without one"
            )
        what = f"{self.name} at size {dials.name}"
        at = Opened(
            size=dials, store=store, simulated=simulated, text=text, machine=machine, what=what
        )
        if machine and machine not in (known := self.machines(at)):
            raise ValueError(
                f"{self.words} at size {dials.name} shows no rows of machine {machine!r}; those "
                f"that have some are {', '.join(sorted(known)) or 'none'}"
            )
        return at

    def check_names(self, names: Iterable[str]) -> None:
        """Raise ValueError for a parameter that the exhibit does not take."""
        if unknown := [name for name in names if name not in self.takes]:
            takes = ", ".join(("size", "results", "force", *self.takes))
            raise ValueError(f"{self.words} has no parameter {unknown[0]!r}; it has {takes}")

    def changed(self, at: Opened, changes: dict[str, Any]) -> Opened:
        """The choices with these parameters in place of the size's; None leaves the size's. Raises
        ValueError for a name that the exhibit does not take, and for a value that cannot be."""
        self.check_names(changes)
        given = {
            name: read(name, value, several=name in (*self.lists, "methods"))
            for name, value in changes.items()
            if value not in (None, "")
        }
        overlay = given.pop("overlay", False)
        told = [f"{name} {changes[name]}" for name in given] + ["published laid over"] * overlay
        at = replace(at, told=tuple(told), overlay=overlay)
        if not given:
            return at
        if at.simulated:
            raise ValueError(
                f"{self.words} at size {at.size.name} is simulated here, with published settings; "
                f"{', '.join(given)} can be given at size smoke, or where a GPU is"
            )
        methods = given.pop("methods", ())
        dials = at.size.changed(**given)
        runs = dict.fromkeys(spec.method for spec in self.specs(dials))
        for name in methods:
            if name not in runs:
                raise ValueError(f"{self.words} runs no method {name!r}; it runs {', '.join(runs)}")
        return replace(at, size=dials, methods=methods)

    def text_in(self, folder: Path, size: str) -> None:
        """Read the text in a folder that somebody chose; raises ValueError, one sentence, where it
        is not of the exhibit's format."""
        raise NotImplementedError(f"{self.figure} reads no text")

    # -- runs -----------------------------------------------------------------------------------

    def stages(self, at: Opened, *, force: bool = False, planned: bool = False) -> Iterator[Stage]:
        """The searches and sweeps, one after the other; run each before the next. With `planned`
        a planner's guess stands for an answer that is not known yet."""
        if specs := self.specs(at.size):
            yield at.sweep(specs, force=force)

    def specs(self, size: Any) -> list[RunSpec]:
        """The runs of a sweep."""
        return []

    def plan_again(self, at: Opened) -> Iterator[str]:
        """Make again what planners said and was kept, where that is shown and can be made; yields
        what is planned next, in words."""
        return iter(())

    def records(self, at: Opened, stages: Iterable[Stage]) -> list[RunRecord]:
        """The records that the figure shows, of stages that ran or of what is stored of them."""
        return [record for stage in stages for record in records_of(stage)]

    def preview(self, at: Opened) -> pd.DataFrame:
        """A row for each thing that would run, with its expected time and memory; where nothing
        would, one that says so. Nothing runs."""
        if self.runs and not at.simulated:
            lines = preview_of(self.stages(at, planned=True), at.store, self.previewed)
            if len(lines):
                return lines
        return pd.DataFrame([self.nothing_runs(at)])

    def nothing_runs(self, at: Opened) -> dict[str, str]:
        """The only row of a preview where nothing would run: why."""
        return {"run": "nothing runs", "note": self.about}

    def published(self) -> pd.DataFrame:
        """Values of the paper; empty where nobody has them."""
        return pd.DataFrame()

    # -- what it shows --------------------------------------------------------------------------

    @abstractmethod
    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        """All rows: of the records, and what is known beside them."""

    def tabled(self, at: Opened, rows: Iterable[Any], *more: str, **same: Any) -> pd.DataFrame:
        """Rows as a table of the figure and the size, with `more` columns than all have; `same` is
        said of every row."""
        return table([*rows], (*COLUMNS, *more), figure=self.figure, size=at.size.name, **same)

    def width_in(self, at: Opened) -> float:
        """Width of the figure in inches."""
        return PAGE_IN

    def paint(self, at: Opened, figure: Figure, rows: pd.DataFrame) -> None:
        """Draw on an empty figure."""
        self.draw(figure, rows)

    def printed(self, **facts: Any) -> str:
        """The small print with what the rows tell."""
        told = {name: text.format(**facts) for name, text in self.sentences.items()} | facts
        return re.sub(" +", " ", self.small_print.format(**told)).strip()

    @abstractmethod
    def draw(self, figure: Figure, rows: pd.DataFrame) -> None:
        """Draw rows alone, where they are all there is to draw."""

    @property
    def judge(self) -> Judge:
        """Holds rows against the claims."""
        return self.judge_of(self.claims)

    def judge_of(self, claims: Sequence[Claim]) -> Judge:
        """Holds rows against these claims, by the exhibit's metrics and words."""
        return Judge(claims, self.metrics, self.labels, self.cannot_tell)

    def cannot_tell(self, asked: Asked) -> str:
        """Why the times of these rows tell nothing of speed; empty where they do."""
        return cannot_tell(asked.part)

    def verdicts(self, rows: pd.DataFrame, *series: str) -> list[Any]:
        """The claims, each judged by the series (source, variant) that it names, or by this one."""
        return self.judge.verdicts(rows, series or None)

    def judged_by(self, rows: pd.DataFrame) -> Iterable[tuple[pd.DataFrame, tuple[str, ...]]]:
        """The rows and the series of each judgement; one of all rows, where claims name theirs."""
        return [(rows, ())]

    def judged(self, at: Opened, rows: pd.DataFrame) -> pd.DataFrame:
        """The verdicts as people read them."""
        found = [self.verdicts(part, *series) for part, series in self.judged_by(rows)]
        return as_table([verdict for verdicts in found for verdict in verdicts], self.reference)

    def listed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows with the columns that a reader of the report needs, by their names there."""
        return rows.reindex(columns=[*self.columns]).rename(columns=self.columns)

    def facts(self, at: Opened, rows: pd.DataFrame, records: list[RunRecord]) -> dict[str, str]:
        """Where the numbers come from: machine, code, packages, dates."""
        return origin(records, simulated=at.simulated)


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


def has_gpu() -> bool:
    """Whether runs of size ``small`` and ``paper`` can be made here."""
    return host.resolve_device("auto") == "cuda"
