"""The runs of a benchmark as one table: each beside its roof, its plan, and the model's weights.

The roof of a run is training of the same model and batch, on as many GPUs, with all of their
memory: plain training of one GPU, data parallelism of several. A share of it says what the scarce
memory costs. The roof runs at its best, as every peer: of runs that recompute activations and runs
that keep them, the fastest counts. Bytes over the host links are told in multiples of the model's
weights |W|, in which Harmony (VLDB'22) counts them: swapping moves several for every micro-batch,
harmony-pp at most 3 a step and stashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from workbench.core.spec import VALUE_BYTES
from workbench.figures.rows import quotient
from workbench.published.here import GIB, Run, latest

PLAIN, ROOF = "plain", "data-parallel"
OWN_RUNTIME = ("l2l", "stronghold", "stronghold-disk")
"""Methods of one GPU whose predictions are judged: their schedule was simulated, and then that
schedule ran."""
HARMONY = ("harmony-dp", "harmony-pp")
SERVER_RUNTIME = ("dp-swap", "pp-swap", *HARMONY)
"""Methods of several GPUs whose predictions are judged."""
MODEL = ("layers", "hidden", "heads", "seq", "dtype")
"""Columns that make two models one."""
COMPARED = ("device", *MODEL, "batch", "ranks")
"""Columns that two runs must have in common to be compared."""
WEIGHT_BYTES = {**VALUE_BYTES, "fp16": 2}
"""Bytes of a weight, by dtype."""
STATE_BYTES = {"fp32": 16, "bf16": 14, "fp16": 16}
"""Bytes of a parameter with AdamW: weight, gradient, two moments; of bf16 also the 16 bits that
make the weight an fp32 master, of fp16 a whole one."""

OFFLOAD = (
    "method", "variant", "label", "layers", "hidden", "heads", "seq", "batch", "dtype", "clip",
    "device_cap_gib", "host_cap_gib", "parameters", "status", "samples_per_second", "plain",
    "share", "plain_label", "plain_round", "round", "step_seconds", "spread_seconds",
    "predicted_step_seconds", "step_ratio", "peak_device_gib", "predicted_peak_device_gib",
    "peak_ratio", "host_gib", "host_bytes_per_parameter", "disk_gib", "disk_step_gb", "final_loss",
    "pinned", "source", "hardware", "device", "date", "commit", "how",
)  # fmt: skip
SERVERS = (
    "method", "variant", "label", "ranks", "layers", "hidden", "heads", "seq", "batch", "dtype",
    "clip", "device_cap_gib", "host_cap_gib", "parameters", "status", "samples_per_second", "roof",
    "share", "roof_label", "roof_round", "round", "step_seconds", "spread_seconds",
    "predicted_step_seconds", "step_ratio", "peak_device_gib", "predicted_peak_device_gib",
    "peak_ratio", "host_gib", "load_gib", "store_gib", "planned_load_gib", "planned_store_gib",
    "moved", "planned_moved", "weights_gib", "states_gib", "final_loss", "source", "hardware",
    "device", "date", "commit", "how",
)  # fmt: skip
"""`plain`, `roof`: samples/s of the roof. `share`: this run's over it. `round`, `plain_round`,
`roof_round`: in which round of measurements either was made. `step_ratio`, `peak_ratio`: predicted
over measured. `moved`, `planned_moved`: loads and stores of a step in multiples of `weights_gib`.
`batch`: of all ranks. `device`: the machine's folder."""
TEXTS = {
    "case", "method", "variant", "label", "dtype", "status", "plain_label", "plain_round",
    "roof_label", "roof_round", "round", "pinned", "bound", "source", "hardware", "device", "date",
    "commit", "how",
}  # fmt: skip


def table(runs: Iterable[Run], columns: tuple[str, ...], *, repeated: bool = False) -> pd.DataFrame:
    """One row a run in the order of the methods: the last of equal ones, or (`repeated`) each.

    All may be what another is compared with: of a repeated roof, the run that was made beside it.
    """
    known = list(runs)
    shown = known if repeated else latest(known)
    order = list(known[0].benchmark.labels) if known else []
    return framed(
        sorted((_row(run, known) for run in shown), key=lambda row: order.index(row["method"])),
        columns,
    )


