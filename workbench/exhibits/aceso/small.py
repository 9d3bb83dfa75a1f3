"""The artifact's small settings, from profiles to training: searches, predictions, and a plan that
trains as one process does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from workbench.core import host
from workbench.core.model_spec import ModelSpec
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits import dials
from workbench.exhibits.aceso import base
from workbench.exhibits.aceso.found import ACTUAL, COST, FOLDER, MEMORY, RATE, TIME, found_rows
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.exhibits.preview import Stage
from workbench.figures import draw as drawing
from workbench.figures.rows import MEASURED, amounts, hardware_of, how_measured, note_of, pick
from workbench.figures.style import GREY, LOOKS, lighter
from workbench.methods.aceso.options import digest, keep, narrowed, sizes_of
from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.settings import SETS
from workbench.model.named import ALSO
from workbench.published.aceso import DATABASE

TRAINED = "gpt"
LOSS, PLAN, ALONE = "loss", "the plan", "one process"
COLOURS = {
    "actual": GREY, "predict": LOOKS[base.ACESO].color, "predict (norm)": LOOKS[base.ACESO].color,
    "predict (extra)": lighter(LOOKS[base.ACESO].color), ACTUAL: LOOKS["plain"].color,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The dials of a size."""

    name: str
    device: str = "cpu"
    models: tuple[str, ...]
    plans: int
    """Plans that a search rates at most, for each number of stages."""
    steps: int
    narrow: dict[str, int] = field(default_factory=dict)
    """Sizes that take the places of the published ones, to train; none: published widths."""


def as_alone(asked: Asked) -> Found:
    """The least ratio, either way, of losses under the plan and in one process."""
    plan, alone = (
        pick(asked.of_series(), label=label).set_index("step")["value"] for label in (PLAN, ALONE)
    )
    ratios = (plan / alone).dropna()
    return Found(float(min(ratios.min(), 1 / ratios.max())) if len(ratios) else None)


