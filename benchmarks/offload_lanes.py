"""One step of a run, of the last few whose events it recorded, as a small file to be kept.

The step is the one that took nearest to the run's median. Beside an action's times stands what it
moved through host memory, which is where copies and host updates meet: the bytes of a copy, and for
a host update all that AdamW reads and writes. Events do not say which actions found nothing to do
(a visit or an update whose guess stood, or was not made), but their times do: no host memory is as
fast as they would have to be.
"""

from __future__ import annotations

import csv
import json
import re
from contextlib import suppress
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from workbench.core.files import write_whole
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.published.lanes import COLUMNS, FOLDER, HEAD
from workbench.schedule.action import COMPUTE, D2H, H2D, HOST, LANES, lane_kind, parse_name

CEILING = "host memory, all at once"
"""The profile's figure of what host memory gives copies both ways and updates together."""
ADAM_BYTES = {"bf16": 26, "fp32": 28}
"""Bytes that a host update reads and writes per parameter (`profile.loads.Adam`): the gradient
once, the master weight and two fp32 moments twice. A split master has 4 bytes like a whole one."""
FASTEST = 1e12
"""Bytes per second. What would have been faster has moved nothing."""
DIGITS = 6


def keep_lanes(out: Path, run: dict[str, Any], timeline: Path, rate: float | None) -> Path:
    """Write OUT/lanes/<case>-<method>.csv, in the place of an earlier run's.

    `run` is one of `Sheet.runs`, `rate` the host memory's, as its profile has it. Raises OSError,
    ValueError, LookupError or TypeError for a timeline that is not there or not one of this run.
    """
    text = lanes_text(run, json.loads(timeline.read_text())["events"], rate)
    path = lanes_file(out, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return path


def lanes_file(out: Path, run: dict[str, Any]) -> Path:
    """Where the lanes of a run are, if they were kept."""
    return out / FOLDER / f"{run['case']}-{plain(run['method'])}.csv"


def plain(method: str) -> str:
    """A method as part of a file's name: ``stronghold (w4 p8)`` is ``stronghold-w4-p8``."""
    return re.sub(r"[^a-z0-9.]+", "-", method.lower()).strip("-")


def host_memory_rate(profile: Path) -> float | None:
    """Bytes per second of `CEILING` in a machine's hardware.json; None where it does not tell."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        figures = json.loads(profile.read_text())["figures"]
        return next((figure["value"] for figure in figures if figure["name"] == CEILING), None)
    return None


def lanes_text(run: dict[str, Any], events: list[dict[str, Any]], rate: float | None) -> str:
    """The file's text, from the events of a run's timeline; the rest as `keep_lanes` has it."""
    steps, seconds = {event["step"] for event in events}, run["step_seconds"]
    usual = median(seconds[run["warmup"] :])
    chosen = min(sorted(steps), key=lambda step: abs(seconds[step] - usual))
    mine = [event for event in events if event["step"] == chosen]
    origin = min(e["start_s"] for e in mine if lane_kind(e["lane"]) == COMPUTE)
    row = run["row"]
    told = {name: run[name] for name in ("case", "method", "key", "started", "commit")} | {
        "hardware": row["measured_on"].partition(" ")[2],
        "step_seconds": round(seconds[chosen], DIGITS),
        **{name: row[name] for name in ("layers", "batch", "clip", "device_cap_gib")},
        "host_memory_bytes_per_s": None if rate is None else round(rate),
    }
    moved = HostBytes(RunSpec.from_dict(run["spec"]))
    rows = [_row(event, origin, moved) for event in mine]
    rows.sort(key=lambda r: (LANES.index(lane_kind(r["lane"])), r["lane"], float(r["start_s"])))
    text = StringIO()
    for name in HEAD:
        text.write(f"# {name}: {'' if told[name] is None else told[name]}".rstrip() + "\n")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


class HostBytes:
    """Bytes that actions of a run move through host memory."""

    def __init__(self, spec: RunSpec) -> None:
        self._model, self._each = make_model(spec.model), ADAM_BYTES[spec.dtype]

    def of(self, event: dict[str, Any], seconds: float) -> int:
        """Bytes of an action that took `seconds`; 0 where it had nothing to move."""
        lane = lane_kind(event["lane"])
        nbytes = event["nbytes"] if lane in (H2D, D2H) else 0
        if lane == HOST:
            nbytes = self._each * self._model.unit_parameters(event["unit"])
        return nbytes if nbytes <= FASTEST * seconds else 0


def _row(event: dict[str, Any], origin: float, moved: HostBytes) -> dict[str, Any]:
    start, end = (round(event[name] - origin, DIGITS) for name in ("start_s", "end_s"))
    return {
        **{name: event[name] for name in ("lane", "kind", "unit", "microbatch", "name")},
        "turn": parse_name(event["name"]).turn,
        "start_s": f"{start:.{DIGITS}f}",
        "end_s": f"{end:.{DIGITS}f}",
        "host_bytes": moved.of(event, end - start),
    }
