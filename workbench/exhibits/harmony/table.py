"""The table that Harmony's figures read: a row is one value of one method, from one source.

Four sources, and no mark stands for two of them: the *reference estimate* of the authors' own
model, which stands in for published values that nobody has; a *formula* of bytes; what is
*simulated* here, of published profiles or of a run before it ran; and what is *measured* of it.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.core.bytesize import format_bytes
from workbench.core.record import RunRecord
from workbench.figures import rows as tidy
from workbench.figures.rows import (
    BEFORE,
    MEASURED,
    OUR_PLAN,
    REFERENCE,
    SIMULATED,
    THEIR_PLAN,
    UNITS,
    label_of,
)
from workbench.published import harmony, harmony_plans
from workbench.published.harmony import MODELS

COLUMNS = (
    "figure", "size", "model", "method", "label", "ranks", "minibatch", "setting", "quantity", "x",
    "value", "low", "high", "unit", "source", "variant", "hardware", "device", "how", "status",
    "note", "busy", "key", "text",
)  # fmt: skip
"""`x`: what a line is drawn over. `low`, `high`: a spread, or the other end of an estimate. `text`:
what was trained on, where that matters."""

SERVER = "GTX 1080Ti server, as published"
PLAIN = "plain"
PLANNED, RAN = (SIMULATED, OUR_PLAN), (MEASURED, "")
"""Series by which claims are judged: our plans of the published settings, and runs here."""


def table(rows: list[dict[str, Any]], **same: Any) -> pd.DataFrame:
    """A table with all columns, in order; `same` is said of every row."""
    return tidy.table(rows, COLUMNS, **same)


def model_label(model: str) -> str:
    """A published model's name, or that of one trained here."""
    return MODELS[model].label if model in MODELS else model


# -- reference estimates and plans on the published profiles -------------------------------------


def estimated(figure: str, *quantities: str) -> pd.DataFrame:
    """Reference estimates of a figure. Where there is one with overlap and one without, the row has
    that with overlap as its value and the other as `high`."""
    frame = harmony.estimates(figure)
    frame = frame[frame["quantity"].isin(quantities)]
    rows = []
    place = ["model", "method", "ranks", "minibatch", "setting", "quantity"]
    for _, same in frame.groupby(place, sort=False):
        by = {row.prefetch: row for row in same.itertuples()}
        row = by.get("yes") or by.get("") or by["no"]
        serial = by["no"].value if "yes" in by and "no" in by else row.high
        rows.append(
            {name: getattr(row, name) for name in place}
            | {
                "label": label_of(row.method),
                "value": row.value,
                "low": None if "yes" in by else row.low,
                "high": serial,
                "unit": row.unit,
                "source": REFERENCE,
                "hardware": SERVER,
                "how": _how(row, by),
                "note": row.status,
                "status": "ok",
            }
        )
    return table(rows, size="paper")


def _how(row: Any, by: dict[str, Any]) -> str:
    overlap = {"yes": ", transfers overlap", "no": ", no overlap"}.get(row.prefetch, "")
    return f"{row.source}{overlap}" + ("; high: without overlap" if len(by) > 1 else "")


def of_plan(row: Any) -> dict[str, Any]:
    """Columns that say whose plan a kept row is."""
    return {
        "model": row.model, "method": row.method, "label": label_of(row.method),
        "ranks": row.ranks, "minibatch": row.minibatch, "setting": row.given or row.setting,
        "hardware": SERVER, "status": "ok",
    }  # fmt: skip


def planned(plans: pd.DataFrame) -> pd.DataFrame:
    """Plans (`harmony_plans.kept`) under our simulator: seconds of a step, the published search's
    beside ours."""
    rows = []
    for row in plans.itertuples():
        variant = OUR_PLAN if row.planner == harmony_plans.OURS else THEIR_PLAN
        note = row.note
        if not note:
            fits = "fits" if row.fits else "does not fit"
            note = (
                f"{row.setting}; {format_bytes(int(row.device_bytes))} of a device are needed, "
                f"which {fits} a card of {format_bytes(harmony_plans.CARD_BYTES)}"
            )
        rows.append(
            of_plan(row)
            | {
                "quantity": "iteration_s",
                "value": row.seconds,
                "unit": "s",
                "source": SIMULATED,
                "variant": variant,
                "how": f"our simulator, published profile, planned {row.planned}",
                "status": "no plan" if row.note else "ok",
                "note": note,
            }
        )
    return table(rows, size="paper")


# -- runs here -----------------------------------------------------------------------------------


def measured(record: RunRecord, quantity: str, model: str, **more: Any) -> dict[str, Any]:
    """A record's value: ``iteration_s`` or ``samples_per_s`` with quartiles, or bytes it counted
    (``load``, ``store``, `PARTS`, `BETWEEN`)."""
    told = {"model": model, "setting": _setting(record), **more}
    return tidy.measured(record, quantity, **told)


def predicted(record: RunRecord, quantity: str, model: str, **more: Any) -> list[dict[str, Any]]:
    """Rows of the plan that was made before the run; none where there was no plan."""
    if record.status != "ok":
        return []
    told = {"variant": BEFORE, "status": "ok", "note": tidy.note_of(record)}
    told["how"] = record.predicted.get("how", "the schedule that ran, before it ran")
    told |= {"model": model, "setting": _setting(record), **more}
    return tidy.predicted(record, quantity, **told)


def both(record: RunRecord, quantity: str, model: str, **more: Any) -> list[dict[str, Any]]:
    """The measured row, and that of the plan where there was one."""
    told = predicted(record, quantity, model, **more)
    return [measured(record, quantity, model, **more), *told]


def recomputed(plans: pd.DataFrame) -> pd.DataFrame:
    """Reference estimates of the published search and estimator for settings that no stored
    schedule covers."""
    rows = [
        of_plan(row)
        | {
            "quantity": "iteration_s",
            "value": row.estimate_prefetch_s,
            "high": row.estimate_s,
            "unit": "s",
            "source": REFERENCE,
            "how": "the published search and estimator, done again here, transfers overlap; high: "
            "without overlap",
            "note": "estimate of the original's own model, recomputed; not a measurement",
        }
        for row in plans[plans["planner"] == harmony_plans.PUBLISHED].itertuples()
    ]
    return table(rows, size="paper")


def as_speed(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of a step as samples per second; what lies beyond a value is below it then."""
    batch = rows["minibatch"]
    return rows.assign(
        quantity="samples_per_s", unit="samples/s", x=batch, value=batch / rows["value"],
        low=batch / rows["high"], high=(batch / rows["low"]).fillna(batch / rows["value"]),
    )  # fmt: skip


def missing(method: str, model: str, quantity: str, why: str, **more: Any) -> dict[str, Any]:
    """A measurement that is not there, and why."""
    return {
        "method": method, "label": label_of(method), "model": model, "quantity": quantity,
        "unit": UNITS[quantity], "source": MEASURED, "how": "no value", "status": "not run",
        "note": why, **more,
    }  # fmt: skip


def _setting(record: RunRecord) -> str:
    """Micro-batches and packs that were pinned; empty where a planner chose."""
    options = record.spec["options"]
    if options.get("backward_packs", "auto") == "auto":
        return ""
    counts = [len(options[name].split()) for name in ("forward_packs", "backward_packs")]
    sizes = f"{options['forward_size']}/{options['backward_size']}"
    return f"{sizes}, {counts[0]} and {counts[1]} packs"
