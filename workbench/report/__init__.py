"""The report: everything a reader needs to judge a reproduction, in one HTML file.

It is built from the store alone, so it can be made again without running anything, and a report of
half a reproduction says which half is missing and why. Every number stands beside how it was
obtained; every verdict beside the reason for it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from workbench import __version__
from workbench.core.files import write_whole
from workbench.core.record import RunRecord
from workbench.exhibits import open_exhibit
from workbench.exhibits.preview import origin
from workbench.exhibits.session import Session
from workbench.figures.exhibit import (
    FIGURES,
    HERE,
    HERE_LANES,
    HERE_OFFLOAD,
    HERE_SERVERS,
    words_of,
)
from workbench.figures.verdict import FAILS, HOLDS, MISSING, UNTESTED
from workbench.report.harmony import (
    ANCHOR,
    harmony_exhibits,
    harmony_sections,
    harmony_verdicts,
)
from workbench.report.here import SERVERS_COLUMNS, here_section, lanes_section, measured_on
from workbench.report.outcomes import Outcome, folder_of, load_outcomes
from workbench.report.page import Html, facts, page, table, tag
from workbench.report.stronghold import proof_sections, stronghold_sections, stronghold_verdicts

CLASSES = {HOLDS: "holds", FAILS: "fails", UNTESTED: "untold", MISSING: "untold"}
SIGNS = {HOLDS: "\u2713 ", FAILS: "\u2717 ", UNTESTED: "? ", MISSING: "- "}


def write_report(
    size: str, results: str | Path, echo: Callable[[str], object] = lambda line: None
) -> Path:
    """Build RESULTS/reports/SIZE/report.html from what the store has; nothing runs. `echo` hears of
    each file there that cannot be used, which the report tells as well.

    Raises ValueError for an unknown size, StoreError where the report cannot be written.
    """
    sessions = [open_exhibit(figure, size, results) for figure in FIGURES]
    store = sessions[0].store
    outcomes = load_outcomes(store, size)
    stronghold = [(session, session.rows()) for session in sessions]
    records = {session.name: session.records() for session in sessions}
    harmony = harmony_exhibits(size, store.root, outcomes)
    here, lanes, servers = (open_exhibit(name, size, results) for name in HERE)
    body = [
        _head(size, sessions, records, measured_on(rows for _, rows in stronghold)),
        _summary(
            {
                "STRONGHOLD": stronghold_verdicts(stronghold),
                "Harmony": harmony_verdicts(harmony),
            },
            outcomes,
        ),
        stronghold_sections(stronghold, outcomes, _verdict_cell),
        here_section(here, outcomes.get(HERE_OFFLOAD), _verdict_cell),
        lanes_section(lanes, outcomes.get(HERE_LANES)),
        here_section(servers, outcomes.get(HERE_SERVERS), _verdict_cell, SERVERS_COLUMNS),
        harmony_sections(harmony, outcomes, _verdict_cell),
        proof_sections(size, stronghold, records, store),
        _provenance(sessions, records),
        _commands(size),
    ]
    problems: dict[Path, str] = {}
    for session in (*sessions, *(session for session, _ in harmony)):
        problems |= session.store.problems
    told = [f"{path} is not used: {why}" for path, why in sorted(problems.items())]
    for line in told:
        echo(line)
    if told:
        body.append([tag("h2", "Files that are not used"), tag("ul", [tag("li", x) for x in told])])
    path = folder_of(store, size) / "report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page(f"STRONGHOLD and Harmony, size {size}", *body))
    except OSError as error:
        raise store.unusable(error) from error
    return path


def _head(
    size: str, sessions: list[Session], records: dict[str, list[RunRecord]], measured: str
) -> list[Html]:
    simulated = sessions[0].simulated
    where = "simulated with constants of the published machine" if simulated else "run here"
    where += f", beside rows that this project measured on {measured}" if measured else ""
    every = [record for group in records.values() for record in group]
    machine = origin(every, simulated=simulated)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    links = [tag("a", f"figure {s.exhibit.FIGURE}", href=f"#{s.name}") for s in sessions]
    links.append(tag("a", "measured on named hardware", href=f"#{HERE_OFFLOAD}"))
    links.append(tag("a", "lane by lane", href=f"#{HERE_LANES}"))
    links.append(tag("a", "on several GPUs", href=f"#{HERE_SERVERS}"))
    links.append(tag("a", "Harmony", href=f"#{ANCHOR}"))
    others = ["training", "predictions", "timeline"] if not simulated else []
    others += ["explained"] if size == "paper" else []
    links += [tag("a", name, href=f"#{name}") for name in (*others, "provenance")]
    return [
        tag("h1", "STRONGHOLD (SC'22) and Harmony (VLDB'22) beside their baselines"),
        tag("p", f"Size {size}, {where}. {machine['processor']}, GPU: {machine['GPU']}. Report of "
            f"{now}, Workbench {__version__}.", class_="soft"),
        tag("p", "Hollow marks are published, hatched (in lines: half filled) simulated, filled "
            "measured. Absolute numbers of other hardware prove nothing: claims are compared as "
            "ratios, and a claim that this machine cannot test is not judged."),
        tag("nav", links),
    ]  # fmt: skip


def _summary(systems: dict[str, pd.DataFrame], outcomes: dict[str, Outcome]) -> list[Html]:
    """How many claims of each system hold, and all verdicts."""
    out = [tag("h2", "Verdicts")]
    failed = [
        tag("li", f"{words_of(figure)}: {outcome.message}")
        for figure, outcome in outcomes.items()
        if not outcome.ok
    ]
    if failed:
        words = "Not all exhibits ran to their end:"
        out.append(tag("div", words, tag("ul", failed), class_="warn"))
    for name, verdicts in systems.items():
        counts = verdicts["verdict"].value_counts()
        told = [f"{verdict} {counts[verdict]}" for verdict in CLASSES if verdict in counts]
        out.append(tag("p", f"{name}, {len(verdicts)} claims: {', '.join(told)}."))
        out.append(table(verdicts, _verdict_cell))
    return out


def _verdict_cell(name: str, value: Any) -> Html | None:
    if name == "verdict":
        return tag("span", SIGNS[value] + value, class_=CLASSES[value])
    if name == "exhibit":
        return tag("a", words_of(value), href=f"#{value}")
    return tag("a", value, href=f"#fig{value}") if name == "figure" else None


def _provenance(sessions: list[Session], records: dict[str, list[RunRecord]]) -> list[Html]:
    every = {record.key: record for group in records.values() for record in group}
    told = origin(list(every.values()), simulated=sessions[0].simulated)
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
                "notes": record.message or "; ".join(record.notes),
            }
            for record in sorted(every.values(), key=lambda record: record.started)
        ]
    )
    listed = tag("details", tag("summary", f"All {len(runs)} runs"), table(runs))
    return [
        tag("h2", "Where the numbers come from", id="provenance"),
        facts(told),
        listed if len(runs) else Html(),
    ]


def _commands(size: str) -> list[Html]:
    lines = {
        "make reproduce": "everything in this report, at size smoke",
        f"workbench reproduce --size {size}": "this report; what has a record is not run again",
        f"workbench figure fig8a --size {size}": "one exhibit",
        f"workbench figure fig8a --size {size} -p force=true": "the same, all of it run again",
        "workbench report": "the report alone, from the results there are",
        "workbench doctor": "measure this machine, say what can run on it",
        "make lab": "the same notebooks by hand: notebooks/figures",
    }
    width = max(map(len, lines))
    shown = "\n".join(f"{command:{width}}  # {words}" for command, words in lines.items())
    note = "`workbench` is .venv/bin/workbench in the checkout."
    return [tag("h2", "Doing it again"), tag("pre", shown), tag("p", note, class_="soft")]
