"""Varuna's schedule: its lists, Gantt charts in theory, and a step that ran beside its plan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.chart import draw_chart
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.exhibits.varuna.base import VarunaExhibit
from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.rows import HERE, MEASURED, SIMULATED, pick, quotient
from workbench.figures.style import PAGE_IN
from workbench.methods.pipeline import ideal, quick
from workbench.methods.pipeline.orders import B, F, R
from workbench.methods.pipeline.policies import POLICIES
from workbench.published.tables import FOLDER
from workbench.runs.store import Store
from workbench.runs.timeline import load_timeline
from workbench.schedule.looks import LOOKS
from workbench.schedule.simulate import Event

RANKS, MICROS = 4, 5
THEORY = ("varuna", "varuna-list", "gpipe")
"""Policies of the charts in quanta."""
KINDS = (F, R, B)
CHART_IN = 0.95
LIST, STEP, PASS = "list", "step", "pass"
"""Quantities: a published list, a step of a chart, a pass in it."""
Span = tuple[int, str, int, float, float]
"""Rank, kind, micro-batch, start and end of a pass."""


def published_lists(asked: Asked) -> Found:
    """Share of the published lists that are ours."""
    listed = pick(asked.rows, quantity=LIST)["sound"]
    return Found(float(listed.mean()), names={"count": len(listed)})


def over_varuna(asked: Asked) -> float | None:
    """Quanta of a step of GPipe over Varuna's."""
    return quotient(*(asked.value({"label": POLICIES[name].label}) for name in ("gpipe", "varuna")))


def in_order(asked: Asked) -> float | None:
    """Share of ranks whose forward passes, and whose others, are in the order of Varuna's list."""
    passes = pick(asked.rows, quantity=PASS, source=MEASURED)
    if passes.empty:
        return None
    ranks, micros = (1 + int(passes[name].max()) for name in ("rank", "micro"))
    kept = []
    for rank, listed in enumerate(POLICIES["varuna"].passes(ranks, micros)):
        own = pick(passes, rank=rank).sort_values("start")
        ran = [*zip(own["kind"], own["micro"], strict=True)]
        told = [(each.kind, each.micro) for each in listed]
        # Sorting is stable: forward passes first, each part in its own order.
        first, other = (sorted(those, key=lambda each: each[0] != F) for those in (ran, told))
        kept.append(first == other)
    return sum(kept) / ranks


class Schedules(VarunaExhibit):
    """Lists of ranks, charts in theory, and one step simulated and measured."""

    metrics = by_name(published_lists, over_varuna, in_order)

    def specs(self, size: Any) -> list[RunSpec]:
        """Varuna on all ranks of the size."""
        batch, ranks = MICROS * (size.text.micro or 4), size.most_here()
        more = {"microbatches": MICROS, "steps": size.steps, "device_memory": None}
        return [size.spec("varuna", size.text, ranks=ranks, minibatch=batch, **more)]

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [*_lists(), *_theory(), *(row for each in records for row in _ran(each, at.store))]
        if not records:
            none = {"quantity": STEP, "method": "varuna", "source": MEASURED}
            rows.append(none | {"status": self.unmeasured(at)})
        return self.tabled(at, rows, "quantity", "chart", "rank", "kind", "micro", "start", "end")

    def listed(self, rows: pd.DataFrame) -> pd.DataFrame:
        return super().listed(rows[rows["quantity"] != PASS])

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """A chart for each step: in quanta, then simulated and measured in milliseconds."""
        steps, passes = pick(rows, quantity=STEP), pick(rows, quantity=PASS)
        figure.set_size_inches(PAGE_IN, CHART_IN * len(steps))
        until = passes.groupby("unit")["end"].max()
        last = steps.drop_duplicates("unit", keep="last").index
        for axes, step in zip(figure.subplots(len(steps), 1), steps.itertuples(), strict=True):
            if pd.isna(step.value):
                drawing.empty(axes, f"measured: {drawing.missing_words(step.status)}", 110)
                continue
            part = pick(passes, chart=step.chart, source=step.source)
            draw_chart(axes, part, until[step.unit], row="rank", letters=True)
            drawing.title(axes, f"{step.chart}, {step.source}: {step.value:.4g} {step.unit}")
            axes.tick_params(labelbottom=step.Index in last, labelsize=6)
            axes.set_xlabel(f"time ({step.unit})" if step.Index in last else "", fontsize=7)
        kinds = [(drawing.patch(color=LOOKS[kind].color), LOOKS[kind].words) for kind in KINDS]
        drawing.place_legend(figure, kinds)
        drawing.small_print(figure, self.printed())


