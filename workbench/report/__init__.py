"""The report: everything a reader needs to judge a reproduction, in one HTML file.

A summary of ten lines comes first, then all figures, then all tables.
It is built from the store alone, so it can be made again without running anything, and a report of
half a reproduction says which half is missing and why. Every number stands beside how it was
obtained; every verdict beside the reason for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.files import write_whole
from workbench.core.record import RunRecord
from workbench.exhibits import EXHIBITS, STRONGHOLD, find, open_exhibit
from workbench.exhibits.provenance import origin
from workbench.figures.verdict import BUSY, FAILS, HOLDS, MISSING, UNTESTED
from workbench.report.outcomes import folder_of, load_outcomes
from workbench.report.page import Html, facts, page, table, tag
from workbench.report.proofs import plans_judged, proof_figures, proof_tables
from workbench.report.sections import figures, measured_on, shown_exhibits, tables
from workbench.report.summary import TITLE, by_kind, summary, verdicts
from workbench.runs.columns import cell as told
from workbench.runs.starts import start_words

CLASSES = {HOLDS: "holds", FAILS: "fails", **dict.fromkeys((BUSY, UNTESTED, MISSING), "untold")}
SIGNS = {HOLDS: "\u2713 ", FAILS: "\u2717 ", BUSY: "? ", UNTESTED: "? ", MISSING: "- "}


def write_report(
    size: str, results: str | Path, echo: Callable[[str], object] = lambda line: None
) -> Path:
    """Build RESULTS/reports/SIZE/report.html from what the store has; nothing runs. `echo` hears
    how many claims hold, and of each file there that cannot be used, which the report tells too.

    Raises ValueError for an unknown size, StoreError where the report cannot be written.
    """
    store = open_exhibit(next(iter(EXHIBITS)), size, results).store
    outcomes = load_outcomes(store, size)
    exhibits = shown_exhibits(EXHIBITS, size, store, outcomes)
    first = [shown for shown in exhibits if shown[0].exhibit.figure in STRONGHOLD]
    compared = next(session.records() for session, _ in first if session.name == "fig8a")
    simulated = first[0][0].simulated
    every = [] if simulated else store.records()
    where = "simulated with constants of the published machine" if simulated else "run here"
    if measured := measured_on(rows for _, rows in first):
        where += f", beside rows that this project measured on {measured}"
    judged = verdicts(exhibits, plans_judged(every))
    body = [
        summary(size, exhibits, outcomes, every, where, judged),
        figures(exhibits, outcomes),
        proof_figures(compared, store, simulated=simulated),
        tables(exhibits, _cell),
        proof_tables(size, every, _cell, simulated=simulated),
        _provenance(every, simulated=simulated),
        _commands(size),
    ]
    for kind, words in by_kind(judged).items():
        echo(f"{kind}: {words}")
    unused = [f"{path} is not used: {why}" for path, why in sorted(store.problems.items())]
    for line in unused:
        echo(line)
    if unused:
        listed = tag("ul", [tag("li", line) for line in unused])
        body.append([tag("h2", "Files that are not used"), listed])
    path = folder_of(store, size) / "report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page(f"{TITLE}, size {size}", *body))
    except OSError as error:
        raise store.unusable(error) from error
    return path


def _cell(name: str, value: Any) -> Html | None:
    if name == "verdict":
        return tag("span", SIGNS.get(value, "? ") + value, class_=CLASSES.get(value, "untold"))
    if name == "exhibit":
        return tag("a", find(value).words, href=f"#{find(value).name}")
    coded = name == "method" or (name == "status" and value != "ok")
    return tag("span", told(name, value)) if coded else None


def _provenance(every: list[RunRecord], *, simulated: bool) -> list[Html]:
    known = origin(every, simulated=simulated)
    runs = pd.DataFrame(
        [
            {
                "record": record.key,
                "method": record.method,
                "layers": record.spec["model"]["layers"],
                "status": record.status,
                "engine": record.engine,
                "started": record.started[:19].replace("T", " "),
                "seconds": record.seconds and round(record.seconds, 1),
                "start": start_words(record.start),
                "machine": record.busy and f"busy: {record.busy}",
                "notes": record.message or "; ".join(record.notes),
            }
            for record in every
        ]
    )
    listed = tag("details", tag("summary", f"All {len(runs)} runs"), table(runs, _cell))
    return [
        tag("h2", "Where the numbers come from", id="provenance"),
        facts(known),
        listed if len(runs) else Html(),
    ]


def _commands(size: str) -> list[Html]:
    lines = {
        "make reproduce": "everything in this report, at size smoke",
        f"workbench reproduce --size {size}": "this report; runs with a record are not made again",
        f"workbench figure fig8a --size {size}": "one exhibit",
        f"workbench figure fig9 --size {size} -p batch=8": "the same with another batch",
        "workbench report": "the report alone, from the results there are",
        "workbench doctor": "measure this machine, say what can run on it",
        "make lab": "the same notebooks by hand: notebooks/figures",
    }
    width = max(map(len, lines))
    shown = "\n".join(f"{command:{width}}  # {words}" for command, words in lines.items())
    note = "`workbench` is .venv/bin/workbench in the checkout."
    return [tag("h2", "Doing it again"), tag("pre", shown), tag("p", note, class_="soft")]
