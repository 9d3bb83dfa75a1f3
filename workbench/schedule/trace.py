"""Timelines as Chrome traces, which ui.perfetto.dev and chrome://tracing open.

One process a rank, one thread a lane, one complete event ("X") an action; counters show the memory
of each tier, arrows what an action waited for on other lanes. torch.profiler writes the same
format, so both can be loaded together. Times are microseconds, made from whole nanoseconds: ends
are rounded the same way as starts, so what followed in time never overlaps in the file.

    >>> from workbench.schedule.simulate import Event
    >>> events = trace_events([Event("L3", "L", 3, None, 0, "h2d", 0, 0.0, 1.5e-6, 64)])
    >>> events[-1]["ph"], events[-1]["ts"], events[-1]["dur"], events[-1]["args"]["nbytes"]
    ('X', 0.0, 1.5, 64)
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.core.files import write_whole
from workbench.schedule.action import LANES, Kind, lane_kind
from workbench.schedule.looks import WAITING
from workbench.schedule.schedule import TIERS, Schedule
from workbench.schedule.simulate import Event, memory_timeline
from workbench.schedule.waits import told_apart


def write_trace(
    path: Path,
    events: Iterable[Event],
    *,
    schedule: Schedule | None = None,
    source: str = "simulated",
    arrows: bool = True,
) -> None:
    """Write a trace file, whole or not at all.

    `source` (``simulated`` or ``measured``) stands in the names of the processes. With a schedule
    the trace has memory counters and, unless `arrows` is off, dependencies.
    """
    rows = trace_events(events, schedule=schedule, source=source, arrows=arrows)
    text = json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}, allow_nan=False)
    write_whole(Path(path), text)


def trace_events(
    events: Iterable[Event],
    *,
    schedule: Schedule | None = None,
    source: str = "simulated",
    arrows: bool = True,
    first_pid: int = 0,
) -> list[dict[str, Any]]:
    """The rows of a trace. Rank r is process ``first_pid + r``: several timelines fit one file."""
    events = sorted(events, key=lambda event: (event.start_s, event.end_s, event.step))
    lanes = sorted(
        {(event.rank, event.lane) for event in events},
        key=lambda key: (key[0], LANES.index(lane_kind(key[1])), key[1]),
    )
    tids = {key: tid for tid, key in enumerate(lanes)}
    rows: list[dict[str, Any]] = []
    for rank in sorted({rank for rank, _ in lanes}):
        pid = first_pid + rank
        rows.append(_named("process_name", pid, name=f"{source} rank {rank}"))
        rows.append(_named("process_sort_index", pid, sort_index=pid))
    for (rank, lane), tid in tids.items():
        rows.append(_named("thread_name", first_pid + rank, tid, name=lane))
        rows.append(_named("thread_sort_index", first_pid + rank, tid, sort_index=tid))
    if schedule is not None:
        rows += _memory(schedule, events, first_pid)
        if arrows:
            rows += _arrows(schedule, events, tids, first_pid)
    for event in told_apart(events):
        rows.append(_complete(event, first_pid + event.rank, tids[event.rank, event.lane]))
    return rows


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _named(what: str, pid: int, tid: int = 0, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _complete(event: Event, pid: int, tid: int) -> dict[str, Any]:
    args = {"unit": event.unit, "step": event.step, "nbytes": event.nbytes}
    if event.microbatch is not None:
        args["microbatch"] = event.microbatch
    return {
        "ph": "X",
        "name": event.name,
        "cat": "waiting" if event.kind == WAITING else Kind(event.kind).name.lower(),
        "pid": pid,
        "tid": tid,
        "ts": _ns(event.start_s) / 1000,
        "dur": (_ns(event.end_s) - _ns(event.start_s)) / 1000,
        "args": args,
    }


def _memory(schedule: Schedule, events: list[Event], first_pid: int) -> list[dict[str, Any]]:
    """A counter a tier and rank, for tiers that hold anything."""
    rows = []
    for rank in sorted({event.rank for event in events}):
        for tier in TIERS:
            timeline = memory_timeline(schedule, events, tier, rank)
            if not any(nbytes for _, nbytes in timeline):
                continue
            rows += [
                {
                    "ph": "C",
                    "name": f"{tier} memory",
                    "pid": first_pid + rank,
                    "tid": 0,
                    "ts": _ns(at) / 1000,
                    "args": {"bytes": nbytes},
                }
                for at, nbytes in timeline
            ]
    return rows


def _arrows(
    schedule: Schedule, events: list[Event], tids: dict[tuple[int, str], int], first_pid: int
) -> list[dict[str, Any]]:
    """A flow from the end of each action to each that waited for it on another lane."""
    when = {(event.name, event.step): event for event in events}
    rows = []
    for event in events:
        for text in schedule.by_name[event.name].after:
            name, _, back = text.partition("@")
            source = when.get((name, event.step + int(back or 0)))
            if source is None or (source.rank, source.lane) == (event.rank, event.lane):
                continue
            # An arrow leaves from within the action it starts at, so just before that ends.
            leaves = max(_ns(source.start_s), _ns(source.end_s) - 1)
            if leaves > _ns(event.start_s):  # those that meet begin together: nobody waits
                continue
            flow = {"name": "waits for", "cat": "dependency", "id": len(rows) // 2}
            rows.append(
                {
                    **flow,
                    "ph": "s",
                    "pid": first_pid + source.rank,
                    "tid": tids[source.rank, source.lane],
                    "ts": leaves / 1000,
                }
            )
            rows.append(
                {
                    **flow,
                    "ph": "f",
                    "bp": "e",
                    "pid": first_pid + event.rank,
                    "tid": tids[event.rank, event.lane],
                    "ts": _ns(event.start_s) / 1000,
                }
            )
    return rows
