"""STRONGHOLD's exhibits as parts of the report, and what their runs prove besides the figures."""

from __future__ import annotations

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.session import Session
from workbench.figures.style import name_of
from workbench.report.evidence import (
    draw_losses,
    loss_table,
    losses_of,
    prediction_summary,
    prediction_table,
)
from workbench.report.explained import explained_summary, explained_table
from workbench.report.outcomes import Outcome, how_it_ended
from workbench.report.page import Cell, Html, drawing, table, tag, without_empty
from workbench.report.timeline import draw_gantt
from workbench.runs.store import Store

Shown = tuple[Session, pd.DataFrame]
"""An exhibit with its rows, which are read once."""


def stronghold_verdicts(exhibits: list[Shown]) -> pd.DataFrame:
    """The verdicts of all figures under each other, without their reasons."""
    parts = []
    for session, rows in exhibits:
        verdicts = session.verdict(rows).drop(columns=["why"])
        verdicts.insert(0, "figure", session.exhibit.FIGURE)
        parts.append(verdicts)
    return pd.concat(parts, ignore_index=True)


def stronghold_sections(
    exhibits: list[Shown], outcomes: dict[str, Outcome], cell: Cell
) -> list[Html]:
    """A section a figure."""
    return [
        part
        for session, rows in exhibits
        for part in _section(session, rows, outcomes.get(session.exhibit.FIGURE), cell)
    ]


def proof_sections(
    size: str, exhibits: list[Shown], records: dict[str, list[RunRecord]], store: Store
) -> list[Html]:
    """What the runs prove besides the figures; at paper size, what the simulator explains."""
    out = _explained() if size == "paper" else []
    if not exhibits[0][0].simulated:
        out += [*_training(records["fig8a"]), *_predictions(records)]
    return out + _timeline(records["fig8a"], store)


def _section(
    session: Session, rows: pd.DataFrame, outcome: Outcome | None, cell: Cell
) -> list[Html]:
    exhibit = session.exhibit
    figure = session.draw(rows)
    words = f"{exhibit.TITLE}: {exhibit.CLAIM}"
    return [
        tag("h2", f"Figure {exhibit.FIGURE}: {exhibit.TITLE}", id=session.name),
        tag("p", exhibit.CLAIM, " ", tag("span", f"(section {exhibit.SECTION})", class_="soft")),
        _how_it_ended(outcome, rows),
        drawing(figure, words),
        tag("h3", "Verdict"),
        table(without_empty(session.verdict(rows)), cell),
        tag("details", tag("summary", f"Data: {len(rows)} values, and how each was obtained"),
            table(without_empty(_data(rows)))),
    ]  # fmt: skip


def _how_it_ended(outcome: Outcome | None, rows: pd.DataFrame) -> Html:
    known = rows["source"].isin(["measured", "simulated"]).any()
    if outcome is not None and outcome.ok and not known:
        words = f"Run {outcome.when} UTC, but by other code than this: it wants to be run again."
        return tag("p", words, class_="warn")
    return how_it_ended(outcome, "Shown from stored results." if known else "Not run yet.")


def _data(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows behind a figure, with the columns a reader needs."""
    spread = [
        "" if pd.isna(low) else f"{low:.4g} to {high:.4g}"
        for low, high in zip(rows["low"], rows["high"], strict=True)
    ]
    sources = [
        name_of(row.source, row.variant, row.hardware) for row in rows.itertuples(index=False)
    ]
    return pd.DataFrame(
        {
            "method": rows["label"],
            "layers": rows["layers"],
            "window": rows["window"],
            "value": rows["value"],
            "unit": rows["unit"],
            "spread": spread,
            "source": sources,
            "status": rows["status"],
            "how": rows["how"],
            "note": rows["note"],
        }
    )


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
