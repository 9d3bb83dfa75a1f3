"""Harmony figure 12: what each method moves over the host's link in a step."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.exhibits.harmony import claims12, volumes
from workbench.exhibits.harmony.base import HarmonyExhibit
from workbench.exhibits.harmony.claims12 import GPUS, LINK, MODEL, OWN, WEIGHTS
from workbench.exhibits.harmony.sizes import DP, HARMONY, PP, SWAPPED, HarmonySize
from workbench.exhibits.harmony.table import estimated, measured, missing, of_plan, predicted, table
from workbench.figures import draw
from workbench.figures.rows import (
    BEFORE,
    FORMULA,
    MEASURED,
    OUR_PLAN,
    REFERENCE,
    SIMULATED,
    join,
    label_of,
    one,
    pick,
)
from workbench.figures.style import GREY, LOOKS, bar_look
from workbench.published import harmony_plans
from workbench.published.harmony import GIB
from workbench.runs.store import Store

PARTS = {
    "weights_in": ("weights in", "#005A94"),
    "gradients_out": ("gradients out", "#D55E00"),
    "activations_in": ("activations in", "#56B4E9"),
    "activations_out": ("activations out", "#F0CF5A"),
    "p2p": ("device to device, not over the host's link", "#222222"),
}
"""Label and colour; all five are of different lightness, since a grey print has nothing else."""
FORMULA_LINE = {"color": "#888888", "lw": 0.8, "ls": (0, (4, 2))}
ALONE = {"marker": "_", "ms": 9, "mew": 1.2, "ls": "none"}
"""Mark of the counted bytes of weights and gradients, under the mark of all bytes."""
BESIDE = {SWAPPED[0]: -0.27, SWAPPED[1]: 0.27}
"""Devices by which marks of swapping are moved: else they lie under those of Harmony."""
LEGEND_ROOM = 1.7
"""Height of the axes that hold methods' names, in heights of what is drawn."""
WEIGHTS_GIB = {MODEL: 6.102 + 0.188}
"""Weights and buffers of the published model, which the authors swap together."""


