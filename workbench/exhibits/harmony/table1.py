"""Harmony table 1: the search of the four models, the published rules beside ours.

Three kinds of numbers meet here, and none is drawn as another: searches were timed (processor
time), steps of the plans they found are simulated, and of either there are estimates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from workbench.core.bytesize import format_bytes
from workbench.exhibits.claim_rows import stated
from workbench.exhibits.harmony.base import HarmonyExhibit
from workbench.exhibits.harmony.sizes import DP, PP, HarmonySize
from workbench.exhibits.harmony.table import estimated, model_label, planned, recomputed, table
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.figures import draw
from workbench.figures.rows import (
    MEASURED,
    OUR_PLAN,
    OUR_SEARCH,
    REFERENCE,
    SIMULATED,
    THEIR_PLAN,
    THEIR_SEARCH,
    join,
    label_of,
    one,
    pick,
    quotient,
)
from workbench.figures.style import GREY
from workbench.published.harmony import FOUR, GIB
from workbench.published.harmony_plans import CARD_BYTES

MINIBATCH, GPUS = 64, 4
SEARCHES = {OUR_PLAN: OUR_SEARCH, THEIR_PLAN: THEIR_SEARCH}
"""By whose plan was found."""
OVERLAPPED = "overlapped_estimate_s"
NOT_STORED, NOT_NAMED = "no stored search", "machine not recorded"
HEAD = (
    "model", "plan", "micro-batch, packs", "search", "tried", "memory of a GPU", "step", "estimate",
)  # fmt: skip


def no_slower(asked: Asked) -> Found:
    """The least ratio of all settings whose published plan fits the card."""
    fair = [ratio for _, ratio, fits in compared(asked.rows) if fits]
    return Found(min(fair, default=None), names={"count": len(fair)})


def clearly_faster(asked: Asked) -> Found:
    """The share of settings in which ours is so much faster, over the share in which it should."""
    told = asked.given
    ratios = [ratio for _, ratio, _ in compared(asked.rows, told["seconds"])]
    share = sum(r >= told["better"] for r in ratios) / len(ratios) if ratios else None
    return Found(quotient(share, told["share"]), names={"count": len(ratios)})


class Searches(HarmonyExhibit):
    """Seconds as bars, and a table of plans."""

    metrics = by_name(no_slower, clearly_faster)
    plans = ("10", "stored")

    def known(self, size: HarmonySize, plans: pd.DataFrame) -> pd.DataFrame:
        """Seconds of steps and searches of all kept plans, and the reference estimates."""
        steps = planned(plans).to_dict("records")
        told = estimated("table1", "search_s", "candidates")
        ten = pick(plans, figure="10")
        details = [
            row | {"quantity": quantity, "value": value, "unit": unit, "how": how, "source": source}
            | {"variant": _variant(source, row["variant"])}
            | ({"hardware": plan.machine or NOT_NAMED} if source == MEASURED else {})
            for row, plan in zip(steps, plans.itertuples(), strict=True)
            for quantity, value, unit, source, how in (
                ("search_s", plan.search_s, "s", MEASURED,
                 f"processor time, {plan.planned}"),
                ("candidates", plan.candidates, "plans", SIMULATED, "found, or in ours simulated"),
                ("device_gib", plan.device_bytes / GIB, "GiB", SIMULATED,
                 "all that a GPU must hold, proved"),
                ("gpus", _working(plan.busy), "GPUs", SIMULATED, "that compute in a step"),
                ("estimate_s", plan.estimate_s, "s", REFERENCE,
                 "the published estimator, no overlap"),
                (OVERLAPPED, plan.estimate_prefetch_s, "s", REFERENCE,
                 "the published estimator, overlap"),
            )
            if not pd.isna(value)
        ]  # fmt: skip
        searched = told[(told["setting"] != "") & (told["source"] == REFERENCE)]
        return join(searched, _not_stored(searched), recomputed(ten), table(steps), table(details))

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """The seconds as bars, and the table."""
        draw.prepare(figure, 2)
        most_s = next(c.given["limit"] for c in stated(self.claims) if c.metric == "limit over")
        axes = figure.subplot_mosaic(
            [["search", "step"], ["table", "table"]], height_ratios=(1, 1.05)
        )
        part = pick(rows, model=FOUR, method=PP, ranks=GPUS, minibatch=MINIBATCH)
        names = {model: model_label(model) for model in FOUR}
        searches = pick(part, quantity="search_s")
        draw.bars(axes["search"], searches, names, "search (s)", column="model", number="{:.3g}")
        axes["search"].axhline(most_s, color="#888888", lw=0.8, ls="--")
        axes["search"].set_ylim(top=max(1.1 * most_s, axes["search"].get_ylim()[1]))
        draw.title(axes["search"], f"search, Harmony-PP; dashed: {most_s:g} s")
        steps = pick(part, quantity="iteration_s")
        used = pick(part, quantity="gpus", variant=THEIR_PLAN)
        alone = [model for model in FOUR if one(used, model=model) == 1]
        draw.bars(
            axes["step"],
            without_lone(steps, alone),
            names,
            "time per iteration (s)",
            column="model",
        )
        draw.title(axes["step"], "step of the plan that was found")
        _table(axes["table"], part)
        draw.legend(figure, join(searches, steps), methods=False)
        without = _listed(pick(searches, status=NOT_STORED)["model"])
        facts = {"models": _listed(alone), "card": format_bytes(CARD_BYTES)}
        facts |= {} if alone else {"lone": ""}
        draw.small_print(figure, self.printed(without=without, **facts))


def _variant(source: str, plan: str) -> str:
    """Variant of a plan's source: an estimate has none, a measurement is of a search."""
    return {SIMULATED: plan, MEASURED: SEARCHES[plan], REFERENCE: ""}[source]


