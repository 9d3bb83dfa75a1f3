"""Proofs from runs besides the figures, as parts of the report."""

from __future__ import annotations

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
    shown = explained_table()
    words = (
        "The published code's schedule, defects included, simulated on the published machine. It "
        "says whether the simulator explains the published numbers; what our own runtime could "
        "have reached there is the other simulation in the figures."
    )
    return [
        tag("h2", "Does the simulator explain the published numbers?", id="explained"),
        tag("p", words),
        tag("p", explained_summary(shown)),
        table(shown),
    ]


def _training(records: list[RunRecord]) -> list[Html]:
    head = tag("h2", "Does every method train?", id="training")
    losses = losses_of(records)
    if not losses:
        return [head, tag("p", "No run of figure 8a is there to show.", class_="soft")]
    words = (
        "A method that does not train is not fast. Losses of all methods of figure 8a, on the same "
        "samples from the same weights, beside those of plain training: everything on the device."
    )
    return [
        head,
        tag("p", words),
        drawing(draw_losses(losses), "Losses of all methods over plain training"),
        table(loss_table(records)),
    ]


def _predictions(records: list[RunRecord], cell: Cell) -> list[Html]:
    shown = prediction_table(records)
    words = (
        "Each run on our own runtime was simulated before it ran, from a profile of this machine. "
        "Libraries plan for themselves: of their runs stands what our model of their schedules "
        "says, by which planners tell what fits. Deviations are prediction over measurement, less "
        "one."
    )
    head = tag("h2", "Do plans come true?", id="predictions")
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
    words = (
        "Two steps of figure 8a's STRONGHOLD run, layers as numbers. Copies to the device (h2d) "
        "and gradients on their way to the host (d2h) run beside compute; updates wait for the "
        f"norm. {figure.get_label()}"
    )
    return [
        tag("h2", "One run, predicted above measured", id="timeline"),
        drawing(figure, "Timeline of a STRONGHOLD run", words),
    ]
