"""The report: everything a reader needs to judge a reproduction, in one HTML file.

It is built from the store alone, so it can be made again without running anything, and a report of
half a reproduction says which half is missing and why. Every number stands beside how it was
obtained; every verdict beside the reason for it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from workbench import __version__
from workbench.figures.exhibit import (
    FIGURES,
    HERE,
    HERE_LANES,
    HERE_OFFLOAD,
    HERE_SERVERS,
    words_of,
)
from workbench.figures.style import name_of
from workbench.figures.verdict import FAILS, HOLDS, MISSING, UNTESTED
from workbench.model.corpus import STDLIB
from workbench.preview import origin
from workbench.report.evidence import (
    draw_losses,
    loss_table,
    losses_of,
    prediction_summary,
    prediction_table,
)
from workbench.report.explained import explained_summary, explained_table
from workbench.report.harmony import (
    ANCHOR,
    harmony_exhibits,
    harmony_sections,
    harmony_verdicts,
)
from workbench.report.here import SERVERS_COLUMNS, here_section, lanes_section, measured_on
from workbench.report.page import Html, drawing, facts, page, table, tag
from workbench.report.timeline import draw_gantt
from workbench.runs.progress import format_seconds
from workbench.runs.record import RunRecord
from workbench.runs.store import Store, write_whole
from workbench.session import Session, open_exhibit

OUTCOMES = "exhibits.json"
CLASSES = {HOLDS: "holds", FAILS: "fails", UNTESTED: "untold", MISSING: "untold"}
SIGNS = {HOLDS: "\u2713 ", FAILS: "\u2717 ", UNTESTED: "? ", MISSING: "- "}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the notebook of an exhibit ended."""

    ok: bool
    message: str
    """Why it failed; empty when it did not."""
    seconds: float
    started: str
    """ISO 8601, UTC."""
    notebook: str
    """File name of the executed notebook, beside the report."""
    text: str = STDLIB
    """What it trained on, where that can be chosen."""


def folder_of(store: Store, size: str) -> Path:
    """Where the report of a size lies, with its figures, tables and notebooks."""
    return store.root / "reports" / size


def load_outcomes(store: Store, size: str) -> dict[str, Outcome]:
    """How the exhibits of a size ended when they were last run; {} when none was."""
    try:
        data = json.loads((folder_of(store, size) / OUTCOMES).read_text())
        return {figure: Outcome(**fields) for figure, fields in data.items()}
    except (OSError, ValueError, TypeError):
        return {}


def save_outcomes(store: Store, size: str, outcomes: dict[str, Outcome]) -> None:
    """Keep them for `workbench report`. Raises StoreError where that cannot be written."""
    folder = folder_of(store, size)
    data = {figure: asdict(outcome) for figure, outcome in outcomes.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / OUTCOMES, json.dumps(data, indent=1) + "\n")
    except OSError as error:
        raise store.unusable(error) from error


def write_report(size: str, results: str | Path) -> Path:
    """Build RESULTS/reports/SIZE/report.html from what the store has; nothing runs.

    Raises ValueError for an unknown size, StoreError where the report cannot be written.
    """
    sessions = [open_exhibit(figure, size, results) for figure in FIGURES]
    store = sessions[0].store
    outcomes = load_outcomes(store, size)
    tables = {session.name: session.rows() for session in sessions}
    records = {session.name: session.records() for session in sessions}
    harmony = harmony_exhibits(size, store.root, outcomes)
    here, lanes, servers = (open_exhibit(name, size, results) for name in HERE)
    body = [
        _head(size, sessions, records, measured_on(tables.values())),
        _summary(
            {
                "STRONGHOLD": _stronghold_verdicts(sessions, tables),
                "Harmony": harmony_verdicts(harmony),
            },
            outcomes,
        ),
        *(_exhibit(session, tables[session.name], outcomes) for session in sessions),
        here_section(here, outcomes.get(HERE_OFFLOAD), _verdict_cell),
        lanes_section(lanes, outcomes.get(HERE_LANES)),
        here_section(servers, outcomes.get(HERE_SERVERS), _verdict_cell, SERVERS_COLUMNS),
        harmony_sections(harmony, outcomes, _verdict_cell),
        _explained() if size == "paper" else [],
        _training(records["fig8a"]) if not sessions[0].simulated else [],
        _predictions(records) if not sessions[0].simulated else [],
        _timeline(records["fig8a"], store),
        _provenance(sessions, records),
        _commands(size),
    ]
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


def _stronghold_verdicts(sessions: list[Session], tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    parts = []
    for session in sessions:
        verdicts = session.verdict(tables[session.name]).drop(columns=["why"])
        verdicts.insert(0, "figure", session.exhibit.FIGURE)
        parts.append(verdicts)
    return pd.concat(parts, ignore_index=True)


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


def _exhibit(session: Session, rows: pd.DataFrame, outcomes: dict[str, Outcome]) -> list[Html]:
    exhibit = session.exhibit
    outcome = outcomes.get(exhibit.FIGURE)
    figure = session.draw(rows)
    words = f"{exhibit.TITLE}: {exhibit.CLAIM}"
    return [
        tag("h2", f"Figure {exhibit.FIGURE}: {exhibit.TITLE}", id=session.name),
        tag("p", exhibit.CLAIM, " ", tag("span", f"(section {exhibit.SECTION})", class_="soft")),
        _how_it_ended(outcome, rows),
        drawing(figure, words),
        tag("h3", "Verdict"),
        table(_without_empty(session.verdict(rows)), _verdict_cell),
        tag("details", tag("summary", f"Data: {len(rows)} values, and how each was obtained"),
            table(_without_empty(_data(rows)))),
    ]  # fmt: skip


def _without_empty(frame: pd.DataFrame) -> pd.DataFrame:
    """Without columns that say nothing."""
    return frame.loc[:, [(frame[name].astype(str) != "").any() for name in frame.columns]]


def _how_it_ended(outcome: Outcome | None, rows: pd.DataFrame) -> Html:
    if outcome is not None and not outcome.ok:
        return tag("p", f"It did not run to its end: {outcome.message}", class_="warn")
    known = rows["source"].isin(["measured", "simulated"]).any()
    if outcome is None:
        words = "Shown from stored results." if known else "Not run yet."
        return tag("p", words, class_="soft")
    took = format_seconds(outcome.seconds)
    started = outcome.started[:16].replace("T", " ")
    if not known:
        words = f"Run {started} UTC, but by other code than this: it wants to be run again."
        return tag("p", words, class_="warn")
    return tag("p", f"Run {started} UTC in {took}; notebook {outcome.notebook}.", class_="soft")


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
