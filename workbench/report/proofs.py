"""Proofs from runs besides the figures, as parts of the report."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pandas as pd

from workbench.core.record import RunRecord
from workbench.figures.verdict import as_table
from workbench.report.evidence import (
    draw_losses,
    loss_table,
    losses_of,
    prediction_summary,
    prediction_table,
    prediction_verdicts,
)
from workbench.report.explained import explained_summary, explained_table
from workbench.report.page import Cell, Html, drawing, table, tag, without_empty
from workbench.report.timeline import draw_gantt
from workbench.runs.store import Store

WORDS = Path(__file__).with_suffix(".toml")
"""Headings and words of the chapters."""


def proof_figures(compared: list[RunRecord], store: Store, *, simulated: bool) -> list[Html]:
    """Losses of all methods, and one run's timeline; `compared` are figure 8a's runs."""
    trained = [] if simulated else _training(compared)
    return trained + _timeline(compared, store)


def proof_tables(size: str, every: list[RunRecord], cell: Cell, *, simulated: bool) -> list[Html]:
    """Predictions beside measurements of all runs that there are; at paper size the simulator's
    explanation."""
    explained = _explained() if size == "paper" else []
    return explained + ([] if simulated else _predictions(every, cell))


def _explained() -> list[Html]:
    shown, (head, words) = explained_table(), _told("explained")
    return [head, tag("p", words), tag("p", explained_summary(shown)), table(shown)]


def _training(records: list[RunRecord]) -> list[Html]:
    losses, (head, words) = losses_of(records), _told("training")
    if not losses:
        return [head, tag("p", "No run of figure 8a is there to show.", class_="soft")]
    return [
        head,
        tag("p", words),
        drawing(draw_losses(losses), "Losses of all methods over plain training"),
        table(loss_table(records)),
    ]


def _predictions(records: list[RunRecord], cell: Cell) -> list[Html]:
    shown, (head, words) = prediction_table(records), _told("predictions")
    parts = [head, tag("p", words), tag("p", prediction_summary(shown))]
    return [*parts, table(plans_judged(records), cell), table(shown)] if len(shown) else parts


def plans_judged(records: list[RunRecord]) -> pd.DataFrame:
    """Verdicts on the plans of our own runtime, with their reasons."""
    ours = prediction_table(r for r in records if "how" not in r.predicted)
    return without_empty(as_table(prediction_verdicts(ours)))


def _timeline(records: list[RunRecord], store: Store) -> list[Html]:
    figure = draw_gantt(records, store)
    if figure is None:
        return []
    head, words = _told("timeline")
    return [head, drawing(figure, "Timeline of a STRONGHOLD run", f"{words} {figure.get_label()}")]


def _told(chapter: str) -> tuple[Html, str]:
    """Heading of a chapter, and what it shows."""
    told = tomllib.loads(WORDS.read_text())[chapter]
    return tag("h2", told["heading"], id=chapter), told["words"]
