"""Measurements of this project on named hardware: the rows of a benchmark's file, read and checked.

``results/published-here/<device>/offload.csv`` has one row a run, appended by the harness that made
it. A row that cannot be right is refused in one sentence (sheet.py), since a figure drawn from a
slip of a hand looks like any other. These rows are `measured`; published values lie in tables.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from workbench.core.jsonfile import read_object
from workbench.published import sheet

FILE = "offload.csv"
COLUMNS = (
    "method", "layers", "hidden", "heads", "seq", "batch", "dtype", "clip", "device_cap_gib",
    "host_cap_gib", "parameters", "status", "samples_per_second", "step_seconds_median",
    "step_seconds_spread", "predicted_step_seconds", "peak_device_gib",
    "predicted_peak_device_gib", "host_gib", "disk_gib", "final_loss", "commit", "measured_on",
)  # fmt: skip
LABELS = {
    "plain": "plain torch",
    "megatron-core": "Megatron-LM",
    "l2l": "L2L",
    "fsdp-offload": "FSDP2",
    "zero-offload": "ZeRO-Offload",
    "zero-infinity": "ZeRO-Infinity",
    "zero-infinity-disk": "ZeRO-Infinity, disk",
    "stronghold": "STRONGHOLD",
    "stronghold-disk": "STRONGHOLD, disk",
}
"""The methods a row may name, and what figures call them; in the order in which they are drawn."""
PAUSE = timedelta(minutes=15)
"""After so long a pause another machine may have been at work, though it bears the same name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffloadRun(sheet.Run):
    """One run."""

    LABELS = LABELS

    disk_gib: float | None
    disk_step_bytes: int | None = None
    """Read from the disk and written to it in a step, together: of the file's provenance."""

    @property
    def pinned(self) -> bool:
        """Whether the variant fixes what the planner would choose (``w4``, ``p8 k4``)."""
        return re.search(r"(?<!\w)[wrpk]\d+(?!\w)", self.variant) is not None

    @property
    def window(self) -> int | None:
        """The window that the variant asks for (``w4``), None where the planner chose it."""
        found = re.search(r"(?<!\w)w(\d+)(?!\w)", self.variant)
        return int(found[1]) if found else None


def _with_provenance(path: Path, runs: list[OffloadRun]) -> list[OffloadRun]:
    told = _provenance(path.with_suffix(".json"))
    return [replace(run, **told[_place(run)]._asdict()) if _place(run) in told else run
            for run in runs]  # fmt: skip


def _place(run: OffloadRun) -> tuple[str, str, float | None, float | None]:
    """Key that tells a run from all others of a file."""
    return run.method, run.commit, run.parameters, run.samples_per_second


class _Told(NamedTuple):
    """Fields of `OffloadRun` that a run's provenance has and its row has not."""

    disk_step_bytes: int | None
    sitting: str


def _provenance(path: Path) -> dict[tuple[str, str, float | None, float | None], _Told]:
    """By `_place`; nothing where there is no such file. Raises ValueError for a file that is none
    of ours."""
    if not path.is_file():
        return {}
    try:
        runs = sorted(read_object(path, "it")["runs"], key=lambda run: run["started"])
        told: dict[tuple[str, str, float | None, float | None], _Told] = {}
        began, ended = "", None
        for run in runs:
            row, moved = run["row"], run["moved_bytes"]
            started = datetime.fromisoformat(run["started"])
            if ended is None or started - ended > PAUSE:
                began = f"{started:%H:%M}"
            ended = started + timedelta(seconds=run["seconds"])
            place = (row["method"].partition(" ")[0], row["commit"], row["parameters"],
                     row["samples_per_second"])  # fmt: skip
            disk = (moved.get("read") or 0) + (moved.get("write") or 0)
            told[place] = _Told(disk_step_bytes=disk or None, sitting=began)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{path.parent.name}/{path.name} is not a benchmark's provenance: {error!r}"
        ) from None
    return told


_SHEET = sheet.Sheet(
    file=FILE,
    columns=COLUMNS,
    settings=COLUMNS[:10],
    kind=OffloadRun,
    readers={"disk_gib": sheet.or_none(sheet.amount)},
    told=_with_provenance,
)
offload_runs, latest, read_offload = _SHEET.runs, _SHEET.latest, _SHEET.read
"""The runs of some roots; the last one of each set of equal runs; the rows of a file."""
