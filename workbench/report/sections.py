"""Exhibits in the report: claim and figure of each, then the verdicts and rows behind them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd

from workbench.exhibits import find
from workbench.exhibits.session import Session
from workbench.figures.rows import ESTIMATED, MEASURED
from workbench.figures.verdict import FAILS, HOLDS, MISSING
from workbench.report.outcomes import Outcome, how_it_ended
from workbench.report.page import Cell, Html, drawing, facts, table, tag, without_empty
from workbench.runs.store import Store

MOST_ROWS = 400
"""Rows that a section lists; losses by step are many, and in the CSV beside the figure."""

COUNTED = (
    (HOLDS, "holds", "hold"),
    (FAILS, "does not hold", "do not hold"),
    ("cannot be told", "cannot be told here", "cannot be told here"),
    (MISSING, "has no result", "have no result"),
)
"""Beginnings of verdicts, and words for one and for several of them."""

KINDS = HERE, COMMITTED, SIMULATED, ESTIMATES = (
    "measured here", "committed rows", "simulated", "by counted operations",
)  # fmt: skip
"""Kinds of numbers that a claim is judged by."""

Shown = tuple[Session, pd.DataFrame]
"""An exhibit with its rows, which are read once."""


def shown_exhibits(
    figures: Iterable[str], size: str, store: Store, outcomes: dict[str, Outcome]
) -> list[Shown]:
    """Exhibits at a size with their rows, each on the text and with the parameters that it was last
    run with."""
    ran = {name: {"text": o.text, **o.changes} for name, o in outcomes.items()}
    sessions = [Session(find(each), size, store, **ran.get(each, {})) for each in figures]
    return [(session, session.rows()) for session in sessions]


def verdicts_of(exhibits: Iterable[Shown]) -> pd.DataFrame:
    """The verdicts of exhibits under each other, with columns `exhibit`, `kind` (of `KINDS`),
    `claim`, `verdict` and `why`; none of those that judge nothing."""
    parts = [pd.DataFrame(columns=["exhibit", "kind", "claim", "verdict", "why"], dtype=object)]
    for session, rows in exhibits:
        verdicts = session.verdict(rows).rename(columns={"goal": "claim"})
        if "verdict" in verdicts:
            judged = verdicts.get("judged", pd.Series("", verdicts.index))
            # A series that was measured and has a variant is of named hardware.
            own = {MEASURED: HERE if session.exhibit.runs else COMMITTED, ESTIMATED: ESTIMATES}
            kinds = [
                SIMULATED if s.startswith(SIMULATED) else own.get(s, COMMITTED) for s in judged
            ]
            verdicts = verdicts.assign(exhibit=session.exhibit.figure, kind=kinds)
            parts.append(verdicts[[*parts[0].columns]].astype(object))
    return pd.concat(parts, ignore_index=True)


def counted(verdicts: pd.Series) -> str:
    """``3 hold, 1 does not hold``; why one cannot be told is in its table."""
    found = []
    for start, one, many in COUNTED:
        n = int(verdicts.astype(str).str.startswith(start).sum())
        found += [f"{n} {one if n == 1 else many}"] if n else []
    return ", ".join(found) or "nothing is judged"


def failing(
    verdicts: pd.DataFrame, place: Callable[[str], Html | None] = lambda name: None
) -> Html:
    """A list of the claims that do not hold, each with its reason, and before it the `place` of its
    exhibit; empty where all hold."""
    lines = [
        tag("li", place(row.exhibit), tag("b", row.claim), f": {row.why}")
        for row in verdicts[verdicts["verdict"] == FAILS].itertuples()
    ]
    return tag("ul", lines) if lines else Html()


def figures(exhibits: Iterable[Shown], outcomes: dict[str, Outcome]) -> list[Html]:
    """A section an exhibit, and before those of a system its introduction, where it has one."""
    out: list[Html] = []
    introduced = set()
    for session, rows in exhibits:
        exhibit = session.exhibit
        if exhibit.introduction and exhibit.system not in introduced:
            introduced.add(exhibit.system)
            heading, about = exhibit.introduction
            about = about.format(**exhibit.sentences)
            out += [tag("h1", heading, id=exhibit.system.lower()), tag("p", about)]
        out += _figure(session, rows, outcomes.get(exhibit.figure))
    return out


def _figure(session: Session, rows: pd.DataFrame, outcome: Outcome | None) -> list[Html]:
    """Claim, how it ended, the drawing with its small print under it, and what does not hold."""
    exhibit, verdicts = session.exhibit, verdicts_of([(session, rows)])
    place = [" ", tag("span", f"({exhibit.place})", class_="soft")] if exhibit.place else []
    out = [
        tag("h2", exhibit.heading, id=session.name),
        tag("p", exhibit.claim, *place),
        *_how_it_ended(session, rows, outcome),
    ]
    if len(rows):
        session.renew(rows)
        drawn = session.draw(rows, printed=False)
        out.append(drawing(drawn, exhibit.title, drawn.get_label().strip()))
    words = counted(verdicts["verdict"]) if len(verdicts) else ""
    link = tag("a", "tables", href=f"#{session.name}-tables")
    told = tag("p", f"{exhibit.judgement}: {words}; " if words else "", link)
    lacking = failing(verdicts)
    return [*out, told, tag("p", "Does not hold:") if lacking else "", lacking]


def tables(exhibits: Iterable[Shown], cell: Cell) -> list[Html]:
    """Verdicts and rows of each exhibit; and facts of those for which nothing runs, since no run
    tells them."""
    out = [tag("h1", "Tables", id="tables")]
    for session, rows in exhibits:
        exhibit, verdicts = session.exhibit, session.verdict(rows)
        shown, told = exhibit.listed(rows), f"Data: {len(rows)} {exhibit.counted}"
        if exhibit.runs:
            beyond = f", the first {MOST_ROWS} of them here" if len(rows) > MOST_ROWS else ""
            told += f"{beyond}, and how each was obtained"
            verdicts, shown = without_empty(verdicts), without_empty(shown.head(MOST_ROWS))
        out.append(tag("h2", exhibit.heading, id=f"{session.name}-tables"))
        if len(verdicts):
            out += [tag("h3", exhibit.judgement), table(verdicts, cell)]
        if not exhibit.runs:
            out.append(facts(session.facts(rows)))
        if len(rows):
            out.append(tag("details", tag("summary", told), table(shown, cell)))
    return out


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
