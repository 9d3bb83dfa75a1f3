"""The runs of the offload benchmark as one table: each beside plain training and its prediction.

Plain training of the same model on the same GPU, all of it on the device and without a cap, is what
offloading is measured against: a share of it says what the scarce memory costs. It runs at its
best, as every peer: of runs that recompute activations and runs that keep them, the fastest counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import pandas as pd

from workbench.exhibits.stronghold.measured_here import how
from workbench.figures.rows import quotient
from workbench.published.here import FILE, LABELS, OffloadRun, latest
from workbench.published.sheet import Run

PLAIN = "plain"
OWN_RUNTIME = ("l2l", "stronghold", "stronghold-disk")
"""Methods whose predictions are judged: their schedule was simulated, and then that schedule
ran."""
MODEL = ("device", "layers", "hidden", "heads", "seq", "batch", "dtype")
"""Columns that two runs must have in common to be compared."""
GIB = 2**30
AnyRun = TypeVar("AnyRun", bound=Run)

COLUMNS = (
    "method", "variant", "label", "layers", "hidden", "heads", "seq", "batch", "dtype", "clip",
    "device_cap_gib", "host_cap_gib", "parameters", "status", "samples_per_second", "plain",
    "share", "plain_label", "plain_round", "round", "step_seconds", "spread_seconds",
    "predicted_step_seconds", "step_ratio", "peak_device_gib", "predicted_peak_device_gib",
    "peak_ratio", "host_gib", "host_bytes_per_parameter", "disk_gib", "disk_step_gb", "final_loss",
    "pinned", "source", "hardware", "device", "date", "commit", "how",
)  # fmt: skip
"""`plain`: samples/s of plain training of the same model. `share`: this run's over it. `round`,
`plain_round`: in which round of measurements either was made (`round_of`).
`step_ratio`, `peak_ratio`: predicted over measured. `device`: the machine's folder."""


def table(runs: Iterable[OffloadRun], *, repeated: bool = False) -> pd.DataFrame:
    """One row a run in the order of the methods: the last of equal ones, or (`repeated`) each.

    All may be what another is compared with: of a repeated run of plain training, the one that was
    made beside it.
    """
    known = list(runs)
    shown = known if repeated else latest(known)
    return framed([_row(run, known) for run in shown], COLUMNS, LABELS).astype({"pinned": bool})


def framed(rows: list[dict[str, Any]], columns: tuple[str, ...], labels: Iterable[str]) -> Any:
    """Rows as a table in the order of the methods; what is no text is a number, or a gap."""
    order = list(labels)
    found = sorted(rows, key=lambda row: order.index(row["method"]))
    frame = pd.DataFrame(found, columns=list(columns))
    for name in columns:
        if name not in _TEXTS:
            frame[name] = pd.to_numeric(frame[name])
    return frame


_TEXTS = (
    "method", "variant", "label", "dtype", "status", "plain_label", "plain_round", "roof_label",
    "roof_round", "round", "pinned", "source", "hardware", "device", "date", "commit", "how",
)  # fmt: skip


def of_run(run: Run, file: str) -> dict[str, Any]:
    """A run's own columns: all fields, and its plan over what was measured."""
    return {
        **asdict(run),
        "label": run.label,
        "round": round_of(run),
        "step_seconds": run.step_seconds_median,
        "spread_seconds": run.step_seconds_spread,
        "step_ratio": quotient(run.predicted_step_seconds, run.step_seconds_median),
        "peak_ratio": quotient(run.predicted_peak_device_gib, run.peak_device_gib),
        "source": "measured",
        "how": how(run, file),
    }


def _row(run: OffloadRun, runs: Sequence[OffloadRun]) -> dict[str, Any]:
    plain = best_uncapped(run, runs, (PLAIN,), MODEL)
    base = plain.samples_per_second if plain else None
    host = run.host_gib * GIB if run.host_gib is not None else None
    return {
        **of_run(run, FILE),
        "plain": base,
        "plain_label": plain.label if plain else "",
        "plain_round": round_of(plain) if plain else "",
        "share": quotient(run.samples_per_second, base),
        "host_bytes_per_parameter": quotient(host, run.parameters),
        "disk_step_gb": None if run.disk_step_bytes is None else run.disk_step_bytes / 1e9,
        "pinned": run.pinned,
    }


def best_uncapped(
    run: AnyRun, runs: Iterable[AnyRun], methods: Container[str], same: Iterable[str]
) -> AnyRun | None:
    """The fastest run of `methods` without a device cap that has the fields `same` as `run` has
    them; None where none is. Those of its own round count before others, unless that round has no
    other than `run` itself to say how fast such training is; and then those that clip as it does.
    """
    names = tuple(same)
    found = [
        other
        for other in runs
        if other.method in methods
        and other.status == "ok"
        and other.device_cap_gib is None
        and all(getattr(other, name) == getattr(run, name) for name in names)
    ]
    beside = [other for other in found if round_of(other) == round_of(run)]
    if all(_place(other) == _place(run) for other in beside):
        beside = found
    return max(beside, key=lambda o: (o.clip == run.clip, o.samples_per_second), default=None)


def _place(run: Run) -> tuple[str, str, int]:
    return run.device, run.method, run.line


def round_of(run: Run) -> str:
    """In which round of measurements a run was made: machines of one kind differ from day to day,
    and so does the code."""
    began = f", from {run.sitting}" if run.sitting else ""
    return f"{run.commit} of {run.date}{began}"


def preferred(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows ordered so that those that stand for their method come first: the lowest clipping limit,
    ended well, no variant, no cap of the host, then the fastest. (A limit that never fires is a
    case apart.)"""
    return rows.assign(
        _failed=rows["status"] != "ok",
        _limit=rows["clip"].fillna(float("inf")),
        _variant=rows["variant"] != "",
        _host=rows["host_cap_gib"].notna(),
    ).sort_values(
        ["_limit", "_failed", "_variant", "_host", "step_seconds"], kind="stable"
    ).drop(columns=["_failed", "_limit", "_variant", "_host"])  # fmt: skip


def own_ratios(rows: pd.DataFrame, column: str, methods: Iterable[str] = OWN_RUNTIME) -> pd.Series:
    """Predicted over measured, of the runs on this project's own runtime: those of `methods`."""
    return rows[rows["method"].isin(methods) & (rows["status"] == "ok")][column].dropna()


def mean_deviation(ratios: pd.Series) -> float | None:
    """Mean of how far predictions are from measurements, either way; None without any."""
    return float((ratios - 1).abs().mean()) if len(ratios) else None
