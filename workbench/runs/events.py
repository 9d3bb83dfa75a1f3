"""Events of a run: one JSON object a line in ``events.jsonl``, in the order they happened.

Progress, time left and the losses of a run that was killed all come from here, never from the text
of a log. A line that a death tore in two, or that changed since, is skipped, and the next writer
starts on a line of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import count, takewhile
from pathlib import Path
from typing import Any, TypedDict

from workbench.core.files import open_file
from workbench.core.record import Evaluation, strict
from workbench.core.schema import Measured, read_as
from workbench.core.sealed import parse_sealed, sealed

Event = dict[str, Any]
"""``{"time": seconds since 1970, "event": kind, ...}``; kinds: started, phase, step, ended, exit,
and whatever a method adds. The runner itself adds cached and waiting, which are not stored."""


TEXTS = ("event", "text", "reason", "message", "status", "started", "attempt", "key")
NUMBERS = ("index", "next_step", "done_bytes", "all_bytes")
OTHERS = {
    "time": float, "where": str | None, "settings": dict[str, Any], "step_seconds": float | None,
    "step_seconds_range": list[float] | None, "took": float, "grad_norm": Measured,
}  # fmt: skip
EventFields = TypedDict(
    "EventFields", dict.fromkeys(TEXTS, str) | dict.fromkeys(NUMBERS, int) | OTHERS, total=False
)
"""Fields of events, as far as programs read them; a line of other kinds of values is not used."""


class StepEvent(EventFields):
    """The event of a step that is done."""

    step: int
    loss: Measured
    seconds: float


class EvaluatedEvent(EventFields, Evaluation):
    """The event of an evaluation."""


class Exit(TypedDict):
    """How a worker ended, as its guard saw it."""

    returncode: int
    reason: str | None
    oom_kills: int


KINDS = {"step": StepEvent, "exit": Exit, "evaluated": EvaluatedEvent}
"""Kind -> form, of events whose fields are looked at."""
NEEDED = {
    "bytes": {"text", "done_bytes", "all_bytes"}, "cached": {"started"}, "damaged": {"reason"},
    "evaluated": {"step", "loss"},
    "evaluating": {"next_step"},
    "not_evaluated": {"reason"}, "not_saved": {"reason"}, "phase": {"text"}, "plan": {"settings"},
    "point": {"index", "key"}, "point_ended": {"index", "key", "status"}, "profile": {"text"},
    "resumed": {"next_step"}, "saved": {"next_step"}, "waiting": {"text"},
}  # fmt: skip
"""Kind -> fields without which nobody can use it."""


def make_event(kind: str, **values: Any) -> Event:
    """An event of this moment."""
    return {"time": round(time.time(), 6), "event": kind, **values}


class EventLog:
    """Appends events to a file, each in one write, so that several processes may share it."""

    def __init__(self, path: Path) -> None:
        """Opens the file; what an earlier attempt left stays."""
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: str, **values: Any) -> None:
        """Append an event. Raises OSError."""
        told = strict(make_event(kind, **values))
        line = sealed(json.dumps(told, allow_nan=False, default=str))
        size = os.fstat(self._file).st_size
        torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"  # by a death, a full disk
        data = b"\n" * torn + line
        if os.write(self._file, data) < len(data):  # the disk fills up: again, or an error
            self.write(kind, **values)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Teller:
    """What is polled, and tells events meanwhile."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def new_events(self) -> list[Event]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events

    def deliver(self, on_event: Callable[[Event], None] | None) -> None:
        """Hand over new events, where somebody listens."""
        for event in self.new_events():
            if on_event is not None:
                on_event(event)


class EventReader:
    """Reads what was appended since the last call; whole lines only."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def read(self) -> list[Event]:
        """Events of the lines that are whole and were not read yet; none where the file is not
        there."""
        try:
            with open_file(self._path, "it") as file:
                file.seek(self._offset)
                data = file.read()
        except (FileNotFoundError, ValueError):
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [event for line in whole.splitlines() if (event := parse_event(line)) is not None]


def parse_event(line: str | bytes) -> Event | None:
    """The event of a line; None where a death tore it, it changed since, or it is none of ours."""
    try:
        data = line.encode(errors="replace") if isinstance(line, str) else line
        event = parse_sealed(data.rstrip() + b"\n", "it")
        kind = str(event["event"]) if isinstance(event, dict) and "event" in event else None
        event = read_as(KINDS.get(kind, EventFields), event, "it")
    except ValueError:
        return None
    return event if kind is not None and NEEDED.get(kind, set()) <= event.keys() else None


def of_attempt(events: list[Event], started: str) -> list[Event]:
    """The events of one attempt, which is named after its start; none where it never began."""
    starts = [i for i, event in enumerate(events) if event.get("attempt") == started]
    return events[starts[-1] :] if starts else []


def steps_of(events: list[Event]) -> tuple[list[float], list[float]]:
    """Losses and seconds of the steps, in order, up to the first that is not told; a step done
    twice counts as last reported."""
    done = {event["step"]: event for event in events if event["event"] == "step"}
    first = min(done, default=0)
    steps = [done[step] for step in takewhile(done.__contains__, count(first))]
    return [e["loss"] for e in steps], [e["seconds"] for e in steps]


def evaluations_of(events: list[Event]) -> list[Evaluation]:
    """Evaluations that events tell of, in their order; one made twice counts as last told."""
    found = {event["step"]: event for event in events if event["event"] == "evaluated"}
    return [
        {name: event[name] for name in Evaluation.__annotations__ if name in event}
        for _, event in sorted(found.items())
    ]
