"""One step of a run, of the last few whose events it recorded, as a small file to be kept.

The step is the one that took nearest to the run's median. Beside an action's times stands what it
moved through host memory, which is where copies and host updates meet: the bytes of a copy, and for
a host update all that AdamW reads and writes. Events do not say which actions found nothing to do
(a visit or an update whose guess stood, or was not made), but their times do: no host memory is as
fast as they would have to be.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

from workbench.core.files import write_whole
from workbench.core.record import RunRecord, Step
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.published.here import LANES as FOLDER
from workbench.runs.timeline import load_timeline
from workbench.schedule.action import COMPUTE, D2H, H2D, HOST, LANES, Kind, lane_kind
from workbench.schedule.simulate import Event

CEILING = "host memory, all at once"
"""The profile's figure of what host memory gives copies both ways and updates together."""
ADAM_BYTES = {"bf16": 26, "fp32": 28}
"""Bytes that a host update reads and writes per parameter (`profile.loads.Adam`): the gradient
once, the master weight and two fp32 moments twice. A split master has 4 bytes like a whole one."""
PART_LACKS = 8
"""Bytes that weights alone, or moments alone, do without."""
FASTEST = 1e12
"""Bytes per second. What would have been faster has moved nothing."""
DIGITS = 6


def keep_lanes(out: Path, record: RunRecord, folder: Path, rate: float | None) -> Path:
    """Write OUT/lanes/<case>-<method>.jsonl, in the place of an earlier run's.

    `record` is one that `describe` made, `folder` the run's, `rate` the host memory's, as its
    profile has it. Raises FileNotFoundError, ValueError or LookupError for a timeline that is not
    there or not one of this run.
    """
    step = step_of(record, load_timeline(folder).events, rate)
    path = lanes_file(out, record)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, replace(record, bench=record.bench | {"step": step}).to_json(indent=None))
    return path


def lanes_file(out: Path, record: RunRecord) -> Path:
    """Where the lanes of a run are, if they were kept: ``stronghold (w4 p8)`` is
    ``stronghold-w4-p8``."""
    method = re.sub(r"[^a-z0-9.]+", "-", record.bench["method"].lower()).strip("-")
    return out / FOLDER / f"{record.bench['case']}-{method}.jsonl"


def host_memory_rate(profile: Path) -> float | None:
    """Bytes per second of `CEILING` in a machine's hardware.json; None where it does not tell."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        figures = json.loads(profile.read_text())["figures"]
        return next((figure["value"] for figure in figures if figure["name"] == CEILING), None)
    return None


def step_of(record: RunRecord, events: list[Event], rate: float | None) -> Step:
    """The step, from the events of a run's timeline; the rest as `keep_lanes` has it."""
    steps, seconds = {event.step for event in events}, record.step_seconds
    usual = median(seconds[record.bench["warmup"] :])
    chosen = min(sorted(steps), key=lambda step: abs(seconds[step] - usual))
    mine = [event for event in events if event.step == chosen]
    origin = min(event.start_s for event in mine if lane_kind(event.lane) == COMPUTE)
    moved, told = HostBytes(RunSpec.from_dict(record.spec), mine), []
    for event in mine:
        start, end = (round(at - origin, DIGITS) for at in (event.start_s, event.end_s))
        told.append((event.lane, event.name, start, end, moved.of(event, end - start)))
    told.sort(key=lambda each: (LANES.index(lane_kind(each[0])), each[0], each[2]))
    return Step(
        seconds=round(seconds[chosen], DIGITS), host_memory_bytes_per_s=rate and round(rate),
        events=told,
    )  # fmt: skip


class HostBytes:
    """Bytes that actions of a run move through host memory."""

    def __init__(self, spec: RunSpec, step: list[Event]) -> None:
        self._model, self._each = make_model(spec.model), ADAM_BYTES[spec.dtype]
        self._apart: set[int] = set()
        """Units whose moments were updated later than their weights."""
        moments = (event for event in step if event.kind == Kind.MOMENTS)
        self._apart |= {each.unit for each in moments if self.of(each, each.end_s - each.start_s)}

    def of(self, event: Event, seconds: float) -> int:
        """Bytes of an action that took `seconds`; 0 where it had nothing to move."""
        lane = lane_kind(event.lane)
        nbytes = event.nbytes if lane in (H2D, D2H) else 0
        if lane == HOST:
            each = self._each - PART_LACKS * (event.unit in self._apart)
            nbytes = each * self._model.unit_parameters(event.unit)
        return nbytes if nbytes <= FASTEST * seconds else 0
