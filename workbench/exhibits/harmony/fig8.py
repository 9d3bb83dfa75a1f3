"""Harmony figure 8: what packs and micro-batches do to the balance of the devices."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.harmony.base import HarmonyExhibit
from workbench.exhibits.harmony.sizes import PP, HarmonySize
from workbench.exhibits.harmony.table import estimated, measured, missing, planned, table
from workbench.figures import draw
from workbench.figures.rows import MEASURED, OUR_PLAN, REFERENCE, join, one, pick
from workbench.figures.style import LOOKS, bar_look
from workbench.runs.store import Store
from workbench.runs.timeline import load_timeline
from workbench.schedule.action import COMPUTE

GPUS = 4


class Balance(HarmonyExhibit):
    """Seconds and busy shares by setting."""

    plans = ("8",)

    def specs(self, size: HarmonySize) -> list[RunSpec]:
        """Harmony-PP on one model under each setting."""
        ranks = size.most_here()
        return [_spec(size, setting, ranks) for setting in size.balance]

    def rows(self, records: list[RunRecord], store: Store, size: HarmonySize) -> pd.DataFrame:
        """Seconds of a step, and the share of it in which each rank computes."""
        out = []
        for record in records:
            name = next(
                setting.name
                for setting in size.balance
                if _spec(size, setting, record.spec["ranks"]).to_dict() == record.spec
            )
            row = measured(record, "iteration_s", size.balance[0].trained.name, setting=name)
            out.append(row)
            shares = busy_shares(record, store)
            how = "compute of the last steps' timeline over their time"
            out += [
                row | {"quantity": "busy", "unit": "share", "x": rank, "value": share, "how": how,
                       "low": None, "high": None}
                for rank, share in shares.items()
            ]  # fmt: skip
        return table(out)

    def known(self, size: HarmonySize, plans: pd.DataFrame) -> pd.DataFrame:
        """Reference estimates, and the same packs and our own under our simulator."""
        plans = pick(plans, figure=self.plans)
        rows = planned(plans).to_dict("records")
        shares = [
            row | {"quantity": "busy", "unit": "share", "x": gpu, "value": float(share)}
            for row, plan in zip(rows, plans.itertuples(), strict=True)
            for gpu, share in enumerate(plan.busy.split())
        ]
        told = estimated("8", "iteration_s")
        means = estimated("8", "compute_share").assign(quantity="busy", high=float("nan"))
        return join(told, means, table(rows), table(shares))

    def absent(self, size: HarmonySize, why: str) -> pd.DataFrame:
        return table([missing(PP, size.balance[0].trained.name, "busy", why)])

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Seconds a setting, how busy each device is, and the same of runs here."""
        draw.prepare(figure, 2)
        axes = figure.subplot_mosaic([["time", "time"], ["busy", "here"]], width_ratios=(1.5, 1))
        there = pick(rows, ranks=GPUS, model="bert_large_seq512")
        names = {name: _short(name) for name in _settings(there)}
        draw.bars(
            axes["time"], pick(there, quantity="iteration_s"), names, "time per iteration (s)",
            column="setting", number="{:.1f}",
        )  # fmt: skip
        draw.title(axes["time"], "BERT-Large, minibatch 600, 4 GPUs: time by setting")
        _busy(axes["busy"], there, names)
        draw.title(axes["busy"], "the same: how busy each GPU is, from GPU 0 to 3")
        here = pick(rows, source=MEASURED)
        if here["value"].notna().any():
            _busy(axes["here"], here, {name: _short(name) for name in _settings(here)})
            draw.title(axes["here"], f"{here['model'].iloc[0]}, measured here, by rank")
        else:
            note = here["note"].iloc[0] if len(here) else "nothing was run at this size"
            draw.empty(axes["here"], f"measured here: {note}")
        draw.legend(figure, rows.dropna(subset=["value"]), methods=False)
        draw.small_print(figure, self.printed())


def _spec(size: HarmonySize, setting: Any, ranks: int) -> RunSpec:
    return size.spec(PP, setting.trained, ranks, **setting.changes)


def busy_shares(record: RunRecord, store: Store) -> dict[int, float]:
    """Rank -> share of its last steps in which it computes; empty where a run left no timeline."""
    try:
        events = [e for e in load_timeline(store.folder(record.key)).events if e.lane == COMPUTE]
    except (FileNotFoundError, ValueError):
        return {}
    if not events:
        return {}
    busy: dict[int, float] = defaultdict(float)
    for event in events:
        busy[event.rank] += event.end_s - event.start_s
    seconds = max(e.end_s for e in events) - min(e.start_s for e in events)
    if not seconds:
        return {}
    return {rank: total / seconds for rank, total in sorted(busy.items())}


def _settings(rows: pd.DataFrame) -> list[str]:
    """In the order of the paper; our own last."""
    ours = set(rows[rows["variant"] == OUR_PLAN]["setting"])
    return sorted(dict.fromkeys(rows["setting"]), key=lambda name: name in ours)


def _short(name: str) -> str:
    sizes, _, packs = name.partition(", ")
    return f"{sizes}\n{packs.replace('packs of ', 'P').replace(' and ', '+')}"


def _busy(axes: Any, rows: pd.DataFrame, names: dict[str, str]) -> None:
    shares = pick(rows, quantity="busy")
    single = shares.dropna(subset=["x"])
    width = 0.8 / max([1, *single.groupby("setting")["x"].nunique()])
    for place, name in enumerate(names):
        part = pick(single, setting=name).sort_values("x")
        for i, row in enumerate(part.itertuples()):
            look = bar_look(LOOKS[row.method].color, row.source, row.variant)
            x = place + (i - (len(part) - 1) / 2) * width
            axes.bar(x, row.value, width * 0.86, **look)
            if row.value == 0:  # there is no bar to see
                draw.beside(axes, "0", (x, 0), (0, 1.5), ha="center", fontsize=draw.NOTE_PT)
        mean = one(shares, setting=name, source=REFERENCE)
        if mean is not None:
            color = LOOKS[PP].color
            axes.plot([place - 0.44, place + 0.44], [mean] * 2, color=color, lw=1.3, ls=":")
    axes.set_xticks(
        range(len(names)), [name.replace(" packs", "\npacks") for name in names.values()]
    )
    axes.tick_params(axis="x", length=0, labelsize=6)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("compute, share of a step")
