"""The table that figures read: a row is one value of one method, from one source.

Rows come from four places: records of runs (`measured`), what the simulator said of those runs
before they ran (`simulated`), the published tables (`published`), and the simulation of the
published machine (`simulated`, in two variants). Each row says how its number was obtained; a run
that gave no number keeps its place and its reason. The table is what `workbench figure` writes as
CSV, and a CSV of it in ``results/published-here/<device>/`` is read back as measured on that
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.methods import METHODS, known
from workbench.core.record import BETWEEN, PARTS, RunRecord, steady_quartiles

COLUMNS = (
    "figure", "size", "method", "label", "pair", "x", "layers", "window", "value", "unit",
    "low", "high", "parameters", "source", "variant", "hardware", "device", "how", "status",
    "bound", "note", "sound", "calibrated", "busy", "key",
)  # fmt: skip
"""`pair`: figure 7a's baseline whose largest model it is. `x`: what a line is drawn over. `low`,
`high`: spread. `bound`: the tier that decided a size. `sound`: False where the published run did
not train what it names. `calibrated`: the published value of this point went into a constant of the
simulation. `busy`: how much others used of the machine while it was timed, where that was too
much."""

NUMBERS = {
    "value", "low", "high", "x", "layers", "window", "parameters", "ranks", "minibatch",
    "rank", "micro", "start", "end", "step", "seconds", "error",
}  # fmt: skip
"""Columns of numbers; `TRUTHS` are of truths and gaps, all others of texts."""
TRUTHS = {"sound", "calibrated"}

SOURCES = PUBLISHED, REFERENCE, FORMULA, ESTIMATED, SIMULATED, MEASURED = (
    "published", "reference estimate", "formula", "estimated", "simulated", "measured",
)  # fmt: skip
"""Kinds of numbers: no mark stands for two of them."""
EXACT = "as this code runs it"
"""The second variant of a simulation of the published machine: our own runtime on it."""
HERE = "from this machine's profile"
"""The variant of what was predicted of a run on the machine that then ran it."""
BEFORE = "before the run"
"""The variant of what was predicted where several ranks ran."""
OUR_PLAN, THEIR_PLAN = "our plan", "published plan"
"""Variants of a simulation on published profiles: whose packs."""
OUR_SEARCH, THEIR_SEARCH = "our search", "published search, done again"
"""Variants of a measurement: whose search was timed."""

ONE_DEVICE = "one device"
"""Name of plain training beside several ranks."""
UNITS = {
    "samples/s": "samples/s", "samples_per_s": "samples/s", "ms": "ms", "iteration_s": "s",
    "search_s": "s", "busy": "share", "loss": "nats", "parameters": "million parameters",
    **dict.fromkeys(("load", "store", *PARTS, *BETWEEN), "bytes"),
}  # fmt: skip
"""Quantity -> unit."""
SCALES = {"s": 1.0, "ms": 1e3}
"""Units of a step's time, in seconds."""


def table(
    rows: list[dict[str, Any]], columns: Sequence[str] = COLUMNS, **same: Any
) -> pd.DataFrame:
    """A table with all columns, in order; `same` is said of every row."""
    frame = pd.DataFrame(rows, columns=list(columns))
    for name, value in same.items():
        frame[name] = value
    for name in columns:
        if name in NUMBERS:
            frame[name] = pd.to_numeric(frame[name])
        elif name in TRUTHS:  # also when read from CSV
            truths = {"True": True, "False": False}
            frame[name] = frame[name].astype(str).map(truths).astype(object)
        else:
            frame[name] = frame[name].astype(object).fillna("").astype(str)
    return frame


def join(*parts: pd.DataFrame) -> pd.DataFrame:
    """Tables under each other, empty ones left out; the first where all are empty."""
    full = [part for part in parts if len(part)]
    if full:
        return pd.concat(full, ignore_index=True)
    return parts[0] if parts else table([])


def label_of(method: str) -> str:
    """A method as figures of several ranks write it."""
    return ONE_DEVICE if method == "plain" else known()[method].label


