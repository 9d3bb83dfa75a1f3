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
from workbench.exhibits import EXHIBITS, STRONGHOLD, find, open_exhibit
from workbench.exhibits.base import origin
from workbench.exhibits.session import Session
from workbench.figures.verdict import BUSY, FAILS, HOLDS, MISSING, UNTESTED
from workbench.report.outcomes import Outcome, folder_of, load_outcomes
from workbench.report.page import Html, facts, page, table, tag
from workbench.report.proofs import plans_judged, proof_sections
from workbench.report.sections import Shown, measured_on, sections, shown_exhibits, verdicts_of
from workbench.runs.starts import start_words
from workbench.runs.store import Store

CLASSES = {HOLDS: "holds", FAILS: "fails", **dict.fromkeys((BUSY, UNTESTED, MISSING), "untold")}
SIGNS = {HOLDS: "\u2713 ", FAILS: "\u2717 ", BUSY: "? ", UNTESTED: "? ", MISSING: "- "}


def write_report(
    size: str, results: str | Path, echo: Callable[[str], object] = lambda line: None
) -> Path:
    """Build RESULTS/reports/SIZE/report.html from what the store has; nothing runs. `echo` hears of
    each file there that cannot be used, which the report tells as well.

    Raises ValueError for an unknown size, StoreError where the report cannot be written.
    """
    store = open_exhibit(next(iter(EXHIBITS)), size, results).store
    outcomes = load_outcomes(store, size)
    exhibits = shown_exhibits(EXHIBITS, size, store, outcomes)
    systems: dict[str, list[Shown]] = {}
    for shown in exhibits:
        systems.setdefault(shown[0].exhibit.system, []).append(shown)
    judged = {system: verdicts_of(parts) for system, parts in systems.items() if system}
    first = [shown for shown in exhibits if shown[0].exhibit.figure in STRONGHOLD]
    simulated = first[0][0].simulated
    every = _every([shown[0] for shown in exhibits], store) if not simulated else []
    if len(plans := plans_judged(every)):
        judged["Plans"] = plans
    compared = next(s.records() for s, _ in first if s.name == "fig8a")
    body = [
        _head(size, systems, every, measured_on(rows for _, rows in first), simulated=simulated),
        _summary(judged, outcomes),
        sections(exhibits, outcomes, _verdict_cell),
        proof_sections(size, compared, every, store, _verdict_cell, simulated=simulated),
        _provenance(every, simulated=simulated),
        _commands(size),
    ]
    told = [f"{path} is not used: {why}" for path, why in sorted(store.problems.items())]
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


def _every(sessions: list[Session], store: Store) -> list[RunRecord]:
    """All runs that the store has, oldest first; those of exhibits as these show them, with what
    is predicted of a library's run."""
    shown = {record.key: record for session in sessions for record in session.records()}
    return [shown.get(record.key, record) for record in store.records()]


def _head(
    size: str,
    systems: dict[str, list[Shown]],
    every: list[RunRecord],
    measured: str,
    *,
    simulated: bool,
) -> list[Html]:
    where = "simulated with constants of the published machine" if simulated else "run here"
    where += f", beside rows that this project measured on {measured}" if measured else ""
    machine = origin(every, simulated=simulated)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    links = []
    for system, exhibits in systems.items():
        if exhibits[0][0].exhibit.introduction:
            links.append(tag("a", system, href=f"#{system.lower()}"))
        else:
            links += [tag("a", s.exhibit.link, href=f"#{s.name}") for s, _ in exhibits]
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
        tag("li", f"{find(figure).words}: {outcome.message}")
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
        return tag("a", find(value).words, href=f"#{find(value).name}")
    return None


def _provenance(every: list[RunRecord], *, simulated: bool) -> list[Html]:
    told = origin(every, simulated=simulated)
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
    listed = tag("details", tag("summary", f"All {len(runs)} runs"), table(runs))
    return [
        tag("h2", "Where the numbers come from", id="provenance"),
        facts(told),
        listed if len(runs) else Html(),
    ]


def _commands(size: str) -> list[Html]:
    lines = {
        "make reproduce": "everything in this report, at size smoke",
        f"workbench reproduce --size {size}": "this report; runs with a record are not made again",
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
