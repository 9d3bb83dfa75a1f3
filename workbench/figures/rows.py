"""The one table that figures read: a row is one value of one method, from one source.

Columns: figure, method, label, x (what the axis shows: layers or window; empty for bars by method),
layers, window, value, unit, low, high (spread), source, variant, status, note, parameters, key.
"""

from __future__ import annotations

from statistics import quantiles
from typing import Any

import pandas as pd

from workbench.runs.methods import METHODS
from workbench.runs.record import RunRecord, steady_step_seconds

COLUMNS = (
    "figure", "method", "label", "x", "layers", "window", "value", "unit", "low", "high",
    "source", "variant", "status", "note", "parameters", "key",
)  # fmt: skip


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A table with all columns, in order."""
    return pd.DataFrame(rows, columns=list(COLUMNS))


def measured(
    record: RunRecord, figure: str, quantity: str, *, x: float | None = None, variant: str = ""
) -> dict[str, Any]:
    """A record's value of a quantity as a row; a run that gave none keeps its reason.

    `quantity`: ``samples/s``, ``ms`` (per step), or ``parameters``. The spread is the quartiles of
    the steady steps.
    """
    value, low, high = _quantity(record, quantity)
    return {
        "figure": figure,
        "method": record.method,
        "label": METHODS[record.method].label,
        "x": x,
        "layers": record.spec["model"]["layers"],
        "window": record.window,
        "value": value,
        "unit": quantity,
        "low": low,
        "high": high,
        "source": record.source,
        "variant": variant,
        "status": record.status,
        "note": record.message,
        "parameters": record.parameters,
        "key": record.key,
    }


def predicted(record: RunRecord, figure: str, quantity: str, *, x: float | None) -> dict[str, Any]:
    """What the simulator said of the same run before it ran."""
    seconds = record.predicted.get("step_seconds")
    value = None
    if seconds:
        value = record.spec["batch"] / seconds if quantity == "samples/s" else seconds * 1e3
    return {
        **measured(record, figure, quantity, x=x),
        "value": value,
        "low": None,
        "high": None,
        "source": "simulated",
        "variant": "this machine's profile",
        "note": "" if seconds else "the method makes no prediction",
    }


def _quantity(record: RunRecord, quantity: str) -> tuple[float | None, float | None, float | None]:
    if record.status != "ok":
        return None, None, None
    if quantity == "parameters":
        return record.parameters, None, None
    seconds = steady_step_seconds(record.step_seconds)
    steady = record.step_seconds[1:] or record.step_seconds
    first, _, third = quantiles(steady, n=4) if len(steady) > 1 else (seconds,) * 3
    if quantity == "ms":
        return seconds * 1e3, first * 1e3, third * 1e3
    if quantity == "samples/s":
        batch = record.spec["batch"]
        return batch / seconds, batch / third, batch / first
    raise ValueError(f"unknown quantity {quantity!r}; known: samples/s, ms, parameters")