def _lists() -> Iterator[dict[str, Any]]:
    """Lists that are published (`note`), and whether ours agree (`sound`)."""
    published = json.loads((FOLDER / "varuna_lists.json").read_text())["lists"]
    about = {"quantity": LIST, "source": SIMULATED, "status": "ok", "how": "orders.py"}
    for name, ranks, micros, rank, told in (each.values() for each in published):
        ours = " ".join(map(str, POLICIES[name].passes(ranks, micros)[rank]))
        label = f"{POLICIES[name].label}: {micros} micro-batches, rank {rank} of {ranks}"
        yield about | {"method": name, "label": label, "note": told, "sound": ours == told}


def _theory() -> Iterator[dict[str, Any]]:
    """A step of each policy in quanta, and its passes."""
    for policy in (POLICIES[name] for name in THEORY):
        links, passes = quick.Links(seconds=[0.0] * (RANKS - 1)), policy.passes(RANKS, MICROS)
        ran = quick.timeline(passes, [ideal.QUANTA] * RANKS, links, policy.rule)
        about = {"method": policy.method, "label": policy.label, "unit": "quanta", "status": "ok"}
        about |= {"chart": f"{policy.label}, {RANKS} ranks, {MICROS} micro-batches"}
        spans = [(t.position, t.each.kind, t.each.micro, t.start_s, t.end_s) for t in ran]
        yield from _step(spans, about | {"source": SIMULATED, "how": "in theory"})


def _ran(record: RunRecord, store: Store) -> Iterator[dict[str, Any]]:
    """The last step of a run, simulated and measured; why it has none, where it has none."""
    about = tidy.measured(record, "ms") | {"quantity": STEP, "low": None, "high": None}
    if record.status != "ok":
        yield about
        return
    try:
        ran = load_timeline(store.folder(record.key))
    except (FileNotFoundError, ValueError) as error:
        yield about | {"value": None, "status": f"its timeline is not usable: {error}"}
        return
    ranks, micros = record.spec["ranks"], record.parts
    about |= {"chart": f"Varuna on {ranks} ranks, {micros} micro-batches", "how": "its last step"}
    before = {"source": SIMULATED, "variant": HERE}
    yield from _step(_last_step(ran.predicted), about | before)
    yield from _step(_last_step(ran.events), about)


def _last_step(events: Iterable[Event]) -> list[Span]:
    """Passes of a rank's stage in ms, each over the units that it goes through."""
    passes = pd.DataFrame([e for e in events if e.kind in KINDS])
    if passes.empty:
        return []
    passes = passes[passes["step"] == passes["step"].max()]
    found = passes.groupby(["rank", "kind", "microbatch"], sort=False).agg(
        start=("start_s", "min"), end=("end_s", "max")
    )
    times = (found - found["start"].min()) * 1e3
    return [(*key, start, end) for key, start, end in times.itertuples()]


def _step(spans: list[Span], about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of a step and of its passes; none where it has no pass."""
    if spans:
        yield about | {"quantity": STEP, "value": max(end for *_, end in spans)}
    for rank, kind, micro, start, end in spans:
        span = {"rank": rank, "kind": str(kind), "micro": micro, "start": start, "end": end}
        yield about | {"quantity": PASS, "value": end - start, **span}
