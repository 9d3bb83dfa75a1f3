"""Pipelines of our own: what each order does by itself, and what it is worth on named hardware.

Above, four ranks and eight micro-batches in theory: forward one quantum, backward two, messages
none; the share that a rank waits is the bubble. Below, samples per second that were measured, each
order beside torch's own schedule of that order. Nothing runs for this exhibit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from workbench.exhibits.claims import Goal
from workbench.exhibits.hardware.base import GoalsExhibit
from workbench.exhibits.hardware.table import SERVERS as COLUMNS
from workbench.exhibits.hardware.table import table
from workbench.exhibits.metrics import Asked, Found
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.style import LOOKS, PAGE_IN, lighter
from workbench.methods.pipeline import ideal
from workbench.methods.pipeline.orders import ORDERS, B, F, I, W
from workbench.published.here import SERVERS
from workbench.schedule.looks import LOOKS as WORK

RANKS, MICROS, CHUNKS = 4, 8, 2
TORCH = {
    "1f1b": "torch-1f1b",
    "gpipe": "torch-gpipe",
    "interleaved": "torch-interleaved",
    "zb-h1": "torch-zero-bubble",
}
"""Order -> torch's schedule that is compared with it."""
DRAWN = [name for name, order in ORDERS.items() if not order.recomputes]
"""Orders whose steps are as much work: Varuna's computes activations again."""
SHOWN = (F, B, I, W)
"""Kinds of passes, as the legend names them."""
GANTT_IN, BARS_IN = 0.95, 1.9


def speeds(asked: Asked) -> Found:
    """Our speed over torch's."""
    ours, theirs = asked.given["ours"], asked.given["theirs"]
    return Found(ours / theirs, f"{ours:.1f} and {theirs:.1f} samples/s")


class Pipelines(GoalsExhibit):
    """Gantt charts of the orders, bubbles, and measured speeds beside torch's."""

    file, metrics = SERVERS.file, {"speeds": speeds}

    def all_rows(self, at: Opened, *, repeated: bool = False) -> pd.DataFrame:
        rows = table(SERVERS.runs(at.roots()), COLUMNS, repeated=repeated)
        return rows[rows["method"].isin([*TORCH, *TORCH.values()])]

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """A chart for each order, and bars for each number of GPUs."""
        settings = pairs(rows)
        figure.set_size_inches(PAGE_IN, GANTT_IN * len(DRAWN) + BARS_IN)
        heights = [GANTT_IN] * len(DRAWN) + [BARS_IN]
        *charts, below = figure.subplots(len(heights), 1, gridspec_kw={"height_ratios": heights})
        for axes, name in zip(charts, DRAWN, strict=True):
            _draw_order(axes, name, last=name == DRAWN[-1])
        _draw_pairs(below, settings) if settings else drawing.empty(below, self.absent)
        where = "".join(f" on {name}" for name in rows["hardware"].head(1))
        drawing.small_print(figure, self.printed(ranks=RANKS, micros=MICROS, where=where))

    def goals(self, rows: pd.DataFrame, repeated: pd.DataFrame | None = None) -> list[Goal]:
        """Ours at least as fast as torch's, setting by setting."""
        both = [
            {"method": ours.method, "setting": words, "ours": ours.samples_per_second,
             "theirs": theirs.samples_per_second}
            for words, ours, theirs in pairs(rows)
        ]  # fmt: skip
        found = [replace(claim, each=both) for claim in self.claims if both]
        return self.judge_of(found).verdicts(rows)


def pairs(rows: pd.DataFrame) -> list[tuple[str, Any, Any]]:
    """(setting in words, our run, torch's) of settings that both have."""
    keys = ["ranks", "batch", "variant"]
    speeds = {(row.method, *(getattr(row, key) for key in keys)): row for row in rows.itertuples()}
    found = []
    for (method, *setting), ours in sorted(speeds.items(), key=lambda item: item[0][1:]):
        theirs = speeds.get((TORCH.get(method), *setting))
        if theirs is not None and ours.status == theirs.status == "ok":
            kept = "kept" if ours.variant == "keep" else "recomputed"
            found.append((f"{ours.ranks} GPUs, {kept}", ours, theirs))
    return found


def _draw_order(axes: Any, name: str, *, last: bool) -> None:
    chunks = CHUNKS if ORDERS[name].chunked else 1
    step = ideal.simulated(ideal.schedule_of(name, RANKS, MICROS, chunks=chunks), chunks)
    for event in step.events:
        axes.barh(
            event.rank, event.end_s - event.start_s, left=event.start_s, height=0.8,
            color=WORK[event.kind].color, hatch="//////", edgecolor=(1, 1, 1, 0.55), linewidth=0,
        )  # fmt: skip
    waited = ideal.bubble(step, RANKS)
    words = f"{ORDERS[name].label}: {step.step_seconds:g} quanta, bubble {waited:.0%}, simulated"
    drawing.title(axes, words)
    axes.set_xlim(0, 34)
    axes.set_ylim(RANKS - 0.5, -0.5)
    axes.set_yticks(range(RANKS), [f"rank {rank}" for rank in range(RANKS)])
    axes.tick_params(labelbottom=last, labelsize=6)
    if last:
        axes.set_xlabel("time (quanta)")
        kinds = [drawing.patch(color=WORK[kind].color, label=WORK[kind].words) for kind in SHOWN]
        axes.legend(handles=kinds, loc="center right", fontsize=6, frameon=False)


def _draw_pairs(axes: Any, settings: list[tuple[str, Any, Any]]) -> None:
    at, ticks, previous = 0.0, {}, ""
    for words, ours, theirs in settings:
        at += 0.8 * (bool(previous) and words != previous)
        ticks.setdefault(words, []).append(at)
        look = LOOKS[ours.method]
        for x, run, color in ((at, ours, look.color), (at + 0.4, theirs, lighter(look.color))):
            value = run.samples_per_second
            axes.bar(x, value, 0.38, color=color, edgecolor=look.color, linewidth=0.6)
            axes.text(
                x, value, f" {value:.0f}", rotation=90, ha="center", va="bottom", fontsize=5.5
            )
        previous, at = words, at + 1.1
    axes.set_xticks([sum(places) / len(places) + 0.2 for places in ticks.values()], [*ticks])
    axes.tick_params(axis="x", length=0, labelsize=6.5)
    axes.margins(y=0.3)
    shown = dict.fromkeys(ours.method for _, ours, _ in settings)
    names = [drawing.patch(color=LOOKS[name].color, label=ORDERS[name].label) for name in shown]
    axes.legend(handles=names, loc="upper left", ncols=len(names), fontsize=6, frameon=False)
    axes.set_ylabel("samples/s, measured")
