"""Before anything runs: what will, how long it takes, what memory it needs, and what cannot fit.

Memory is the planner's, times are those of earlier runs or of plans (runs/expected.py). What is not
known yet is said to be unknown rather than guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from workbench.core.bytesize import format_bytes
from workbench.core.methods import find
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.base import Stage
from workbench.runs.expected import expected
from workbench.runs.index import Index
from workbench.runs.planning import Answer, answer
from workbench.runs.progress import FINISHED, format_seconds
from workbench.runs.search import Search, at_layers
from workbench.runs.store import Store

COLUMNS = ["run", "layers", "state", "time", "device", "host", "disk", "note"]
RECORD_BYTES = 100_000
"""About what the folder of one run takes."""
UNKNOWN = "?"
Rows = list[dict[str, Any]]


def preview(stages: Iterable[Stage], store: Store) -> pd.DataFrame:
    """One row a run, and one for all of them together; of no stages, that nothing runs here."""
    found: list[tuple[dict[str, Any], float | None]] = []
    rows = Index(store).rows()
    for stage in stages:
        if isinstance(stage, Search):
            found.append(_of_search(stage, store, rows))
        else:
            found += [_of_run(point.spec, point.record, store, rows) for point in stage.points]
    if not found:
        words = (
            "nothing runs: no GPU can be used here, so the published sizes are simulated with "
            "constants of the published machine, in a few seconds"
        )
        return pd.DataFrame([_row("simulation", note=words, state="simulated")], columns=COLUMNS)
    run, told = total([seconds for _, seconds in found])
    every = _row("all", disk=format_bytes(run * RECORD_BYTES), **told)
    return pd.DataFrame([*(row for row, _ in found), every], columns=COLUMNS)


def _of_run(
    spec: RunSpec, record: RunRecord | None, store: Store, rows: Rows
) -> tuple[dict, float | None]:
    """A row, and its seconds; 0 for what is there already, None where unknown."""
    if record is not None:
        return _row(find(spec.method).label, spec, state=cached(record), note=record.message), 0.0
    planned = answer(spec, store)
    seconds, _ = expected(spec, planned, rows)
    return _planned_row(spec, planned, seconds), seconds


def _of_search(search: Search, store: Store, rows: Rows) -> tuple[dict, float | None]:
    """The planner's guess, or the answer if it is known."""
    method = f"{find(search.spec.method).label}: largest model"
    if search.complete:
        found = at_layers(search.spec, max(1, search.layers))
        note = f"{search.layers} layers trained, {search.layers + 1} did not"
        return _row(method, found, state=cached(search.points[-1].record), note=note), 0.0
    spec = at_layers(search.spec, max(1, search.guess))
    planned = answer(spec, store)
    seconds, _ = expected(spec, planned, rows)
    row = _planned_row(spec, planned, None if seconds is None else 2 * seconds) | {"run": method}
    row["note"] = f"at {search.guess + 1} layers {search.beyond.binding}"
    if planned.source != "measured":
        row["note"] = f"a first guess, this machine is not measured yet; {row['note']}"
    return row, None if seconds is None else 2 * seconds


def _planned_row(spec: RunSpec, planned: Answer, seconds: float | None) -> dict[str, Any]:
    plan = planned.plan
    row = _row(find(spec.method).label, spec, state="to run", note="")
    row["time"] = UNKNOWN if seconds is None else format_seconds(seconds)
    row |= {tier: format_bytes(n) for tier, n in plan.peak_bytes.items() if tier in COLUMNS}
    row["disk"] = format_bytes(plan.peak_bytes.get("disk", 0) + RECORD_BYTES)
    if not plan.fits:
        row |= {"state": "cannot fit", "note": plan.binding}
    return row


def _row(run: str, spec: RunSpec | None = None, **values: Any) -> dict[str, Any]:
    empty = dict.fromkeys(COLUMNS, "")
    layers = "" if spec is None else spec.model.layers
    if spec is not None and (window := getattr(spec.options, "window", "auto")) != "auto":
        run = f"{run}, window {window}"
    return {**empty, "run": run, "layers": layers, **values}


def cached(record: RunRecord) -> str:
    return f"{FINISHED} {record.started[:16].replace('T', ' ')}"


def total(seconds: list[float | None]) -> tuple[int, dict[str, str]]:
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
