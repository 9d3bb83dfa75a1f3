"""Measurements of this project on servers of several GPUs: the rows of that benchmark, read,
checked.

``results/published-here/<device>/servers.csv`` has one row a run, as offload.csv has (here.py), and
is read by the same rules (sheet.py). A row is all ranks of a run together, but for its caps and
peaks of device memory, which are those of one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from workbench.core.methods import RENAMED, known
from workbench.published import sheet

FILE = "servers.csv"
COLUMNS = (
    "method", "ranks", "layers", "hidden", "heads", "seq", "batch", "dtype", "clip",
    "device_cap_gib", "host_cap_gib", "parameters", "status", "samples_per_second",
    "step_seconds_median", "step_seconds_spread", "predicted_step_seconds", "peak_device_gib",
    "predicted_peak_device_gib", "host_gib", "load_gib", "store_gib", "planned_load_gib",
    "planned_store_gib", "final_loss", "commit", "measured_on",
)  # fmt: skip
METHODS = (
    "plain", "data-parallel", "gpipe", "1f1b", "interleaved", "zb-h1", "varuna", "torch-gpipe",
    "torch-1f1b", "torch-interleaved", "torch-zero-bubble", "zero-offload", "zero-infinity",
    "dp-swap", "pp-swap", "harmony-dp", "harmony-pp",
)  # fmt: skip
LABELS = {name: known()[name].label for name in METHODS}
"""The methods a row may name, and what figures call them; in the order in which they are drawn."""
RENAMED_ON = date(2026, 11, 27)
"""Rows measured before call torch's pipelines as our own are called since."""
MOVED = ("load_gib", "store_gib", "planned_load_gib", "planned_store_gib")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerRun(sheet.Run):
    """One run."""

    LABELS = LABELS

    ranks: int
    """GPUs that took part."""
    load_gib: float | None
    """Over the host links to all GPUs in a step, as the runtime counted it; None where it does
    not."""
    store_gib: float | None
    """GiB a step from the GPUs to the host."""
    planned_load_gib: float | None
    """`load_gib` as planned."""
    planned_store_gib: float | None


def _renamed(path: Path, runs: list[ServerRun]) -> list[ServerRun]:
    return [
        replace(run, method=RENAMED.get(run.method, run.method)) if run.date < RENAMED_ON else run
        for run in runs
    ]


def _contradiction(run: ServerRun, texts: dict[str, str]) -> str:
    """Contradiction among the fields of a row; empty where they agree."""
    if run.method == "plain" and run.ranks > 1:
        return f"ranks is {texts['ranks']!r}, and plain training runs on one GPU"
    return sheet.contradiction(run, texts)


_SHEET = sheet.Sheet(
    file=FILE,
    columns=COLUMNS,
    settings=COLUMNS[:11],
    kind=ServerRun,
    readers={"ranks": sheet.count, **dict.fromkeys(MOVED, sheet.or_none(sheet.amount))},
    wrong=_contradiction,
    told=_renamed,
)
server_runs, latest, read_servers = _SHEET.runs, _SHEET.latest, _SHEET.read
"""The runs of some roots; the last one of each set of equal runs; the rows of a file."""
