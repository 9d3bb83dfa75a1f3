"""The search itself: the best plan over plans rated, and what hops, starts and the order of
primitives do to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.aceso import base
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import PUBLISHED, SIMULATED, pick
from workbench.figures.style import GREY, LOOKS
from workbench.methods.aceso.bottleneck import Shuffled, groups
from workbench.methods.aceso.search import Effort, Search
from workbench.methods.aceso.search import Found as Searched

CURVE, HOPS, START, ORDER = "curve", "hops", "start", "order"
STARTS = ("balance", "imbalance_gpu", "imbalance_op")
MODEL = "gpt"
STAGES = {HOPS: 3, START: 4, ORDER: 3}
"""Stages of the searches that are compared."""
BY_SHARE, AT_RANDOM = "by scarcity", "at random"
MS, SECONDS = "ms", 1000


def one_hop(asked: Asked) -> float:
    """The time of the plan after one hop over that after most."""
    part = pick(asked.of_series(), quantity=HOPS).sort_values("x")["value"]
    return float(part.iloc[0] / part.iloc[-1])


def spread(asked: Asked) -> float:
    """The time of the best start's plan over the worst's."""
    part = pick(asked.of_series(), quantity=START)["value"]
    return float(part.min() / part.max())


def sooner(asked: Asked) -> Found:
    """Plans rated until the best one in random orders, on average, over those in the search's."""
    part = pick(asked.of_series(), quantity=ORDER)
    last = part.groupby("pair").agg(x=("x", "max"), ms=("value", "min"))
    own, others = last.loc[BY_SHARE], last.drop(BY_SHARE)
    better = float(others["ms"].min()) < float(own["ms"]) * (1 - 1e-4)
    why = f"{len(others)} random orders end at {others['ms'].min():,.0f} to "
    why += f"{others['ms'].max():,.0f} ms, the search's at {own['ms']:,.0f}"
    return Found(float(others["x"].mean() / own["x"]), why=why + ("; one is better" * better))


class Ablations(base.AcesoExhibit):
    """Four panels: curves, hops, starts, orders."""

    metrics = by_name(one_hop, spread, sooner)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        size = at.size
        rows = [_published(row) for row in self.published().itertuples()]
        rows += _curves(size.models)
        for hops in size.hops:
            found = searched(STAGES[HOPS], size.plans, hops)
            rows.append(_row(HOPS, found, label=f"{hops}", x=hops))
        for start in STARTS:
            found = searched(STAGES[START], size.plans, start=start)
            rows.append(_row(START, found, label=start, x=STARTS.index(start)))
        for seed in (None, *range(size.orders)):
            name = BY_SHARE if seed is None else f"{AT_RANDOM} {seed}"
            found = searched(STAGES[ORDER], size.plans, seed=seed)
            rows += _steps(ORDER, found.curve, pair=name, method=base.ACESO, label=MODEL)
        return self.tabled(at, rows, "quantity")

    def listed(self, rows: pd.DataFrame) -> pd.DataFrame:
        return super().listed(pick(rows, quantity=(HOPS, START)))

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Curves over plans rated are steps; ends of searches are bars."""
        drawing.prepare(figure, 2)
        (curves, orders), (hops, starts) = figure.subplots(2, 2)
        part = pick(rows, quantity=CURVE)
        ends = part.groupby("label")["value"].min()
        dashes = dict(zip(base.MODELS, ("-", "--", ":"), strict=True))
        for (model, method), line in part.groupby(["label", "method"], sort=False):
            curves.step(line["x"], line["value"] / ends[model], where="post", lw=1.1,
                        ls=dashes[model], color=LOOKS[method].color)  # fmt: skip
        curves.set(xscale="log", xlabel="plans rated", ylabel="best plan / best known",
                   ylim=(0.98, 1.35))  # fmt: skip
        drawing.title(curves, "best plan so far, small settings")
        for name, line in pick(rows, quantity=ORDER).groupby("pair", sort=False):
            own = name == BY_SHARE
            orders.step(line["x"], line["value"] / SECONDS, where="post", lw=1.3 if own else 0.8,
                        color=LOOKS[base.ACESO].color if own else GREY, ls="-" if own else "--",
                        zorder=3 if own else 2)  # fmt: skip
        orders.set(xscale="symlog", xlabel="plans rated", ylabel="best plan (s)")
        drawing.title(orders, f"order of primitives: GPT, {STAGES[ORDER]} stages")
        for axes, quantity, words in ((hops, HOPS, "hops at most"), (starts, START, "start")):
            part = pick(rows, quantity=quantity)
            part = part.assign(value=part["value"] / SECONDS)
            groups_of = {name: name.replace("_", "\n") for name in dict.fromkeys(
                part.sort_values("x")["label"])}  # fmt: skip
            drawing.bars(axes, part, groups_of, "best plan (s)", column="label", number="{:.1f}")
            axes.set_xlabel(words)
            drawing.title(axes, f"{words}: GPT, {STAGES[quantity]} stages")
        kinds = [(drawing.stroke(color=GREY, ls=dashes[m], lw=1.1), base.MODELS[m])
                 for m in dict.fromkeys(pick(rows, quantity=CURVE)["label"])]  # fmt: skip
        random = drawing.stroke(color=GREY, ls="--", lw=0.8), "random order"
        drawing.place_legend(
            figure, [*base.keys(base.ACESO, base.OURS), *kinds, random, *base.sources(rows)]
        )
        drawing.small_print(figure, self.printed())


@cache
def searched(
    stages: int, plans: int, hops: int = Effort.hops, *, start: str = STARTS[0],
    seed: int | None = None,
) -> Searched:  # fmt: skip
    """The published search of GPT's small setting; `seed`: in random order of primitives."""
    space = base.ask_small(MODEL).space()
    order = groups if seed is None else Shuffled(seed)
    effort = Effort(hops=hops, plans=plans)
    return Search(space, effort, order=order).run(space.first(stages, start=start))


def _curves(models: Iterable[str]) -> Iterator[dict[str, Any]]:
    for model in models:
        for kind in ("faithful", "ours"):
            found = base.search_small(kind, model).curve()
            method = base.KINDS[kind]
            yield from _steps(CURVE, found, pair=base.NAMES[method], method=method, label=model)


def _steps(quantity: str, curve: Iterable[Any], **about: Any) -> Iterator[dict[str, Any]]:
    for explored, ms in curve:
        yield about | {
            "quantity": quantity, "x": max(1, explored), "value": ms, "unit": MS,
            "source": SIMULATED, "status": "ok", "how": "the published cost model; plans rated",
        }  # fmt: skip


def _row(quantity: str, found: Searched, **about: Any) -> dict[str, Any]:
    return about | {
        "quantity": quantity, "method": base.ACESO, "value": found.best.cost.time, "unit": MS,
        "source": SIMULATED, "status": "ok", "note": f"{found.explored} plans rated",
        "how": "the published search, done again here",
    }  # fmt: skip


def _published(row: Any) -> dict[str, Any]:
    quantity, _, label = row.series.partition(" ")
    place = int(label) if quantity == HOPS else STARTS.index(label)
    return {
        "quantity": quantity, "method": base.ACESO, "label": label, "x": place, "value": row.value,
        "unit": row.unit, "source": PUBLISHED, "status": "ok", "how": row.source, "note": row.note,
    }  # fmt: skip
