"""Accuracy and time of the same runs, and the time to a target accuracy: GPipe's order and the
asynchronous one, on contiguous stages and on mixed ones."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pandas as pd

from workbench.core.model_spec import WIDE_RESNET, ModelSpec
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.ftpipe.base import CUT, MIXED, FtpipeExhibit, told
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import (
    MEASURED,
    PUBLISHED,
    SIMULATED,
    hardware_of,
    how_measured,
    note_of,
    pick,
)
from workbench.figures.style import GREY, LOOKS, lighter
from workbench.model.corpus import DIGITS

CURVE, TIME = "accuracy", "time to target"
WAYS = {
    "GPipe, contiguous": ("gpipe-lifo", CUT), "GPipe, mixed": ("gpipe-lifo", MIXED),
    "FTPipe, contiguous": ("async-1f1b", CUT), "FTPipe, mixed": ("async-1f1b", MIXED),
}  # fmt: skip
"""Way to train -> order of passes, partitioner."""
GPIPE, FTPIPE = "GPipe, contiguous", "FTPipe, mixed"
COLOURS = {
    way: LOOKS[name].color if way.endswith("mixed") else lighter(LOOKS[name].color)
    for way in WAYS
    for name in [way.split(",")[0].lower()]
}
"""Paler where stages are contiguous."""
PLAIN = {"lr": 3e-3, "lr_schedule": "constant", "warmup_steps": 5, "weight_decay": 0.0}
BATCH, MICROS, SIDE, CLASSES = 32, 4, 8, 10
THEIRS = "RTE"
"""The published task that answers a claim."""
MISSED = "target not reached"


def best(asked: Asked) -> Found:
    """Points of the best accuracy of FTPipe's mixed stages over GPipe's."""
    accuracy = asked.of_series().groupby("label")["value"].max()
    if not {GPIPE, FTPIPE} <= {*accuracy.dropna().index}:
        return Found(None)
    points = accuracy[FTPIPE] - accuracy[GPIPE]
    return Found(points, why=f"{accuracy[FTPIPE]:.1f} and {accuracy[GPIPE]:.1f} %")


def sooner(asked: Asked) -> float | None:
    """How many times as long a way takes as FTPipe's mixed stages do."""
    task = {"pair": DIGITS if asked.series[0] == MEASURED else THEIRS}
    way, mixed = (asked.value(task, {"label": each}) for each in (asked.given["way"], FTPIPE))
    return way / mixed if way and mixed else None


