"""``timeline.json``: the events of a run's last steps, measured and predicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from workbench.core.schema import read_as
from workbench.core.sealed import read_sealed
from workbench.schedule.action import LANES, Kind, lane_kind
from workbench.schedule.simulate import Event, Occupied

FILE = "timeline.json"
KINDS = frozenset(Kind)
LONGEST_S = 1e9
"""Times further from 0 are no times of a training step, and too many nanoseconds to count."""


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
            check_event(event)


def check_event(event: Event) -> None:
    """Raise ValueError for an event of a kind or lane that this version lacks, that ends before it
    starts, or whose time or place is none of a training step's."""
    if event.kind not in KINDS or lane_kind(event.lane) not in LANES:
        raise ValueError(
            f"event {event.name!r} is of kind {event.kind!r} on lane {event.lane!r}, which this "
            "version lacks"
        )
    if not -LONGEST_S < event.start_s <= event.end_s < LONGEST_S:
        raise ValueError(
            f"event {event.name!r} is from {event.start_s} s to {event.end_s} s; it must end after "
            f"it starts, within {LONGEST_S:g} s"
        )
    if min(event.unit, event.rank, event.step, event.nbytes, event.microbatch or 0) < 0:
        raise ValueError(f"event {event.name!r} has a negative number, or is of no step")


def load_timeline(folder: Path) -> RunTimeline:
    """The timeline of the run in `folder`. Raises FileNotFoundError where it kept none, ValueError
    where the file does not fit."""
    return read_as(RunTimeline, read_sealed(folder / FILE, "it"), "")
