"""Made-up measured steps: never numbers that somebody could take for measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.published.lanes import COLUMNS, HEAD
from workbench.schedule.action import parse_name

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


def step_text(rows: tuple = STEP, **changes: Any) -> str:
    """A file of lanes; `changes` are to its head, None leaves a comment out."""
    head = dict.fromkeys(HEAD, "") | {
        "case": "78-b4", "method": "stronghold", "key": "0123", "started": "2026-11-21T08:00:00",
        "commit": "0123abc", "hardware": "Made-up GPU", "step_seconds": 0.1, "layers": 78,
        "batch": 4, "clip": 1.0, "device_cap_gib": 32.0, "host_memory_bytes_per_s": 100_000_000_000,
    } | changes  # fmt: skip
    lines = [f"# {name}: {value}" for name, value in head.items() if value is not None]
    lines.append(",".join(COLUMNS))
    for lane, name, start, end, nbytes in rows:
        said = parse_name(name)
        micro = "" if said.microbatch is None else said.microbatch
        what = (lane, said.kind.value, said.unit, micro, said.turn, name)
        lines.append(",".join(map(str, (*what, f"{start:.6f}", f"{end:.6f}", nbytes))))
    return "\n".join(lines) + "\n"


def write_step(folder: Path, text: str = "", device: str = "made-up", **changes: Any) -> Path:
    """A file in a results folder, of `step_text` unless `text` is given."""
    case = changes.get("case", "78-b4")
    path = folder / "published-here" / device / "lanes" / f"{case}-stronghold.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or step_text(**changes))
    return path