class Target(FtpipeExhibit):
    """Curves above, over epochs and over seconds; below, bars of what was measured on digits, and
    of what was published of T5-3B."""

    runs = True
    labels = MappingProxyType({})
    metrics = by_name(best, sooner)

    def specs(self, size: Any) -> list[RunSpec]:
        """A run for each way of the size."""
        dials = size.digits
        model = ModelSpec(
            family=WIDE_RESNET, layers=dials.layers, hidden=dials.hidden, heads=1, seq=SIDE,
            vocab=CLASSES, tied=False, group_norm=True,
        )  # fmt: skip
        same = {
            "model": model, "text": DIGITS, "batch": BATCH, "microbatches": MICROS,
            "steps": dials.steps, "ranks": dials.ranks, "device": size.device,
            "eval_every": dials.every, "eval_samples": 0, **PLAIN,
        }  # fmt: skip
        found = []
        for way in dials.ways:
            order, partitioner = WAYS[way]
            cut, places = dials.cuts.get(partitioner, ("", ""))
            own = {"partitioner": partitioner, "cut": cut, "map": places}
            found.append(RunSpec.of(method="ftpipe", stage_order=order, **own, **same))
        return found

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        """Evaluations and times of each way, also of one that has not run."""
        known = {_way(record.spec): record for record in records}
        rows = []
        for way in at.size.digits.ways:
            rows += _measured(way, known.get(way), at.size)
        rows += map(_told, self.published().itertuples())
        return self.tabled(at, rows, "quantity", "step", "seconds")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Four panels."""
        drawing.prepare(figure, 1.9)
        (epochs, seconds), (ours, theirs) = figure.subplots(2, 2)
        curves = pick(rows, quantity=CURVE)
        for axes, column, words in ((epochs, "x", "epoch"), (seconds, "seconds", "seconds")):
            axes.set(xlabel=words, ylabel="held-out accuracy (%)")
            if curves.empty:
                drawing.empty(axes, "not run yet")
                continue
            for way, part in curves.groupby("label", sort=False):
                axes.plot(part[column], part["value"], "o-", ms=2.5, lw=1.0, color=COLOURS[way])
            goal = float(curves["window"].iloc[0])
            axes.axhline(goal, color=GREY, lw=0.7, ls=(0, (4, 2)), zorder=0)
            axes.set_ylim(top=101)
        drawing.title(epochs, "digits: measured")
        times = pick(rows, quantity=TIME)
        theirs_too = times["source"] == PUBLISHED
        for axes, part, unit, words in (
            (ours, times[~theirs_too], "seconds", "digits: measured, and simulated"),
            (theirs, times[theirs_too], "hours", "T5-3B: published, composed"),
        ):
            tasks = {task: task for task in dict.fromkeys(part["pair"])}
            ylabel = f"{unit} to target"
            drawing.bars(axes, part, tasks, ylabel, column="pair", colors=COLOURS)
            drawing.title(axes, words)
        keys = [(drawing.patch(color=color), way) for way, color in COLOURS.items()]
        dashed = drawing.stroke(color=GREY, lw=0.7, ls=(0, (4, 2))), "target"
        drawing.legend(figure, times, methods=False, more=[*keys, dashed])
        drawing.small_print(figure, self.printed())


def _way(spec: dict[str, Any]) -> str:
    """The way of a run that may name a cut."""
    options = spec["options"]
    asked = options["stage_order"], options["partitioner"]
    return next(way for way, own in WAYS.items() if own == asked)


def _measured(way: str, record: RunRecord | None, size: Any) -> Iterator[dict[str, Any]]:
    goal = 100 * size.digits.target
    about = {
        "method": "ftpipe", "label": way, "pair": DIGITS, "window": goal, "device": size.device,
        "source": MEASURED, "how": "not run yet", "status": "",
    }  # fmt: skip
    time = {"quantity": TIME, "unit": "s"}
    if record is None:
        yield about | time
        return
    about |= {
        "how": how_measured(record), "status": record.status, "note": note_of(record),
        "hardware": hardware_of(record), "busy": record.busy, "key": record.key,
    }  # fmt: skip
    reached = None
    for one in record.evaluations:
        accuracy, spent = 100 * one["accuracy"], sum(record.step_seconds[: one["step"]])
        if reached is None and accuracy >= goal:
            reached = one["step"], spent
        shown = {"x": one["epoch"], "seconds": spent, "step": one["step"], "value": accuracy}
        yield about | shown | {"quantity": CURVE, "unit": "%", "busy": ""}
    if reached is None:
        yield about | time | {"status": MISSED if record.status == "ok" else record.status}
        return
    steps, spent = reached
    yield about | time | {"value": spent, "step": steps}
    planned = record.predicted.get("step_seconds")
    if planned:
        how = "seconds of a planned step, times the steps that were needed"
        simulated = {"source": SIMULATED, "how": how, "busy": "", "step": steps}
        yield about | time | simulated | {"value": planned * steps}


def _told(row: Any) -> dict[str, Any]:
    """A published time of T5-3B."""
    system, stages = row.variant.split(" ")
    way = f"{system}, {'mixed' if stages == 'mixed' else 'contiguous'}"
    own = {"label": way, "pair": row.item.removeprefix("T5-3B "), "quantity": TIME}
    return told(row) | own | {"method": "ftpipe"}
