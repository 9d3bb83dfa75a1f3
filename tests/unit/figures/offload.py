"""Made-up rows of the offload benchmark: never numbers that somebody could take for measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.core.model_spec import ModelSpec
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.published.here import OFFLOAD, Benchmark, Run

PLAIN = {
    (32, 4): 30.0, (78, 4): 13.0, (100, 4): 10.0,
    (32, 16): 36.0, (78, 16): 16.0, (100, 16): 12.0,
}  # fmt: skip
"""Samples per second of plain training at its best, by layers and batch."""
SHARE = {
    "l2l": 0.3, "fsdp-offload": 0.16, "zero-offload": 0.15, "zero-infinity": 0.12,
    "zero-infinity-disk": 0.04, "stronghold": 0.97, "stronghold-disk": 0.5,
}  # fmt: skip


def line(
    method: str,
    layers: int,
    batch: int = 4,
    cap: float | None = 32,
    *,
    speed: float | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A row: `speed` samples/s, or without one a run that ended out of memory."""
    parameters = ModelSpec(layers=layers).parameters
    row = {
        "method": method, "layers": layers, "hidden": 2048, "heads": 16, "seq": 1024,
        "batch": batch, "dtype": "bf16", "clip": 1.0, "device_cap_gib": "" if cap is None else cap,
        "parameters": parameters, "status": "oom_device", "commit": "0123abc",
        "measured_on": "2026-11-21 Made-up GPU",
    }  # fmt: skip
    if speed is not None:
        seconds = batch / speed
        row |= {
            "status": "ok", "samples_per_second": speed, "step_seconds_median": seconds,
            "step_seconds_spread": 0.02, "peak_device_gib": 20.0,
            "host_gib": parameters * 12 / 2**30, "disk_gib": 0, "final_loss": 7.5,
        }  # fmt: skip
        if method.startswith(("stronghold", "l2l", "plain")):
            row |= {"predicted_step_seconds": seconds * 1.02, "predicted_peak_device_gib": 19.5}
    return row | changes


def benchmark() -> list[dict[str, Any]]:
    """Rows that a whole campaign would leave behind."""
    rows = []
    for (layers, batch), plain in PLAIN.items():
        rows += [
            line("plain", layers, batch, None, speed=plain if layers == 100 else 0.8 * plain),
            line("plain (keep)", layers, batch, None, speed=None if layers == 100 else plain),
            line("megatron-core", layers, batch, None, speed=plain),
            line("megatron-core", layers, batch),
        ]
        for method, share in SHARE.items():
            fits = (method, layers) != ("zero-offload", 100)
            rows.append(line(method, layers, batch, speed=share * plain if fits else None))
    rows += [line(f"stronghold (w{w})", 32, speed=30 - 6 / w) for w in (2, 4, 8, 15)]
    rows += [line("stronghold (w4 r0 stash)", n, speed=900 / n) for n in (40, 60, 80)]
    rows += [line(f"stronghold (p{p})", 78, speed=12.7 - p / 8) for p in (0, 4, 8, 12)]
    rows.append(line("stronghold", 32, speed=29.5, clip=""))
    small = {"hidden": 1024, "dtype": "fp32"}
    rows.append(line("plain", 16, cap=None, speed=40.0, **small))
    rows.append(line("stronghold-disk", 16, cap=3, speed=4.0, **small))
    sizes = {"megatron-core": 34, "l2l": 110, "zero-offload": 90, "stronghold": 190}
    rows += [line(method, layers, speed=1.0, host_cap_gib=90.0) for method, layers in sizes.items()]
    rows.append(line("stronghold", 191, host_cap_gib=90.0, status="oom_host"))
    rows.append(line("stronghold-disk", 300, speed=0.5, host_cap_gib=90.0, disk_gib=150.0))
    return rows


FACTS = ("method", "dtype", "status", "commit", "measured_on", "started", "seconds", "moved_bytes")
"""Fields of rows that are no numbers."""


def record_of(row: dict[str, Any]) -> RunRecord:
    """A run with that row."""
    shape = {name: row[name] for name in ("layers", "hidden", "heads", "seq")}
    spec = RunSpec(method="plain", model=ModelSpec(**shape), batch=row["batch"], device="cuda")
    day, _, gpu = row["measured_on"].partition(" ")
    numbers = {name: value for name, value in row.items() if name not in FACTS}
    return RunRecord(
        key="0123", method="plain", status=row["status"], losses=[7.5], step_seconds=[1.0],
        spec=spec.to_dict() | {"dtype": row["dtype"]}, started=row.get("started", day),
        seconds=row.get("seconds", 1.0), moved_bytes=row.get("moved_bytes", {}),
        provenance={"commit": row["commit"], "gpus": [gpu]},
        bench={
            "case": "made-up", "method": row["method"], "warmup": 0,
            "told": {name: None if value == "" else value for name, value in numbers.items()},
        },
    )  # fmt: skip


def write(
    folder: Path, rows: list[dict[str, Any]], device: str = "made-up", form: Benchmark = OFFLOAD
) -> Path:
    """The file in a results folder."""
    path = folder / "published-here" / device / form.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(record_of(row).to_json(indent=None) for row in rows))
    return path


def runs_of(folder: Path, rows: list[dict[str, Any]], form: Benchmark = OFFLOAD) -> list[Run]:
    """The rows, written to a file and read as runs."""
    write(folder, rows, form=form)
    return form.runs([folder])