def _working(busy: str) -> int | None:
    """Number of GPUs that compute, from the shares of a step in which each does."""
    return sum(float(share) > 0 for share in busy.split()) if busy else None


def _not_stored(searched: pd.DataFrame) -> pd.DataFrame:
    """Models without a reference estimate of their search: why."""
    absent = [model for model in FOUR if model not in set(searched["model"])]
    why = "the authors keep no search of this model, so how long theirs takes is not estimated"
    rows = [
        {
            "model": model, "method": PP, "label": label_of(PP), "ranks": GPUS,
            "minibatch": MINIBATCH, "quantity": "search_s", "unit": "s", "source": REFERENCE,
            "status": NOT_STORED, "note": why, "how": "no value",
        }
        for model in absent
    ]  # fmt: skip
    return table(rows, size="paper")


def without_lone(steps: pd.DataFrame, alone: list[str]) -> pd.DataFrame:
    """Steps to draw: of a published plan for one GPU the words instead of a bar, which would make
    all others flat."""
    lone = steps["model"].isin(alone) & (steps["variant"] != OUR_PLAN)
    words = steps["value"].map("{:.0f} s, on one GPU".format)
    return steps.assign(
        status=steps["status"].where(~lone, words),
        value=steps["value"].where(~lone),
        high=steps["high"].where(~lone),
    )


def _listed(models: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(model_label(model) for model in models))


def _table(axes: Any, rows: pd.DataFrame) -> None:
    cells = [_cells(rows, model, variant) for model in FOUR for variant in (THEIR_PLAN, OUR_PLAN)]
    axes.set_axis_off()
    drawn = axes.table(
        cellText=cells, colLabels=HEAD, loc="center", cellLoc="left", colLoc="left",
        colWidths=(0.13, 0.1, 0.22, 0.09, 0.08, 0.16, 0.1, 0.12), edges="horizontal",
        bbox=(0, 0, 1, 1),
    )  # fmt: skip
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(6.5)
    for (row, _), cell in drawn.get_celld().items():
        cell.set_linewidth(0.5)
        cell.set_edgecolor("#cccccc")
        if row == 0:
            cell.get_text().set_color(GREY)


def _cells(rows: pd.DataFrame, model: str, variant: str) -> tuple[str, ...]:
    """A line of the table: one plan."""
    plan = pick(rows, model=model, variant=variant)

    def told(quantity: str, form: str) -> str:
        value = one(plan, quantity=quantity)
        return "" if value is None else form.format(value)

    setting = next(iter(pick(plan, quantity="device_gib")["setting"]), "not planned")
    memory = one(plan, quantity="device_gib")
    too_much = memory is not None and memory * GIB > CARD_BYTES
    return (
        model_label(model) if variant == THEIR_PLAN else "",
        variant.removesuffix(" plan"),
        setting,
        _seconds(one(pick(rows, model=model, variant=SEARCHES[variant]), quantity="search_s")),
        told("candidates", "{:.0f}"),
        told("device_gib", "{:.2f} GiB") + (" (too much)" if too_much else ""),
        told("iteration_s", "{:.2f} s"),
        _seconds(one(pick(rows, model=model, variant=""), quantity=OVERLAPPED), "{:.2f} s")
        if variant == THEIR_PLAN
        else "",
    )


def _seconds(value: float | None, form: str = "{:.3g} s") -> str:
    return "" if value is None else form.format(value)


def compared(rows: pd.DataFrame, seconds: str = "iteration_s") -> list[tuple[str, float, bool]]:
    """Every setting that both planned: which it is, the published plan's `seconds` (a quantity)
    over our step (0 where ours found none), and whether the published one fits the card."""
    out = []
    place = ["model", "method", "ranks", "minibatch"]
    whose = {"source": SIMULATED, "variant": THEIR_PLAN}
    if seconds == OVERLAPPED:
        whose = {"source": REFERENCE, "variant": ""}
    told = pick(rows, source=(SIMULATED, REFERENCE), method=(PP, DP))
    ours = pick(told, variant=OUR_PLAN, quantity="iteration_s").groupby(place)["value"].first()
    steps = ours.astype(object).where(ours.notna(), None).to_dict()
    theirs = pick(told, **whose, quantity=seconds).dropna(subset=["value"])
    for key, part in theirs.groupby(place, sort=False):
        if key in steps:
            fastest = part.loc[part["value"].idxmin()]
            fits = "does not fit" not in fastest["note"]
            ratio = quotient(float(fastest["value"]), steps[key]) or 0.0
            out.append((", ".join(map(str, key)), ratio, fits))
    return out
