"""An exhibit as a section of the report: claim, figure, verdicts, and the rows behind them."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from workbench.exhibits import find
from workbench.exhibits.session import Session
from workbench.model.corpus import STDLIB
from workbench.report.outcomes import Outcome, how_it_ended
from workbench.report.page import Cell, Html, drawing, facts, table, tag, without_empty
from workbench.runs.store import Store

MOST_ROWS = 400
"""Rows that a section lists; losses by step are many, and in the CSV beside the figure."""

Shown = tuple[Session, pd.DataFrame]
"""An exhibit with its rows, which are read once."""


def shown_exhibits(
    figures: Iterable[str], size: str, store: Store, outcomes: dict[str, Outcome]
) -> list[Shown]:
    """Exhibits at a size with their rows, each on the text that it was last run on."""
    texts = {figure: outcome.text for figure, outcome in outcomes.items()}
    sessions = [Session(find(each), size, store, texts.get(each, STDLIB)) for each in figures]
    return [(session, session.rows()) for session in sessions]


def verdicts_of(exhibits: Iterable[Shown]) -> pd.DataFrame:
    """The verdicts of exhibits under each other, without their reasons."""
    parts = []
    for session, rows in exhibits:
        verdicts = session.verdict(rows).drop(columns=["why"])
        verdicts.insert(0, "exhibit", session.exhibit.figure)
        parts.append(verdicts.astype(object))
    return pd.concat(parts, ignore_index=True)


def sections(exhibits: Iterable[Shown], outcomes: dict[str, Outcome], cell: Cell) -> list[Html]:
    """A section an exhibit, and before those of a system its introduction, where it has one."""
    out: list[Html] = []
    introduced = set()
    for session, rows in exhibits:
        exhibit = session.exhibit
        if exhibit.introduction and exhibit.system not in introduced:
            introduced.add(exhibit.system)
            heading, about = exhibit.introduction
            out += [tag("h1", heading, id=exhibit.system.lower()), tag("p", about)]
        out += _section(session, rows, outcomes.get(exhibit.figure), cell)
    return out


def _section(
    session: Session, rows: pd.DataFrame, outcome: Outcome | None, cell: Cell
) -> list[Html]:
    """Claim, figure, verdicts, rows; and facts of an exhibit for which nothing runs, since no run
    tells them."""
    exhibit, verdicts, shown = session.exhibit, session.verdict(rows), session.exhibit.listed(rows)
    counted = f"Data: {len(rows)} {exhibit.counted}"
    if exhibit.runs:
        beyond = f", the first {MOST_ROWS} of them here" if len(rows) > MOST_ROWS else ""
        counted += f"{beyond}, and how each was obtained"
        verdicts, shown = without_empty(verdicts), without_empty(shown.head(MOST_ROWS))
    place = [" ", tag("span", f"({exhibit.place})", class_="soft")] if exhibit.place else []
    out = [
        tag("h2", exhibit.heading, id=session.name),
        tag("p", exhibit.claim, *place),
        *_how_it_ended(session, rows, outcome),
    ]
    if len(rows):
        out.append(drawing(session.draw(rows), f"{exhibit.title}: {exhibit.claim}"))
    if len(verdicts):
        out += [tag("h3", exhibit.judgement), table(verdicts, cell)]
    if not exhibit.runs:
        out.append(facts(session.facts(rows)))
    listed = tag("details", tag("summary", counted), table(shown))
    return [*out, listed if len(rows) else Html()]


def _how_it_ended(session: Session, rows: pd.DataFrame, outcome: Outcome | None) -> list[Html]:
    exhibit = session.exhibit
    if not exhibit.runs:
        about = tag("p", f"{exhibit.about}, and they are the same at every size.", class_="soft")
        ended = how_it_ended(outcome, "") if outcome is not None and not outcome.ok else ""
        return [about, *([ended] if ended else [])]
    known = rows["source"].isin(["measured", "simulated"]).any()
    if outcome is not None and outcome.ok and not known:
        words = f"Run {outcome.when} UTC, but by other code than this: it wants to be run again."
        return [tag("p", words, class_="warn")]
    return [how_it_ended(outcome, exhibit.stored if known else "Not run yet.")]


def measured_on(tables: Iterable[pd.DataFrame]) -> str:
    """The named hardware whose committed rows stand in these figures; empty where none does."""
    found = {
        row.hardware
        for rows in tables
        for row in rows[(rows["source"] == "measured") & (rows["variant"] != "")].itertuples()
    }
    return "; ".join(sorted(found))
