"""Made-up rows of the benchmark of servers: never numbers that somebody could take for measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.figures import offload
from workbench.core.model_spec import ModelSpec
from workbench.published.here import SERVERS, Run

XL = {"layers": 48, "hidden": 1600, "heads": 25}
ROOFS = ("data-parallel", "torch-gpipe", "torch-1f1b")
SPEED = {
    "data-parallel": 40.0, "torch-gpipe": 30.0, "torch-1f1b": 32.0, "zero-infinity": 4.0,
    "dp-swap": 3.0, "pp-swap": 5.0, "harmony-dp": 24.0, "harmony-pp": 28.0,
}  # fmt: skip
"""Samples per second of a GPU with GPT-2 XL at minibatch 64; at 16 it is half."""
MOVED = {
    "dp-swap": (20.0, 12.0), "pp-swap": (9.0, 5.0), "harmony-dp": (6.0, 3.0),
    "harmony-pp": (2.5, 1.5),
}  # fmt: skip
"""Loads and stores of a step in multiples of the weights."""


def line(
    method: str,
    ranks: int = 4,
    batch: int = 64,
    cap: float | None = 11,
    *,
    speed: float | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A row: `speed` samples/s, or without one a run that ended out of memory. GPT-2
    XL unless `changes` say otherwise."""
    model = {name: changes.get(name, value) for name, value in XL.items()}
    count = ModelSpec(**model).parameters
    row = model | {
        "method": method, "ranks": ranks, "seq": 1024, "batch": batch, "dtype": "bf16", "clip": 1.0,
        "device_cap_gib": "" if cap is None else cap, "parameters": count, "status": "oom_device",
        "commit": "0123abc", "measured_on": "2026-11-21 Made-up GPU",
    }  # fmt: skip
    if speed is not None:
        seconds = batch / speed
        peak = 30.0 if cap is None else 0.95 * cap
        row |= {
            "status": "ok", "samples_per_second": speed, "step_seconds_median": seconds,
            "step_seconds_spread": 0.02, "peak_device_gib": peak, "host_gib": 30.0,
            "final_loss": 7.5,
        }  # fmt: skip
        name = method.partition(" ")[0]
        if name in MOVED:
            load, store = (times * count * 2 / 2**30 for times in MOVED[name])
            row |= {
                "predicted_step_seconds": seconds * 0.96, "predicted_peak_device_gib": peak * 1.02,
                "load_gib": load, "store_gib": store, "planned_load_gib": load * 1.002,
                "planned_store_gib": store,
            }  # fmt: skip
    return row | changes


TEN: dict[str, Any] = {"layers": 100, "hidden": 2048, "heads": 16}
"""67 GiB of states."""


def ten(ranks: int, speed: float | None, method: str = "harmony-pp", **changes: Any) -> dict:
    """A row of a model whose states are ten times what 4 GPUs of 1.5 GiB hold."""
    return line(method, ranks, cap=1.5, speed=speed, **(TEN | changes))


def benchmark(ranks: tuple[int, ...] = (2, 4, 8)) -> list[dict[str, Any]]:
    """Rows that a whole campaign would leave behind."""
    rows = []
    for gpus in ranks:
        for batch in (64, 16):
            for method, speed in SPEED.items():
                fits = (method, gpus, batch) != ("dp-swap", 2, 64)
                total = speed * gpus * (1 if batch == 64 else 0.5)
                cap = None if method in ROOFS else 11
                rows.append(line(method, gpus, batch, cap, speed=total if fits else None))
    for gpus in (1, 2, 4):
        rows += [ten(gpus, 2.0 * gpus**0.9), ten(gpus, 1.8 * gpus**0.8, "harmony-dp")]
    return rows


def write(folder: Path, rows: list[dict[str, Any]], device: str = "made-up") -> Path:
    """The file in a results folder."""
    return offload.write(folder, rows, device, SERVERS)


def runs_of(folder: Path, rows: list[dict[str, Any]]) -> list[Run]:
    """The rows, written to a file and read as runs."""
    return offload.runs_of(folder, rows, SERVERS)
