"""Base of Harmony's exhibits: beside runs stand estimates and plans, since nobody has the
paper's values.

Reference estimates of the authors' own model take the place of published values
(published/harmony.py), and plans of the published settings, theirs and ours, under our simulator
(published/harmony_plans.py). Both are kept in the repository and shown at every size. Where all is
to be done again and the published profiles are at hand, an exhibit also plans again; its answers
are kept in the results folder and shown instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import pandas as pd

from workbench.core.bytesize import format_bytes
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.base import Exhibit, Opened
from workbench.exhibits.harmony import sizes
from workbench.exhibits.harmony.sizes import HarmonySize
from workbench.exhibits.harmony.table import COLUMNS, model_label, table
from workbench.exhibits.preview import UNKNOWN, cached, total
from workbench.figures import draw
from workbench.figures.rows import MEASURED, join, label_of, pick
from workbench.figures.verdict import Verdict, as_table
from workbench.model.corpus import STDLIB
from workbench.published import harmony_plans
from workbench.published.harmony import profiles_folder
from workbench.runs.planning import answer
from workbench.runs.progress import format_seconds
from workbench.runs.store import Store

ESTIMATES = (
    "Reference estimates: what the authors' own scheduler says of these settings, recomputed from "
    "their published profiles. They are not measurements; the paper's values are not known."
)
OTHER_END = "Thin bars: the same estimate without overlap of transfers and compute."
"""Sentences that several figures have in their small print."""
NO_GPU = "no GPU can be used here, so the published sizes are estimated and simulated"
PREVIEW = ["run", "model", "ranks", "minibatch", "state", "time", "device", "host", "note"]
"""Columns; `device`: memory of each device."""
NOT_RUN = "nothing has been run at this size yet"


class HarmonyExhibit(Exhibit):
    """A figure or table of the paper. Rows have the columns of `table.COLUMNS`."""

    system, headline_form = "Harmony", "{words}"
    introduction = (
        "Harmony (VLDB'22): models beyond all devices of a server",
        "Exhibits of the second system. The values of its paper are not known to this project. "
        f"{ESTIMATES} Dotted edges are reference estimates, hatched (in lines: half filled) "
        "is simulated, filled is measured.",
    )
    columns = {
        "model": "model", "label": "method", "ranks": "devices", "minibatch": "minibatch",
        "setting": "setting", "quantity": "quantity", "value": "value", "unit": "unit",
        "source": "source", "variant": "of", "status": "status", "how": "how", "note": "note",
    }  # fmt: skip
    stored = "Shown from stored results and kept plans."
    labels = {"model": model_label, "method": label_of, "swapped": label_of}
    plans: ClassVar[tuple[str, ...]] = ()
    """Keys of the kept plans (`harmony_plans.questions`), by their figure: what can be planned
    again."""
    without_gpu: ClassVar[tuple[str, str]] = (NO_GPU, "estimated")
    """Why nothing runs where there is no GPU, and what becomes of the exhibit then."""

    @property
    def headline(self) -> str:
        return super().headline.replace("Harmony,", "Harmony (VLDB'22),")

    @property
    def words(self) -> str:
        number = self.figure.removeprefix("harmony_")
        return "Harmony, " + ("table 1" if number == "table1" else f"figure {number}")

    def sized(self, size: str, text: str = STDLIB) -> HarmonySize:
        return sizes.named(size)

    def printed(self, **facts: Any) -> str:
        return super().printed(estimates=ESTIMATES, other_end=OTHER_END, **facts)

    # -- runs -----------------------------------------------------------------------------------

    def preview(self, at: Opened) -> pd.DataFrame:
        if at.simulated:
            why, state = self.without_gpu
            return pd.DataFrame([{"run": "nothing runs", "state": state, "note": why}])
        lines, seconds = [], []
        for point in [point for stage in self.stages(at) for point in stage.points]:
            took = 0.0 if point.record else expected(point.spec, at.store)
            memory = {} if point.record else _memory(point.spec, at.store)
            lines.append(_line(point.spec, point.record, took) | memory)
            seconds.append(took)
        if not lines:
            note = "estimates and plans of the published settings are kept"
            return pd.DataFrame([{"run": "nothing runs", "state": "kept", "note": note}])
        blank = dict.fromkeys(("model", "ranks", "minibatch"), "")
        lines.append({"run": "all", **blank, **total(seconds)[1]})
        return pd.DataFrame(lines, columns=PREVIEW).fillna("")

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

    @abstractmethod
    def known(self, size: HarmonySize, plans: pd.DataFrame) -> pd.DataFrame:
        """Reference estimates, and plans under our simulator."""

    def absent(self, size: HarmonySize, why: str) -> pd.DataFrame:
        """A row for each thing that was not measured, and why."""
        return table([])

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        """Reference estimates, plans, what was measured on named hardware, and what the records
        say; where they say nothing, why."""
        figure, size = self.figure, at.size.name
        kept = _kept_here(at.store.published_here(), figure, size)
        if records:
            own = self.rows(records, at.store, at.size)
        elif kept.empty:
            own = self.absent(at.size, self.without_gpu[0] if at.simulated else NOT_RUN)
        else:
            own = table([])
        own = own.assign(size=size)
        return join(self.known(at.size, plans_of(at.store)), kept, own).assign(figure=figure)

    def verdicts(self, rows: pd.DataFrame) -> list[Verdict]:
        """The judged parts of the claim, each by the series that can tell."""
        return self.judge.verdicts(rows)

    def judged(self, at: Opened, rows: pd.DataFrame) -> pd.DataFrame:
        return as_table(self.verdicts(rows), "reference")

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


def expected(spec: RunSpec, store: Store) -> float | None:
    """Seconds of earlier runs of the method on as many ranks; None where there was none."""
    alike = [
        record.seconds
        for record in store.records()
        if record.status == "ok" and record.seconds and record.method == spec.method
        and (record.spec["ranks"], record.spec["device"]) == (spec.ranks, spec.device)
    ]  # fmt: skip
    return median(alike) if alike else None


def _memory(spec: RunSpec, store: Store) -> dict[str, str]:
    """Memory that the plan says a run needs, or why it cannot run; where packs are to be searched
    for, which takes longer than a preview may, the cap of its devices."""
    cap = spec.device_memory
    unknown = {"device": f"at most {format_bytes(cap)}" if cap else UNKNOWN, "host": UNKNOWN}
    packs = spec.method in sizes.HARMONY and spec.options.backward_packs == "auto"
    divides = spec.method in sizes.HARMONY + sizes.SWAPPED
    sizes_too = divides and spec.options.forward_size == "auto"
    if packs or sizes_too:
        return unknown
    try:
        found = answer(spec, store)
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


def _line(spec: RunSpec, record: RunRecord | None, seconds: float | None) -> dict[str, Any]:
    done = record is not None
    return {
        "run": label_of(spec.method),
        "model": f"{spec.model.family}, {spec.model.layers} layers of {spec.model.hidden}",
        "ranks": spec.ranks,
        "minibatch": spec.batch,
        "state": cached(record) if done else "to run",
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
