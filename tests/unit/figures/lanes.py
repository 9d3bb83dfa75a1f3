"""Made-up measured steps: never numbers that somebody could take for measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.figures.offload import line, record_of

STEP = (
    # lane, name, start, end, host bytes: a step of 100 ms whose updates reach 40 ms past its end
    ("compute", "F1.0", 0.0, 0.02, 0),
    ("compute", "B1.0", 0.03, 0.06, 0),
    ("visit", "V1", 0.09, 0.1, 0),
    ("h2d", "PULL1+2", 0.08, 0.09, 1_000_000_000),
    ("d2h", "G1.0", 0.06, 0.08, 1_000_000_000),
    ("host", "V1", 0.09, 0.14, 5_000_000_000),
)
"""Host memory moves 50, 100, 100, 100 GB/s from 60, 80, 90 ms on, and 7 GB in all."""


def write_step(folder: Path, rows: tuple = STEP, device: str = "made-up", **changes: Any) -> Path:
    """A file in a results folder; `changes` are to the row, or to the step."""
    told = {"step_seconds": 0.1, "host_memory_bytes_per_s": 100_000_000_000} | changes
    seconds, rate = (told.pop(name) for name in ("step_seconds", "host_memory_bytes_per_s"))
    case = told.pop("case", "78-b4")
    row = {"layers": 78, "speed": 40.0} | told
    record = record_of(line(row.pop("method", "stronghold"), **row))
    step = {"seconds": seconds, "host_memory_bytes_per_s": rate or None, "events": [*rows]}
    record = replace(record, bench=record.bench | {"case": case, "step": step})
    path = folder / "published-here" / device / "lanes" / f"{case}-stronghold.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.to_json(indent=None))
    return path
