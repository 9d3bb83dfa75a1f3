"""Harmony's exhibits as parts of the report: figure, verdicts and rows of each."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workbench.exhibits.harmony import HarmonySession
from workbench.figures.exhibit import HARMONY, find, words_of
from workbench.figures.harmony.looks import ESTIMATES
from workbench.model.corpus import STDLIB
from workbench.report.outcomes import Outcome, how_it_ended
from workbench.report.page import Cell, Html, drawing, table, tag, without_empty
from workbench.runs.store import Store

ANCHOR = "harmony"
COLUMNS = {
    "model": "model", "label": "method", "ranks": "devices", "minibatch": "minibatch",
    "setting": "setting", "quantity": "quantity", "value": "value", "unit": "unit",
    "source": "source", "variant": "of", "status": "status", "how": "how", "note": "note",
}  # fmt: skip
"""Columns of the rows, as the report names them."""
MOST_ROWS = 400
"""Rows that a section lists; losses by step are many, and in the CSV beside the figure."""


Shown = tuple[HarmonySession, pd.DataFrame]
"""An exhibit with its rows, which are read once."""


def harmony_exhibits(size: str, results: Path, outcomes: dict[str, Outcome]) -> list[Shown]:
    """All of them at a size, on the text that each was last run on."""
    out = []
    for figure in HARMONY:
        outcome = outcomes.get(figure)
        text = outcome.text if outcome else STDLIB
        session = HarmonySession(find(figure), size, Store(results), text)
        out.append((session, session.rows()))
    return out


def harmony_verdicts(exhibits: list[Shown]) -> pd.DataFrame:
    """The verdicts of all exhibits under each other, without their reasons."""
    parts = []
    for session, rows in exhibits:
        verdicts = session.verdict(rows).drop(columns=["why"])
        verdicts.insert(0, "exhibit", session.name)
        parts.append(verdicts.astype(object))
    return pd.concat(parts, ignore_index=True)


def harmony_sections(
    exhibits: list[Shown],
    outcomes: dict[str, Outcome],
    cell: Cell,
) -> list[Html]:
    """A section an exhibit, after what all of them share."""
    about = (
        "Exhibits of the second system. The values of its paper are not known to this project. "
        f"{ESTIMATES} Dotted edges are reference estimates, hatched (in lines: half filled) is "
        "simulated, filled is measured."
    )
    out = [
        tag("h1", "Harmony (VLDB'22): models beyond all devices of a server", id=ANCHOR),
        tag("p", about),
    ]
    for session, rows in exhibits:
        out += _section(session, rows, outcomes.get(session.exhibit.FIGURE), cell)
    return out


def _section(
    session: HarmonySession,
    rows: pd.DataFrame,
    outcome: Outcome | None,
    cell: Cell,
) -> list[Html]:
    exhibit = session.exhibit
    shown = rows.reindex(columns=list(COLUMNS)).rename(columns=COLUMNS).head(MOST_ROWS)
    beyond = f", the first {MOST_ROWS} of them here" if len(rows) > MOST_ROWS else ""
    return [
        tag("h2", f"{words_of(exhibit.FIGURE)}: {exhibit.TITLE}", id=session.name),
        tag("p", exhibit.CLAIM, " ", tag("span", f"({exhibit.SECTION})", class_="soft")),
        how_it_ended(outcome, "Shown from stored results and kept plans."),
        drawing(session.draw(rows), f"{exhibit.TITLE}: {exhibit.CLAIM}"),
        tag("h3", "Verdict"),
        table(without_empty(session.verdict(rows)), cell),
        tag(
            "details",
            tag("summary", f"Data: {len(rows)} values{beyond}, and how each was obtained"),
            table(without_empty(shown)),
        ),
    ]
