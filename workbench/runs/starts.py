"""Where the start of a run went: the seconds of each part, up to the end of the first step.

Parts come from the run's events, so a run that was ended before its first step tells as well.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from workbench.core.reporter import COMPILING, RANKS
from workbench.runs.events import Event, EventReader
from workbench.runs.jobfile import JobFile

COMMAND = "checking the command, importing"
WORKER, IMPORTS, FIRST = "starting its process", "imports", "first step"
TOLD_S = 0.05
"""Shorter parts are not told."""


def start_of(folder: Path, job: JobFile) -> dict[str, float]:
    """The parts of a run's start, in their order; the last one where it has not done a step."""
    events, began = EventReader(folder / "events.jsonl").read(), datetime.fromisoformat(job.started)
    began_s = began.timestamp()
    before = {COMMAND: round(job.before_s, 2)} if job.before_s >= TOLD_S else {}
    own = [event for event in events if event.get("time", 0.0) >= began_s]
    return before | parts_of(own, began_s)


def parts_of(events: list[Event], began: float) -> dict[str, float]:
    """Part -> seconds, by the events of an attempt that began at a moment (seconds since 1970).
    What the compiler took is a part of its own, and left out of the others.

    >>> told = ("started", 1), ("phase", 3), ("phase", 4), ("step", 9), ("compiled", 11)
    >>> events = [{"event": e, "time": at, "text": "reading", "took": 2.0} for e, at in told]
    >>> list(parts_of(events, 0).values())  # the process, imports, reading, first step, compiling
    [1.0, 2.0, 1.0, 3.0, 2.0]
    """
    parts: dict[str, float] = {}
    name, at, compiled = WORKER, began, 0.0
    for event in events:
        kind, took = event["event"], event.get("took", 0.0)
        if kind == "compiled":
            compiled += took
            if name:
                at += took
            else:  # ranks tell in the end what their first step was
                parts[FIRST] -= took
        elif kind == "ranks":  # and what the slowest of them did while they were waited for
            own, waited = dict(event["parts"]), parts.pop(RANKS, 0.0)
            compiled += min(own.get(COMPILING, 0.0), waited)
            waited -= min(own.pop(COMPILING, 0.0), waited)
            for part, seconds in reversed(own.items()):
                parts[f"ranks: {part}"] = min(seconds, waited)
                waited -= min(seconds, waited)
            parts[RANKS] = waited
        elif name and kind in ("started", "phase", "step", "exit"):
            part = FIRST if kind == "step" else name
            parts[part] = parts.get(part, 0.0) + event["time"] - at
            name = {"started": IMPORTS, "phase": event.get("text", "")}.get(kind, "")
            at = event["time"]
    told = parts | {COMPILING: compiled}
    return {part: round(s, 2) for part, s in told.items() if s >= TOLD_S or part == FIRST}


def start_words(start: dict[str, float]) -> str:
    """The start in a sentence, its longest parts first; empty where nobody told.

    >>> start_words({"imports": 12.0, "profiling": 31.4, "first step": 2.5})
    '46 s to the end of the first step: profiling 31 s, imports 12 s, first step 2.5 s'
    """
    parts = [(sum(start.values()), "to the end of the first step")]
    parts += sorted(((seconds, name) for name, seconds in start.items()), reverse=True)
    words = [f"{s:.2g} s" if s < 10 else f"{s:.0f} s" for s, _ in parts]
    told = ", ".join(f"{name} {w}" for (_, name), w in zip(parts[1:], words[1:], strict=True))
    until = parts[0][1] if FIRST in start else "and no step was done"
    return f"{words[0]} {until}: {told}" if start else ""