def measured(record: RunRecord, quantity: str, **more: Any) -> dict[str, Any]:
    """A record's value of a quantity (of `UNITS`), for tables of any columns; a run that gave none
    keeps its reason. `more`: what only the exhibit knows of it.

    The spread of times is the quartiles of the steady steps.
    """
    spec, untimed = record.spec, quantity == "parameters" or UNITS[quantity] == "bytes"
    value, low, high = amounts(record, quantity)
    return {
        "method": record.method, "label": label_of(record.method), "quantity": quantity,
        "layers": spec["model"]["layers"], "window": record.window, "ranks": spec["ranks"],
        "minibatch": spec["batch"], "value": value, "low": low, "high": high,
        "unit": UNITS[quantity], "parameters": record.parameters, "source": MEASURED,
        "hardware": hardware_of(record), "device": spec["device"], "how": _how(record, quantity),
        "status": record.status, "note": note_of(record), "busy": "" if untimed else record.busy,
        "key": record.key, **more,
    }  # fmt: skip


def predicted(record: RunRecord, quantity: str, **more: Any) -> list[dict[str, Any]]:
    """The row of the plan that was made before the run; none where it says nothing of it."""
    plan, unit = record.predicted, UNITS[quantity]
    value = moved(plan, quantity) if unit == "bytes" else plan.get("step_seconds") or None
    if value is None:
        return []
    if unit != "bytes":
        value = record.spec["batch"] / value if unit == "samples/s" else value * SCALES[unit]
    told = {"source": SIMULATED, "variant": HERE, "status": "", "note": plan.get("binding", "")}
    told |= {"value": value, "low": None, "high": None, "busy": ""}
    told["how"] = plan.get("how", "the schedule that ran, simulated before it ran")
    return [measured(record, quantity) | told | more]


def both(record: RunRecord, quantity: str, **more: Any) -> list[dict[str, Any]]:
    """The measured row, and the predicted one where there is one."""
    return [measured(record, quantity, **more), *predicted(record, quantity, **more)]


def published(figure: str) -> pd.DataFrame:
    """The published values of a figure: the README's table for sizes, else the logs' medians."""
    from workbench.published.tables import published as published_table

    frame = published_table().query("figure == @figure")
    frame = frame[frame["origin"] == ("README table" if figure == "6a" else "artifact log")]
    spread = pd.to_numeric(frame["spread"])
    return _foreign(
        frame,
        low=frame["value"] - spread,
        high=frame["value"] + spread,
        how=frame["origin"] + ", " + frame["statistic"],
        hardware="V100 32 GB, 12 cores",
        sound=frame["sound"],
    )


def simulated(figure: str) -> pd.DataFrame:
    """The figure as the simulator predicts it with constants of the published machine."""
    from workbench.published.predict import predict

    frame = predict(figure)
    notes = [
        "; ".join(text for text in pair if text)
        for pair in zip(frame["binding"], frame["note"], strict=True)
    ]
    return _foreign(
        frame,
        variant=frame["variant"],
        how="simulated with constants of the published machine",
        hardware="V100 32 GB, 12 cores",
        calibrated=frame["calibrated"],
        bound=frame["tier"],
        note=notes,
    )


def kept_here(
    frame: pd.DataFrame, figure: str, size: str, columns: Sequence[str] = COLUMNS
) -> pd.DataFrame:
    """Rows of a figure and size out of a table read from ``results/published-here``."""
    if not {"figure", "size", "source"} <= set(frame.columns):
        return table([], columns)
    told = frame[["figure", "size", "source"]].astype(str)
    told["figure"] = told["figure"].str.removesuffix(".0")  # a gap makes 9 a 9.0
    wanted = told.eq([figure, size, MEASURED]).all(axis=1)
    return table(frame[wanted].to_dict("records"), columns)


def hardware_of(record: RunRecord) -> str:
    """The device of a record, for people: a GPU's name, or the processor and its cores."""
    origin = record.provenance
    if record.spec["device"] == "cuda" and origin.get("gpus"):
        return origin["gpus"][0]
    cpu = (origin.get("cpu") or "processor").removesuffix(" Processor")
    return f"{cpu}, {origin.get('cores', '?')} cores, no GPU"


