"""``timeline.json``: the events of a run's last steps, measured and foreseen."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from workbench.core.schema import read_as
from workbench.core.sealed import read_sealed
from workbench.schedule.action import LANES, Kind, lane_kind
from workbench.schedule.simulate import Event, Occupied

FILE = "timeline.json"
KINDS = frozenset(Kind)


@dataclass(frozen=True, kw_only=True)
class RunTimeline:
    """A run's events."""

    events: list[Event]
    schedule: str = ""
    """Name of the schedule that was executed."""
    source: str = "measured"
    predicted: list[Event] = field(default_factory=list)
    """The run's own plan of these steps, simulated; of runs before 2026-11-28 there is none."""
    memory: Occupied | None = None
    """Memory of the schedule."""

    def __post_init__(self) -> None:
        if not self.events:
            raise ValueError("it holds no event")
        for event in (*self.events, *self.predicted):
            if event.kind not in KINDS or lane_kind(event.lane) not in LANES:
                raise ValueError(
                    f"event {event.name!r} is of kind {event.kind!r} on lane {event.lane!r}, "
                    "which this version lacks"
                )
            if event.end_s < event.start_s or min(event.unit, event.rank, event.step) < 0:
                raise ValueError(f"event {event.name!r} ends before it starts, or is of no step")


def load_timeline(folder: Path) -> RunTimeline:
    """The timeline of the run in `folder`. Raises FileNotFoundError where it kept none, ValueError
    where the file does not fit."""
    return read_as(RunTimeline, read_sealed(folder / FILE, "it"), "")