def framed(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    """Rows as a table; what is no text is a number, or a gap."""
    frame = pd.DataFrame(rows, columns=list(columns))
    for name in {*columns} - TEXTS:
        frame[name] = pd.to_numeric(frame[name])
    return frame.astype({"pinned": bool} if "pinned" in columns else {})


def _row(run: Run, runs: Sequence[Run]) -> dict[str, Any]:
    roof = best_uncapped(run, runs)
    speed = roof.samples_per_second if roof else None
    host = run.host_gib * GIB if run.host_gib is not None else None
    weights, states = (
        run.parameters * each[run.dtype] / GIB if run.parameters else None
        for each in (WEIGHT_BYTES, STATE_BYTES)
    )
    return {
        **vars(run),
        **{name: getattr(run, name) for name in ("label", "round", "pinned", "how")},
        **dict.fromkeys(("plain", "roof"), speed),
        **dict.fromkeys(("plain_label", "roof_label"), roof.label if roof else ""),
        **dict.fromkeys(("plain_round", "roof_round"), roof.round if roof else ""),
        "share": quotient(run.samples_per_second, speed),
        "step_seconds": run.step_seconds_median,
        "spread_seconds": run.step_seconds_spread,
        "step_ratio": quotient(run.predicted_step_seconds, run.step_seconds_median),
        "peak_ratio": quotient(run.predicted_peak_device_gib, run.peak_device_gib),
        "host_bytes_per_parameter": quotient(host, run.parameters),
        "disk_step_gb": None if run.disk_step_bytes is None else run.disk_step_bytes / 1e9,
        "moved": quotient(_both(run.load_gib, run.store_gib), weights),
        "planned_moved": quotient(_both(run.planned_load_gib, run.planned_store_gib), weights),
        "weights_gib": weights,
        "states_gib": states,
        "source": "measured",
    }


def _both(load: float | None, store: float | None) -> float | None:
    """The sum, where both were told."""
    return load + store if load is not None and store is not None else None


def best_uncapped(run: Run, runs: Iterable[Run]) -> Run | None:
    """The roof of a run; None where none was measured. Roofs of its own round count before others,
    unless that round has no other than `run` itself to say how fast such training is; and then
    those that clip as it does."""
    found = [
        other
        for other in runs
        if other.method in (PLAIN, ROOF)
        and other.status == "ok"
        and other.device_cap_gib is None
        and all(getattr(other, name) == getattr(run, name) for name in COMPARED)
    ]
    beside = [other for other in found if other.round == run.round]
    if all(other.record is run.record for other in beside):
        beside = found
    return max(beside, key=lambda o: (o.clip == run.clip, o.samples_per_second), default=None)


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


def ordered(rows: pd.DataFrame, methods: Iterable[str], by: Sequence[str]) -> pd.DataFrame:
    """Rows by these columns, no cap before caps and large caps before small ones, then in the order
    of the methods."""
    places = {method: place for place, method in enumerate(methods)}
    columns = [*by, "device_cap_gib", "place", "variant"]
    up = [name != "device_cap_gib" for name in columns]
    found = rows.assign(place=rows["method"].map(places))
    return found.sort_values(columns, ascending=up, na_position="first").drop(columns="place")


def own_ratios(rows: pd.DataFrame, column: str, methods: Iterable[str] = OWN_RUNTIME) -> pd.Series:
    """Predicted over measured, of the runs on this project's own runtime: those of `methods`."""
    return rows[rows["method"].isin(methods) & (rows["status"] == "ok")][column].dropna()


def mean_deviation(ratios: pd.Series) -> float | None:
    """Mean of how far predictions are from measurements, either way; None without any."""
    return float((ratios - 1).abs().mean()) if len(ratios) else None