class SwapVolume(HarmonyExhibit):
    """Parts of the volume by minibatch, and all of it over devices."""

    plans = ("10",)
    metrics = claims12.METRICS

    def specs(self, size: HarmonySize) -> list[RunSpec]:
        """Both modes on every number of devices, the same without packs and baselines on the
        most."""
        runs = [size.spec(method, size.moved, ranks) for method, ranks in size.on_several()]
        most = size.ranks_here()[-1]
        others = (*SWAPPED, *size.known_peers())
        return runs + [size.spec(name, size.moved, most) for name in others]

    def rows(self, records: list[RunRecord], store: Store, size: HarmonySize) -> pd.DataFrame:
        """Bytes a step, counted by the runtime; planned; and by the formula where packs are
        pinned."""
        out = []
        for record in records:
            model, x = size.moved.name, record.spec["ranks"]
            spec = RunSpec.from_dict(record.spec)
            told = volumes.formula(spec) if record.method in HARMONY else None
            by_formula = told.to_dict() if told is not None and record.status == "ok" else {}
            for quantity in (*OWN, *record.moved_parts):
                row = measured(record, quantity, model, x=x)
                out += [row, *predicted(record, quantity, model, x=x)]
                if quantity in by_formula:
                    out.append(row | _by_formula(by_formula[quantity]))
            if record.parameters:
                weights = record.parameters * VALUE_BYTES[spec.dtype]
                out.append(row | _by_formula(weights) | {"quantity": "weights"})
        return table(out)

    def known(self, size: HarmonySize, plans: pd.DataFrame) -> pd.DataFrame:
        """Bytes of the authors' stored schedules, and of our plans on the same profile."""
        told = estimated("12", *PARTS)
        plans = pick(plans, figure=self.plans, model=MODEL, planner=harmony_plans.OURS)
        same = {"unit": "GiB", "source": SIMULATED, "variant": OUR_PLAN}
        how = "counted in the schedule of our plan, planned {}"
        own = [
            of_plan(row) | same
            | {"quantity": part, "value": getattr(row, part) / GIB, "how": how.format(row.planned)}
            for row in plans.itertuples()
            for part in PARTS
        ]  # fmt: skip
        return join(told, table(own, size="paper"))

    def absent(self, size: HarmonySize, why: str) -> pd.DataFrame:
        return table([missing(name, size.moved.name, way, why) for name in HARMONY for way in OWN])

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Parts of the volume by minibatch, and all of it over the number of devices."""
        draw.prepare(figure, 1.25)
        left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
        there = pick(rows, model=MODEL, ranks=GPUS, quantity=tuple(PARTS))
        there = there[there["source"] != MEASURED]
        _stacks(left, there)
        draw.title(left, "GPT2-XL, 4 GPUs: by minibatch")
        _over_ranks(right, rows)
        draw.title(right, "over the host's link, by devices")
        _legends(figure, left, right, rows)
        draw.small_print(figure, self.printed(absences=" ".join(absences(rows))))


def _by_formula(nbytes: int) -> dict[str, Any]:
    how = "from the packs alone"
    return {"source": FORMULA, "value": nbytes, "low": None, "high": None, "how": how}


def absences(rows: pd.DataFrame) -> list[str]:
    """Why nothing that was measured is drawn, or what is drawn once for both modes."""
    own = pick(rows, source=MEASURED)
    if own["value"].isna().all():
        why = next(iter(own["note"]), "nothing was run at this size")
        return [f"Nothing measured is drawn: {why}."]
    alone = 1 in set(pick(own, method=HARMONY)["ranks"])
    return ["On one device both modes are the same, drawn as Harmony-DP."] if alone else []


def _stacks(axes: Any, rows: pd.DataFrame) -> None:
    batches = sorted(set(rows["minibatch"]))
    kinds = [(m, s, v) for m in (DP, PP) for s, v in ((REFERENCE, ""), (SIMULATED, OUR_PLAN))]
    width = 0.86 / len(kinds)
    top = 0.0
    for place, batch in enumerate(batches):
        for i, (method, source, variant) in enumerate(kinds):
            part = pick(rows, minibatch=batch, method=method, source=source, variant=variant)
            if part["value"].isna().all():
                continue
            x, base = place + (i - (len(kinds) - 1) / 2) * width, 0.0
            for name, (_, color) in PARTS.items():
                value = one(part, quantity=name) or 0.0
                look = bar_look(color, source, variant)
                axes.bar(x, value, width * 0.84, bottom=base, **look)
                base += value
            top = max(top, base)
            words = label_of(method).removeprefix("Harmony-")
            draw.beside(axes, words, (x, base), (0, 2), ha="center", fontsize=draw.NOTE_PT)
    axes.set_xticks(range(len(batches)), [f"minibatch {int(batch)}" for batch in batches])
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, max(top, 1.0) * 1.12)
    axes.set_ylabel("GiB per step, all GPUs")


def _over_ranks(axes: Any, rows: pd.DataFrame) -> None:
    shown = per_weights(rows)
    most = max([GPUS, *shown["x"].dropna()])
    ticks = [n for n in (1, 2, 3, 4, 8) if n <= most]
    for method in HARMONY:
        values = [volumes.bound(method, n) for n in ticks]
        axes.plot(ticks, values, zorder=0.5, **FORMULA_LINE)
    if shown.empty:
        draw.empty(axes, "no bytes are known")
        return
    draw.lines(axes, beside(shown), "devices", "host bytes / bytes of weights", ticks=ticks)
    for row in beside(weights_alone(rows)).itertuples():
        axes.plot(row.x, row.value, **ALONE | {"color": LOOKS[row.method].color})


def beside(rows: pd.DataFrame) -> pd.DataFrame:
    """Marks of methods side by side: many have equal values."""
    return rows.assign(x=rows["x"] + rows["method"].map(BESIDE).fillna(0.0))


def per_weights(rows: pd.DataFrame) -> pd.DataFrame:
    """Bytes in and out together, in sizes of the model's weights, over the number of devices."""
    out = []
    there = pick(rows, model=MODEL, ranks=GPUS, minibatch=64, quantity=LINK)
    for source, variant in ((REFERENCE, ""), (SIMULATED, OUR_PLAN)):
        for method in HARMONY:
            part = pick(there, method=method, source=source, variant=variant)
            part = part.dropna(subset=["value"])
            if len(part):
                value = part["value"].sum() / WEIGHTS_GIB[MODEL]
                out.append(part.iloc[0].to_dict() | {"x": GPUS, "value": value})
    for source, variant in ((MEASURED, ""), (SIMULATED, BEFORE)):
        out += _in_weights(rows, OWN, source=source, variant=variant)
    return table(out).assign(quantity="host_traffic", unit="sizes of the weights")


def weights_alone(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of counted weights in and gradients out of Harmony's runs, in sizes of the weights."""
    out = _in_weights(rows, WEIGHTS, source=MEASURED, method=HARMONY)
    return table(out).assign(quantity="weight_traffic", unit="sizes of the weights")


def _in_weights(rows: pd.DataFrame, parts: tuple[str, ...], **of: Any) -> list[dict[str, Any]]:
    """Of each run that has all `parts` of its bytes: their sum, in sizes of its weights."""
    out = []
    told = pick(rows, quantity=parts, **of).dropna(subset=["value"])
    for key, own in told.groupby("key", sort=False):
        weights = one(rows, key=key, quantity="weights")
        if len(own) == len(parts) and weights:
            out.append(own.iloc[0].to_dict() | {"value": own["value"].sum() / weights})
    return out


def _legends(figure: Any, left: Any, right: Any, rows: pd.DataFrame) -> None:
    """Sources above, parts and methods where they are drawn."""
    small = {"fontsize": draw.NOTE_PT, "labelspacing": 0.25, "handlelength": 1.4, "borderpad": 0.1}
    parts = [draw.patch(color=color, label=words) for words, color in PARTS.values()]
    left.legend(handles=parts[::-1], loc="upper left", **small)
    lines = set(per_weights(rows)["method"])
    marks = [
        draw.stroke(color=look.color, marker=look.marker, ms=4.5, lw=0.9, label=label_of(method))
        for method, look in LOOKS.items()
        if method in lines
    ]
    if len(weights_alone(rows)):
        marks.append(draw.stroke(label="weights, gradients alone", **ALONE, color=GREY))
    marks.append(draw.stroke(label="2 N + 1, and 3: formula", **FORMULA_LINE))
    right.legend(handles=marks, loc="upper left", **small)
    right.set_ylim(top=LEGEND_ROOM * right.get_ylim()[1])
    drawn = rows[rows["source"] != FORMULA].dropna(subset=["value"])
    draw.legend(figure, drawn, methods=False)
