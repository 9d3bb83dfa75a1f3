"""Accuracy of stale weights by seed, and of each way to make up for them; and what was published of
T5-3B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.ftpipe.base import FtpipeExhibit, told
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import MEASURED, PUBLISHED, pick
from workbench.figures.style import LOOKS
from workbench.published.tables import FOLDER

FILE = FOLDER / "ftpipe_digits.csv"
SCRATCH, TUNED = "from scratch", "fine-tuning"
SYNCHRONOUS, STALE = "synchronous", "stale"
BEFORE = "before fine-tuning"
METHODS = {SYNCHRONOUS: "gpipe", "GPipe": "gpipe", BEFORE: "plain"}
"""Way to train -> whose colour it has; all others FTPipe's."""


def mean(asked: Asked, how: str) -> float:
    """Mean accuracy of a way to train."""
    return pick(asked.of_series(), label=how)["value"].mean()


def lost(asked: Asked) -> Found:
    """Points that a way to train loses to the synchronous one, below 0."""
    points = mean(asked, SYNCHRONOUS) - mean(asked, asked.given["how"])
    return Found(-points, why=f"{points:.1f} points, means of seeds")


def closes(asked: Asked) -> float:
    """The share of what stashed weights lose that prediction gains."""
    worse = mean(asked, "stashed")
    return (mean(asked, "predicted") - worse) / (mean(asked, SYNCHRONOUS) - worse)


class Quality(FtpipeExhibit):
    """Bars of means, with whiskers from the worst seed to the best."""

    metrics = by_name(lost, closes)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [*_digits(), *map(_told, self.published().itertuples())]
        return self.tabled(at, rows, "quantity", status="ok")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Digits from scratch above; fine-tuned, and published ones, below."""
        drawing.prepare(figure, 1.9)
        grid = figure.add_gridspec(2, 2)
        places = figure.add_subplot(grid[0, :]), figure.add_subplot(grid[1, 0])
        for axes, study in zip(places, (SCRATCH, TUNED), strict=True):
            part = pick(rows, quantity=study)
            column = "label" if study == SCRATCH else "window"
            groups = {key: _words(key) for key in dict.fromkeys(part[column])}
            drawing.bars(axes, part, groups, "accuracy (%)", column=column, number="{:.1f}")
            drawing.title(axes, f"digits, {study}: measured")
        right = figure.add_subplot(grid[1, 1])
        theirs = pick(rows, source=PUBLISHED)
        tasks = {task: task for task in dict.fromkeys(theirs["pair"])}
        drawing.bars(right, theirs, tasks, "accuracy (%)", column="pair", number="{:.1f}")
        drawing.title(right, "T5-3B: published")
        names = {"gpipe": "synchronous (GPipe)", "ftpipe": "stale, asynchronous", "plain": BEFORE}
        keys = [(drawing.patch(color=LOOKS[name].color), told) for name, told in names.items()]
        drawing.legend(figure, rows, methods=False, more=keys)
        drawing.small_print(figure, self.printed())


def _words(key: Any) -> str:
    return key.replace(" ", "\n", 1) if isinstance(key, str) else f"rate {key:g}"


def _digits() -> Iterator[dict[str, Any]]:
    """Means of this project's runs, and their worst and best seeds."""
    every = pd.read_csv(FILE)
    for (study, rate, how), part in every.groupby(["study", "rate", "how"], sort=False):
        seeds = part["accuracy"]
        yield {
            "quantity": study, "label": how, "method": METHODS.get(how, "ftpipe"), "window": rate,
            "value": seeds.mean(), "low": seeds.min(), "high": seeds.max(), "unit": "%",
            "source": MEASURED, "how": f"{len(seeds)} seeds, python -m benchmarks.ftpipe_digits",
        }  # fmt: skip


def _told(row: Any) -> dict[str, Any]:
    """A published accuracy of T5-3B."""
    how = row.variant.removeprefix("best ")
    own = {"label": how, "pair": row.item.removeprefix("T5-3B "), "quantity": "published"}
    return told(row) | own | {"method": METHODS.get(how, "ftpipe")}