def _foreign(frame: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """A table of values that no run of ours gave, in our columns."""
    frame = frame.assign(**columns)
    frame["label"] = [METHODS[method].label for method in frame["method"]]
    frame["x"] = frame["window"] if set(frame["figure"]) == {"9"} else frame["layers"]
    frame["size"] = "paper"
    return table(frame.reindex(columns=list(COLUMNS)).to_dict("records"), status="ok")


def _how(record: RunRecord, quantity: str) -> str:
    if record.status == "ok" and quantity == "parameters":
        return "the largest model that trained, one layer more did not"
    if record.status == "ok" and UNITS[quantity] == "bytes":
        return "bytes per step counted by the runtime, all ranks together"
    return how_measured(record)


def note_of(record: RunRecord) -> str:
    """Why a run ended as it did, or what it noted, and whether the machine was busy."""
    told = [record.message] if record.message else record.notes
    return "; ".join([*told, f"the machine was busy: {record.busy}"] if record.busy else told)


def how_measured(record: RunRecord) -> str:
    """How times of a record were obtained, in a line."""
    if record.status != "ok":
        return "no value"
    steady = max(1, len(record.step_seconds) - 1)
    return f"median of {steady} steady steps, spread: quartiles; {record.engine}"


def amounts(record: RunRecord, quantity: str) -> tuple[float | None, float | None, float | None]:
    """A record's value of a quantity (of `UNITS`) and the quartiles around it, where it has any;
    None of each where it gave none."""
    unit = UNITS[quantity]
    if record.status != "ok":
        return None, None, None
    if unit == "bytes":
        return moved(vars(record), quantity), None, None
    if quantity == "parameters":
        return record.parameters and record.parameters / 1e6, None, None
    first, seconds, third = steady_quartiles(record.step_seconds)
    if unit == "samples/s":
        batch = record.spec["batch"]
        return batch / seconds, batch / third, batch / first
    return seconds * SCALES[unit], first * SCALES[unit], third * SCALES[unit]


def moved(told: dict[str, Any], quantity: str) -> int | None:
    """Bytes of a way or a part, of a record's fields or of what was predicted."""
    parts = "moved_parts" if quantity in PARTS + BETWEEN else "moved_bytes"
    return told.get(parts, {}).get(quantity)


# -- reading -------------------------------------------------------------------------------------


def series_of(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """(source, variant) pairs that occur, published first and measured last."""
    pairs = {(row.source, row.variant) for row in rows.itertuples()}
    return sorted(pairs, key=lambda pair: (SOURCES.index(pair[0]), pair[1]))


def part_of(rows: pd.DataFrame, source: str, variant: str) -> pd.DataFrame:
    """The rows of one series."""
    return rows[(rows["source"] == source) & (rows["variant"] == variant)]


def value(
    rows: pd.DataFrame, source: str, variant: str | None = None, **where: Any
) -> float | None:
    """Value of a series with these columns; None when it is missing.

    Where a simulated series has no such row at all, the other one answers: a simulation of our own
    runtime is compared with the baselines as they were published.
    """
    have = _have(rows, {"source": source, **where})
    if variant is not None:
        own = have & _have(rows, {"variant": variant})
        have = own if source != SIMULATED or own.any() else have
    return _first(rows["value"][have])


def advantage(
    rows: pd.DataFrame, source: str, variant: str | None = None, *, over: str
) -> float | None:
    """STRONGHOLD's value of a series over that of a method."""
    ours, theirs = (value(rows, source, variant, method=name) for name in ("stronghold", over))
    return quotient(ours, theirs)


def quotient(a: float | None, b: float | None) -> float | None:
    """a / b where both are there."""
    return a / b if a is not None and b else None


def pick(rows: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """The rows with these values; a tuple means any of them."""
    return rows[_have(rows, where)]


def one(rows: pd.DataFrame, **where: Any) -> float | None:
    """The value of the first such row that has one."""
    return _first(rows["value"][_have(rows, where)])


def _first(values: pd.Series) -> float | None:
    found = values.dropna()
    return float(found.iloc[0]) if len(found) else None


def _have(rows: pd.DataFrame, where: dict[str, Any]) -> np.ndarray:
    """Whether each row has these values. Columns are asked before a row is copied."""
    have = np.ones(len(rows), dtype=bool)
    for name, wanted in where.items():
        options = wanted if isinstance(wanted, tuple) else (wanted,)
        have &= rows[name].isin(options).to_numpy(dtype=bool)
    return have
