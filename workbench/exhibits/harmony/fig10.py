"""Harmony figure 10: throughput of four models by minibatch, beside what swaps without packs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.harmony.base import HarmonyExhibit, not_run, nothing_reduced
from workbench.exhibits.harmony.sizes import HARMONY, PEERS, PP, SWAPPED, HarmonySize
from workbench.exhibits.harmony.table import (
    as_speed,
    both,
    estimated,
    missing,
    model_label,
    planned,
    recomputed,
    table,
)
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.figures import draw
from workbench.figures.rows import MEASURED, OUR_PLAN, REFERENCE, join, label_of, pick
from workbench.published.harmony import FOUR, MODELS
from workbench.runs.store import Store

GPUS = 4
ON_ONE = "0 and 1 packs"
"""How a setting ends that leaves all layers to one GPU."""


def lead(asked: Asked) -> Found:
    """Throughput of Harmony-PP over Harmony-DP's, and why it is not the larger one, as far as the
    estimates say so."""
    told = asked.inside((REFERENCE, ""))
    ratio, why = told.ratio(), ""
    if ratio is not None and ratio < 1:
        setting = pick(told.of_series(), method=PP)["setting"]
        alone = ": the published search gives Harmony-PP one GPU" if any(
            name.endswith(ON_ONE) for name in setting
        ) else ""  # fmt: skip
        why = (
            f"neither is it in the estimate{alone}; in our plans both modes use all, and replicas "
            "hide their loads and divide their updates"
        )
    return Found(asked.ratio(), why_not=why)


class FourModels(HarmonyExhibit):
    """A panel a published model, and what ran here."""

    plans = ("10",)
    metrics = by_name(lead)

    def specs(self, size: HarmonySize) -> list[RunSpec]:
        """Both modes and the baselines on the most devices, for every model and minibatch."""
        ranks = size.most_here()
        return [
            size.spec(name, trained, ranks, minibatch=minibatch)
            for trained in size.four
            for minibatch in size.minibatches.get(trained.name, (trained.minibatch,))
            for name in (*trained.modes, *size.baselines(trained))
        ]

    def rows(self, records: list[RunRecord], store: Store, size: HarmonySize) -> pd.DataFrame:
        """Samples per second, measured and predicted."""
        names = {trained.model: trained.name for trained in size.four}
        out = []
        for record in records:
            model = names[RunSpec.from_dict(record.spec).model]
            out += both(record, "samples_per_s", model, x=record.spec["batch"])
        return table(out)

    def known(self, size: HarmonySize, plans: pd.DataFrame) -> pd.DataFrame:
        """Reference estimates, and our plans under our simulator."""
        plans = pick(plans, figure=self.plans)
        told = estimated("10", "iteration_s")
        others = recomputed(plans[~plans["model"].isin(set(told["model"]))])
        return as_speed(join(told, others, planned(plans)))

    def absent(self, size: HarmonySize, why: str) -> pd.DataFrame:
        return table(
            [
                missing(method, trained.name, "samples_per_s", why, minibatch=trained.minibatch)
                for trained in size.four
                for method in (*trained.modes, *size.baselines(trained))
            ]
        )

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        other = rows[~rows["model"].isin(MODELS)]
        ran = other["value"].notna().any()
        draw.prepare(figure, 2 if ran else 1.2)
        axes = figure.subplot_mosaic(
            [list(FOUR), ["here"] * len(FOUR)], height_ratios=(1, 1 if ran else 0.12)
        )
        drawn = []
        for place, model in enumerate(FOUR):
            part = pick(rows, model=model, variant=("", OUR_PLAN))
            drawn.append(part.dropna(subset=["value"]))
            words = "throughput (samples/s)" if place == 0 else ""
            batches = sorted(set(part["x"].dropna()))
            draw.lines(axes[model], part, "minibatch (samples)", words, log="x", ticks=batches)
            draw.title(axes[model], f"{model_label(model)}, {GPUS} GPUs")
        names = {name: name for name in dict.fromkeys(other["model"])}
        if ran:
            draw.bars(axes["here"], other, names, "throughput (samples/s)", column="model")
            ranks = ", ".join(f"{n:g}" for n in sorted(set(other["ranks"].dropna())))
            draw.title(axes["here"], f"here, reduced models, {ranks} devices")
        else:
            nothing_reduced(axes["here"], rows, letters=110)
        shown = join(*drawn, other.dropna(subset=["value"]))
        draw.legend(figure, shown, as_lines=True)
        bars = "Bars: hatched as the schedule was simulated before it ran, filled as measured."
        facts = {
            "lone": _lone(rows),
            "bars": bars if ran else "",
            "lacking": " ".join(_not_run(rows)),
        }
        draw.small_print(figure, self.printed(**facts))


def _lone(rows: pd.DataFrame) -> str:
    """Models and minibatches for which the published search gives Harmony-PP one GPU, in words."""
    told = pick(rows, source=REFERENCE, method=PP)
    told = told[told["setting"].str.endswith(ON_ONE)]
    words = [
        f"{model_label(model)} that is a plan for one GPU at minibatches of "
        f"{', '.join(f'{n:g}' for n in sorted(part['minibatch']))}"
        for model, part in told.groupby("model", sort=False)
    ]
    why = "since it ranks a plan that fits one GPU by a thousandth of its time"
    return f" Of {' and of '.join(words)}, {why}." if words else ""


def _not_run(rows: pd.DataFrame) -> list[str]:
    """Methods that some models ran by and others did not, and why."""
    own = pick(rows, source=MEASURED)
    models = list(dict.fromkeys(own["model"]))
    if own["key"].eq("").all():
        return []  # none ran, and the panel says why
    lacking = {
        method: [model_label(m) for m in models if pick(own, model=m, method=method).empty]
        for method in dict.fromkeys(own["method"])
    }
    few = [f"{label_of(m)} of {', '.join(lacking[m])}" for m in HARMONY + SWAPPED if lacking.get(m)]
    libraries = [label_of(m) for m in PEERS if lacking.get(m)]
    out = [not_run(rows, few)]
    if libraries:
        out.append(f"{', '.join(libraries)}: decoders only, which is what these libraries train.")
    return out