class Small(base.AcesoExhibit):
    """Throughput, seconds of searches, predictions, and losses of a plan that trains."""

    runs, dials = True, staticmethod(partial(dials.named, "aceso_small", Size))
    metrics = by_name(base.same, base.never_slower, as_alone)

    def specs(self, size: Any) -> list[RunSpec]:
        """The published plan of GPT; where it is made narrower, also all of it in one process.
        Nothing where there are not as many GPUs."""
        wide, narrow = base.golden(TRAINED).plan, dict(size.narrow)
        if size.device == "cuda" and len(host.gpus()) < wide.gpus:
            return []
        plan, spec = _trained(wide, narrow, size)
        micros = -(-plan.subject.batch // plan.micro)
        alone = spec.with_(method="plain", ranks=1, plan="", microbatches=micros)
        return [spec, alone] if narrow else [spec]

    def stages(self, at: Opened, *, force: bool = False, planned: bool = False) -> Iterator[Stage]:
        """The runs, whose plan is kept among the results."""
        if specs := self.specs(at.size):
            keep(
                _trained(base.golden(TRAINED).plan, dict(at.size.narrow), at.size)[0], at.store.root
            )
            yield at.sweep(specs, force=force)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        chosen = [each for each in SETS["small"] if each.model in at.size.models]
        rows = [base.told(row) for row in self.published().itertuples()]
        rows += found_rows(chosen, DATABASE, Effort(plans=at.size.plans), at.store.root / FOLDER)
        rows += [row for record in records for row in _measured(record, at.size)]
        return self.tabled(at, rows, "quantity", "step")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Throughput above; then seconds of searches, times, memory and losses."""
        drawing.prepare(figure, 2.6)
        grid = figure.add_gridspec(3, 2)
        rates, costs = pick(rows, quantity=RATE), pick(rows, quantity=COST)
        _bars(figure.add_subplot(grid[0, :]), rates, "samples/s", "throughput", number="{:.3g}")
        below = figure.add_subplot(grid[1, 0])
        _bars(below, costs, "s", "seconds of searches", number="{:.3g}")
        below.set(yscale="log", ylim=(0.03, 1e6))
        for place, quantity, unit in ((grid[1, 1], TIME, "ms"), (grid[2, 0], MEMORY, "MB")):
            axes = figure.add_subplot(place)
            words = f"an iteration ({unit})" if quantity == TIME else "memory of a GPU (MB)"
            part = pick(rows, quantity=quantity)
            _bars(axes, part, unit, words, number="{:,.0f}", colors=COLOURS)
            if quantity == MEMORY:
                axes.axhline(base.LIMIT_MB, color=GREY, lw=0.7, ls=(0, (4, 2)))
        axes, losses = figure.add_subplot(grid[2, 1]), pick(rows, quantity=LOSS)
        if losses["value"].notna().any():
            for (label, style), width in zip(
                {PLAN: "-", ALONE: "--"}.items(), (2.4, 1), strict=True
            ):
                part = pick(losses, label=label)
                color = LOOKS[base.ACESO if label == PLAN else "plain"].color
                axes.plot(part["step"], part["value"], style, lw=width, color=color, label=label)
            axes.set(xlabel="step", ylabel="loss")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.legend(frameon=False)
            drawing.title(axes, "GPT 1.3B's plan, narrower: measured")
        else:
            drawing.empty(axes, "not run: the plan takes four GPUs, or a narrower model")
        shades = [(drawing.patch(color=color), label) for label, color in COLOURS.items()
                  if label in set(rows["label"])]  # fmt: skip
        dashed = drawing.stroke(color=GREY, lw=0.7, ls=(0, (4, 2))), "limit"
        shown = [
            *base.keys(base.MEGATRON, base.ALPA, base.ACESO, base.OURS),
            *shades,
            *base.sources(rows),
            dashed,
        ]
        drawing.place_legend(figure, shown)
        drawing.small_print(figure, self.printed())


def _bars(axes: Any, rows: pd.DataFrame, unit: str, title: str, **more: Any) -> None:
    """A group of bars a model."""
    groups = {}
    for pair in dict.fromkeys(rows["pair"]):
        model, size = pair.split()
        groups[pair] = f"{base.MODELS[model]} {size.replace('_', '.')}"
    drawing.bars(axes, rows, groups, unit, column="pair", **more)
    drawing.title(axes, title)


def _trained(wide: Plan, narrow: dict[str, int], size: Any) -> tuple[Plan, RunSpec]:
    """The plan that trains, and its run."""
    batch = narrow.pop("batch", wide.subject.batch)
    sizes = sizes_of(wide)
    model = ModelSpec(**ALSO[sizes["family"]] | sizes | narrow)
    dtype = "bf16" if size.device == "cuda" and not narrow else "fp32"
    alike = {"model": model, "batch": batch, "steps": size.steps, "device": size.device}
    spec = RunSpec.of(method="aceso", ranks=wide.gpus, dtype=dtype, **alike)
    plan = narrowed(wide, spec)
    micros = -(-batch // plan.micro)
    return plan, spec.with_(plan=digest(plan), microbatches=micros)


def _measured(record: RunRecord, size: Any) -> Iterator[dict[str, Any]]:
    """Losses; at published widths, also time and memory."""
    planned = record.spec["method"] == "aceso"
    about = {
        "method": base.ACESO if planned else "plain", "label": PLAN if planned else ALONE,
        "pair": f"{TRAINED} 1_3B", "x": base.GPUS, "source": MEASURED, "how": how_measured(record),
        "status": record.status, "note": note_of(record), "hardware": hardware_of(record),
        "device": size.device, "busy": record.busy, "key": record.key,
    }  # fmt: skip
    for step, loss in enumerate(record.losses, 1):
        yield about | {"quantity": LOSS, "unit": "nats", "step": step, "value": loss, "busy": ""}
    if planned and not size.narrow and record.status == "ok":
        value, low, high = amounts(record, "ms")
        here = about | {"label": ACTUAL}
        yield here | {"quantity": TIME, "unit": "ms", "value": value, "low": low, "high": high}
        held = (record.peak_bytes.get("device") or 0) / 2**20
        yield here | {"quantity": MEMORY, "unit": "MB", "value": held}
