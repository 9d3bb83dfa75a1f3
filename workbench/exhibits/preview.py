"""Before anything runs: what will, how long it takes, what memory it needs, and what cannot fit.

Memory is the planner's, times are those of earlier runs or of plans (runs/expected.py). What is not
known yet is said to be unknown rather than guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from workbench.core.bytesize import format_bytes
from workbench.core.readable import format_seconds
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures.rows import label_of
from workbench.runs.answer import Answer
from workbench.runs.expected import expected
from workbench.runs.index import Index
from workbench.runs.planning import answer
from workbench.runs.progress import FINISHED
from workbench.runs.search import Search, at_layers
from workbench.runs.store import Store
from workbench.runs.sweep import Sweep

Stage = Search | Sweep
"""A part of an exhibit that runs: polled until it has ended, with points and events to show."""
COLUMNS = ("run", "layers", "state", "time", "device", "host", "disk", "note")
"""Columns where an exhibit names no others; ``model``, ``ranks`` and ``minibatch`` are there too.
``device``: memory of each device."""
RECORD_BYTES = 100_000
"""About what the folder of one run takes."""
UNKNOWN = "?"
SEARCHED = ("backward_packs", "forward_size")
"""Options for which a planner searches longer than a preview may, where they are ``auto``."""
FIRST_GUESS = "a first guess, this machine is not measured yet"
Rows = list[dict[str, Any]]


def preview_of(
    stages: Iterable[Stage], store: Store, columns: Sequence[str] = COLUMNS
) -> pd.DataFrame:
    """One row a run, and one for all of them together; empty where no stage has any."""
    found: list[tuple[dict[str, Any], float | None]] = []
    rows = Index(store).rows()
    for stage in stages:
        if isinstance(stage, Search):
            found.append(_of_search(stage, store, rows))
        else:
            found += [_of_run(point.spec, point.record, store, rows) for point in stage.points]
    lines = [row for row, _ in found]
    if lines:
        run, told = _total([seconds for _, seconds in found])
        lines.append({"run": "all", "disk": format_bytes(run * RECORD_BYTES), **told})
    blank = dict.fromkeys(columns, "")
    return pd.DataFrame([blank | line for line in lines], columns=[*columns])


def _of_run(
    spec: RunSpec, record: RunRecord | None, store: Store, rows: Rows
) -> tuple[dict[str, Any], float | None]:
    """A row, and its seconds; 0 for what is there already, None where unknown."""
    if record is not None:
        return _row(spec, state=cached(record), note=record.message), 0.0
    planned = _planned(spec, store)
    seconds, _ = expected(spec, planned, rows)
    return _planned_row(spec, planned, seconds), seconds


def _planned(spec: RunSpec, store: Store) -> Answer | None:
    """The plan of a run; None where a planner would search long, or has no answer here."""
    if "auto" in (getattr(spec.options, name, "") for name in SEARCHED):
        return None
    try:
        return answer(spec, store)
    except ValueError:
        return None


def _of_search(search: Search, store: Store, rows: Rows) -> tuple[dict[str, Any], float | None]:
    """The planner's guess, or the answer if it is known."""
    method = {"run": f"{label_of(search.spec.method)}: largest model"}
    if search.complete:
        found = at_layers(search.spec, max(1, search.layers))
        note = f"{search.layers} layers trained, {search.layers + 1} did not"
        return _row(found, state=cached(search.points[-1].record), note=note) | method, 0.0
    spec = at_layers(search.spec, max(1, search.guess))
    planned = answer(spec, store)
    seconds, _ = expected(spec, planned, rows)
    seconds = None if seconds is None else 2 * seconds
    note = f"at {search.guess + 1} layers {search.beyond.binding}"
    if planned.source != "measured":
        note = f"{FIRST_GUESS}; {note}"
    return _planned_row(spec, planned, seconds) | method | {"note": note}, seconds


def _planned_row(spec: RunSpec, planned: Answer | None, seconds: float | None) -> dict[str, Any]:
    """What a run needs by its plan; without one, the cap of its devices."""
    row = _row(spec, state="to run", note="")
    row["time"] = UNKNOWN if seconds is None else format_seconds(seconds)
    cap = spec.device_memory
    unknown = {"device": f"at most {format_bytes(cap)}" if cap else UNKNOWN, "host": UNKNOWN}
    if planned is None:
        return row | unknown
    plan = planned.plan
    if not plan.fits and planned.source != "measured":
        return row | unknown | {"note": f"{FIRST_GUESS}: {plan.binding}"}
    row |= {tier: format_bytes(nbytes) for tier, nbytes in plan.peak_bytes.items()}
    row["disk"] = format_bytes(plan.peak_bytes.get("disk", 0) + RECORD_BYTES)
    return row if plan.fits else row | {"state": "cannot fit", "note": plan.binding}


def _row(spec: RunSpec, **values: Any) -> dict[str, Any]:
    model, window = spec.model, getattr(spec.options, "window", "auto")
    return {
        "run": label_of(spec.method) + ("" if window == "auto" else f", window {window}"),
        "model": f"{model.family}, {model.layers} layers of {model.hidden}",
        "layers": model.layers, "ranks": spec.ranks, "minibatch": spec.batch, **values,
    }  # fmt: skip


def cached(record: RunRecord) -> str:
    """State of a run that has a record."""
    return f"{FINISHED} {record.started[:16].replace('T', ' ')}"


def _total(seconds: list[float | None]) -> tuple[int, dict[str, str]]:
    """How many of these runs are to be made, and the words of the row of all: 0 is a run that is
    there, None one of unknown time."""
    known = [value for value in seconds if value is not None]
    rest = sum(value is None for value in seconds)
    run = sum(value != 0.0 for value in seconds)
    time = UNKNOWN if rest and not sum(known) else format_seconds(sum(known))
    why = 'not measured here yet, which "Examine this machine" or a run does'
    note = f"{rest} of unknown time: {why}" if rest else ""
    state = f"{len(seconds) - run} finished, {run} to run"
    return run, {"state": state, "time": time, "note": note}
