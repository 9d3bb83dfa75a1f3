"""An exhibit of Harmony: a session like any other, beside whose runs stand estimates and plans.

The paper's values are not known. Reference estimates of the authors' own model take their place
(published/harmony.py), and plans of the published settings, theirs and ours, under our simulator
(published/harmony_plans.py). Both are kept in the repository and shown at every size. Where all is
to be done again (`force`) and the published profiles are at hand, an exhibit also plans again; its
answers are kept in the results folder and shown instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.core.bytesize import format_bytes
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.preview import UNKNOWN, total
from workbench.exhibits.session import PLOT_HEIGHT_IN, Session, Stage, records_of
from workbench.figures.harmony import own_text, sizes
from workbench.figures.harmony.exhibit import HarmonyExhibit
from workbench.figures.harmony.table import COLUMNS, MEASURED, join, table
from workbench.figures.style import PAGE_IN
from workbench.figures.verdict import RATIOS, as_table
from workbench.model.corpus import STDLIB
from workbench.published import harmony_plans
from workbench.published.harmony import profiles_folder
from workbench.runs.events import Event
from workbench.runs.planning import answer
from workbench.runs.progress import Progress, format_seconds
from workbench.runs.store import Store
from workbench.shown import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_GPU = "no GPU can be used here, so the published sizes are estimated and simulated"
NO_LOSSES = (
    "no GPU can be used here, and losses of the published size can only be measured: there is "
    "nothing to show"
)
"""Of figures 13 and 21, of which nothing is estimated or simulated."""
PREVIEW = ["run", "model", "ranks", "minibatch", "state", "time", "device", "host", "note"]
"""Columns; `device`: memory of each device."""
NOT_RUN = "nothing has been run at this size yet"
TITLES = dict(zip(RATIOS, ("reference ratio", "ratio here", "here / reference"), strict=True))
"""Of the columns of verdicts: the reference is an estimate, nothing that was published."""


class HarmonySession(Session):
    """An exhibit of Harmony at a size, and the store its runs are in."""

    exhibit: HarmonyExhibit

    def __init__(
        self, exhibit: HarmonyExhibit, size: str, store: Store, text: str = STDLIB
    ) -> None:
        """`text`: what figures 13 and 21 train on (`own_text.found`)."""
        dials = own_text.trained_on(sizes.named(size), exhibit.FIGURE, text)
        super().__init__(exhibit, dials, store)
        self.text = text

    @property
    def _only_measured(self) -> bool:
        return self.exhibit.FIGURE in own_text.READS

    @property
    def _no_gpu(self) -> str:
        return NO_LOSSES if self._only_measured else NO_GPU

    # -- runs -----------------------------------------------------------------------------------

    def preview(self) -> pd.DataFrame:
        """What `run` would do: one row a run, with what is known of its time and memory, and one
        for all of them together."""
        if self.simulated:
            state = "nothing to show" if self._only_measured else "estimated"
            return Shown([{"run": "nothing runs", "state": state, "note": self._no_gpu}])
        points = self.sweep({}).points
        if not points:
            note = "estimates and plans of the published settings are kept"
            return Shown([{"run": "nothing runs", "state": "kept", "note": note}])
        lines, seconds = [], []
        for point in points:
            took = 0.0 if point.record else self._expected(point.spec)
            memory = {} if point.record else self._memory(point.spec)
            lines.append(_line(point.spec, point.record, took) | memory)
            seconds.append(took)
        blank = dict.fromkeys(("model", "ranks", "minibatch"), "")
        lines.append({"run": "all", **blank, **total(seconds)[1]})
        return Shown(pd.DataFrame(lines, columns=PREVIEW).fillna(""))

    def _memory(self, spec: RunSpec) -> dict[str, str]:
        """What the plan says that a run needs, or why it cannot; where packs are to be searched
        for, which takes longer than a preview may, the cap of its devices."""
        cap = spec.device_memory
        unknown = {"device": f"at most {format_bytes(cap)}" if cap else UNKNOWN, "host": UNKNOWN}
        packs = spec.method in sizes.HARMONY and spec.options.backward_packs == "auto"
        sizes_too = (
            spec.method in sizes.HARMONY + sizes.SWAPPED and spec.options.forward_size == "auto"
        )
        if packs or sizes_too:
            return unknown
        try:
            found = answer(spec, self.store)
        except ValueError:
            return unknown
        plan = found.plan
        if plan.fits:
            peaks = plan.peak_bytes
            return unknown | {tier: format_bytes(peaks[tier]) for tier in unknown if tier in peaks}
        if found.source == "measured":
            return unknown | {"state": "cannot fit", "note": plan.binding}
        first = "a first guess, this machine is not measured yet"
        return unknown | {"note": f"{first}: {plan.binding}"}

    def _expected(self, spec: RunSpec) -> float | None:
        """Seconds of earlier runs of the method on as many ranks; None where there was none."""
        alike = [
            record.seconds
            for record in self.store.records()
            if record.status == "ok" and record.seconds and record.method == spec.method
            and (record.spec["ranks"], record.spec["device"]) == (spec.ranks, spec.device)
        ]  # fmt: skip
        return median(alike) if alike else None

    def run(
        self, force: bool = False, on_event: Callable[[Event], None] | None = None
    ) -> pd.DataFrame:
        """Run what has no record yet (all of it with `force`, and plan again where that can be);
        returns the rows.

        Blocks. Without `on_event` progress goes to standard output as plain lines.
        """
        if force:
            self._plan(Progress(sys.stdout).line)
        return self.rows(self._ran(force, on_event))

    def stages(self, force: bool = False) -> Iterator[Stage]:
        """One sweep, where anything runs."""
        if not self.simulated and self.exhibit.specs(self.size, {}):
            yield self.sweep({}, force=force)

    def _plan(self, echo: Callable[[str], None]) -> None:
        """Answer the exhibit's questions again; does nothing where the profiles are not there."""
        folder = profiles_folder(self.store.root)
        if folder is None or not self.exhibit.PLANS:
            return
        from workbench.published.harmony_answers import answers

        rows = []
        for figure in self.exhibit.PLANS:
            for question in harmony_plans.questions(figure):
                echo(f"planning {question.words}")
                rows += answers(question, folder)
        try:
            self._own_plans.parent.mkdir(parents=True, exist_ok=True)
            harmony_plans.write(rows, self._own_plans)
        except OSError as error:
            raise self.store.unusable(error) from error

    @property
    def _own_plans(self) -> Path:
        return self.store.root / "plans" / harmony_plans.KEPT.name

    def plans(self) -> pd.DataFrame:
        """The plans there are: kept ones, and instead of a figure's those made here."""
        kept = harmony_plans.kept()
        if not self._own_plans.exists():
            return kept
        own = harmony_plans.kept(path=self._own_plans)
        return pd.concat([kept[~kept["figure"].isin(set(own["figure"]))], own], ignore_index=True)

    def records(self) -> list[RunRecord]:
        """Records there are of this exhibit's runs; nothing is run."""
        return [] if self.simulated else records_of(self.sweep({}))

    def rows(self, records: list[RunRecord] | None = None) -> pd.DataFrame:
        """Reference estimates, plans, what was measured on named hardware, and what the records
        say; where they say nothing, why."""
        figure, size = self.exhibit.FIGURE, self.size.name
        records = self.records() if records is None else records
        kept = _kept_here(self.store.published_here(), figure, size)
        if records:
            own = self.exhibit.rows(records, self.store, self.size)
        elif kept.empty:
            own = self.exhibit.absent(self.size, self._no_gpu if self.simulated else NOT_RUN)
        else:
            own = table([])
        own = own.assign(size=size)
        return join(self.exhibit.known(self.size, self.plans()), kept, own).assign(figure=figure)

    # -- what they show -------------------------------------------------------------------------

    figsize = (PAGE_IN, PLOT_HEIGHT_IN)

    def paint(self, figure: Figure, rows: pd.DataFrame) -> None:
        """Draw on an empty figure."""
        self.exhibit.draw(figure, rows)

    def verdict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Claim, reference ratio and own one, whether it holds and why."""
        return Shown(as_table(self.exhibit.verdicts(rows)).rename(columns=TITLES))

    def provenance(self) -> pd.DataFrame:
        """Where this exhibit's numbers come from: estimates, plans, machine, code, dates."""
        facts = {row.what: row.is_ for row in super().provenance().set_axis(
            ["what", "is_"], axis=1).itertuples()}  # fmt: skip
        if self._only_measured:
            more = {
                "reference": "none: the values of the paper are not known, and nothing estimates "
                "losses",
                "text": own_text.described(self.size, self.exhibit.FIGURE, self.text),
            }
            if self.simulated:
                facts["numbers"] = NO_LOSSES
        else:
            plans = self.plans()
            days = f"{plans['planned'].min()} to {plans['planned'].max()}"
            more = {
                "reference": "estimates of the authors' own model, in "
                "workbench/published/harmony.csv",
                "plans": f"on the published profiles, {days}",
            }
        return Shown([*more.items(), *facts.items()], columns=["what", "is"])


def _line(spec: RunSpec, record: RunRecord | None, seconds: float | None) -> dict[str, Any]:
    done = record is not None
    return {
        "run": spec.method,
        "model": f"{spec.model.family}, {spec.model.layers} layers of {spec.model.hidden}",
        "ranks": spec.ranks,
        "minibatch": spec.batch,
        "state": f"cached {record.started[:16].replace('T', ' ')}" if done else "to run",
        "time": "" if done else UNKNOWN if seconds is None else format_seconds(seconds),
        "note": record.message if done else "",
    }


def _kept_here(frame: pd.DataFrame, figure: str, size: str) -> pd.DataFrame:
    """Rows of a figure and size out of tables read from ``results/published-here``."""
    if not {"figure", "size", "source", "quantity"} <= set(frame.columns):
        return table([])
    wanted = (
        frame[["figure", "size", "source"]].astype(str).eq([figure, size, MEASURED]).all(axis=1)
    )
    return table(frame[wanted].reindex(columns=list(COLUMNS)).to_dict("records"))
