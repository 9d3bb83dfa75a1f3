"""Proofs from STRONGHOLD's runs besides the figures, as parts of the report."""

from __future__ import annotations

from workbench.core.record import RunRecord
from workbench.report.evidence import (
    draw_losses,
    loss_table,
    losses_of,
    prediction_summary,
    prediction_table,
)
from workbench.report.explained import explained_summary, explained_table
from workbench.report.page import Html, drawing, table, tag
from workbench.report.timeline import draw_gantt
from workbench.runs.store import Store


def proof_figures(
    records: dict[str, list[RunRecord]], store: Store, *, simulated: bool
) -> list[Html]:
    """Losses of all methods, and one run's timeline."""
    trained = [] if simulated else _training(records["fig8a"])
    return trained + _timeline(records["fig8a"], store)


def proof_tables(size: str, records: dict[str, list[RunRecord]], *, simulated: bool) -> list[Html]:
    """Predictions beside measurements; at paper size the simulator's explanation."""
    explained = _explained() if size == "paper" else []
    return explained + ([] if simulated else _predictions(records))


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


def _predictions(records: dict[str, list[RunRecord]]) -> list[Html]:
    head = tag("h2", "Do plans come true?", id="predictions")
    timed = {r.key: r for name in ("fig8a", "fig7a", "fig8b", "fig9") for r in records[name]}
    ours, theirs = (
        prediction_table(r for r in timed.values() if ("how" in r.predicted) == library)
        for library in (False, True)
    )
    words = (
        "Each run on our own runtime was simulated before it ran, from a profile of this machine. "
        "Deviations are prediction over measurement, less one."
    )
    parts = [head, tag("p", words), tag("p", prediction_summary(ours))]
    if len(ours):
        parts.append(table(ours))
    if len(theirs):
        words = (
            "DeepSpeed plans for itself. What our model of its schedule says of the same runs: "
            "it is used by the planner to tell what fits and how fast it would be."
        )
        parts += [tag("p", words), table(theirs)]
    return parts


def _timeline(records: list[RunRecord], store: Store) -> list[Html]:
    figure = draw_gantt(records, store)
    if figure is None:
        return []
    words = (
        "Two steps of figure 8a's STRONGHOLD run, layers as numbers. Copies to the device (h2d) "
        "and gradients on their way to the host (d2h) run beside compute; updates wait for the "
        "norm."
    )
    return [
        tag("h2", "One run, predicted above measured", id="timeline"),
        drawing(figure, "Timeline of a STRONGHOLD run", words),
    ]
