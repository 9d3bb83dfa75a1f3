"""Facts of a measured step's lanes: how busy each is, and how full the host's memory.

A run's steps follow one another, and updates and copies of one reach into the next. A step that is
shown alone is therefore folded: what lies past its end stands at its beginning, where the same work
of the step before was done. Then nothing is counted twice and nothing is left out.

The bound is what no order of the same work can beat on this machine: computing takes as long as it
took, a disk reads and writes for as long as it did, and host memory moves no more bytes a second
than it does with copies both ways and updates all at once. A plan that moves less, or computes
less, has a bound of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from workbench.exhibits.hardware.offload_goals import CAP_GIB, DTYPE, HIDDEN, SEQ, SHARES
from workbench.exhibits.hardware.table import framed
from workbench.figures.rows import pick
from workbench.published.here import Run
from workbench.published.lanes import of_lane
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST, VISIT

SHOWN = (COMPUTE, VISIT, H2D, D2H, HOST)
NEAR = 0.9
"""Share of the ceiling above which host memory counts as full."""
HOST_MEMORY = "host memory"
METHOD = "stronghold"
"""Method whose goals these are."""
SMALLER_CAPS_GIB, OF_THE_BOUND = (16, 24), 0.8
"""Under these caps a step should come so near its own bound."""

COLUMNS = (
    "case", "method", "label", "layers", "batch", "clip", "device_cap_gib", "step_seconds",
    "samples_per_second", *(f"{lane}_share" for lane in SHOWN), "compute_seconds", "host_bytes",
    "traffic_bytes_per_s", "ceiling_bytes_per_s", "full_share", "full_from_s", "full_to_s",
    "full_bytes_per_s", "bound", "bound_samples_per_second", "goal_share",
    "goal_samples_per_second", "source", "hardware", "device", "date", "commit",
)  # fmt: skip
"""`<lane>_share`: of the step in which the lane is busy. `traffic_bytes_per_s`: the host memory's
mean over the step. `full_share`: of the step in which its traffic is above `NEAR` of the ceiling.
Mostly that is between `full_from_s` and `full_to_s`, which lies past the step's end where it is in
the next, and where the mean is `full_bytes_per_s`. `bound`: what `bound_samples_per_second` comes
from. `goal_share`: of plain training; where the goal is a share of the bound there is none."""


class Span(NamedTuple):
    """A value that holds for a while."""

    start_s: float
    end_s: float
    value: float

    @property
    def area(self) -> float:
        return (self.end_s - self.start_s) * self.value


def folded(spans: Iterable[Span], period_s: float) -> list[Span]:
    """Spans with all that lies outside of [0, `period_s`) moved into it, cut at its ends."""
    out = []
    for start, end, value in spans:
        while start < end:
            period = start // period_s
            stop = min(end, (period + 1) * period_s)
            if stop <= start:  # the quotient was rounded down
                period += 1
                stop = min(end, (period + 1) * period_s)
            out.append(Span(max(0.0, start - period * period_s), stop - period * period_s, value))
            start = stop
    return out


def level(spans: Sequence[Span], period_s: float) -> list[Span]:
    """The sum of folded spans over [0, `period_s`): a step function without gaps."""
    changes = {0.0: 0.0, period_s: 0.0}
    for start, end, value in spans:
        changes[start] = changes.get(start, 0.0) + value
        changes[end] = changes.get(end, 0.0) - value
    total, out = 0.0, []
    for start, end in pairwise(sorted(changes)):
        total += changes[start]
        out.append(Span(start, end, total))
    return out


def busy_share(step: Run, lane: str) -> float:
    """Share of the step in which at least one lane of a kind is busy."""
    spans = [Span(event.start_s, event.end_s, 1.0) for event in of_lane(step, lane)]
    parts = level(folded(spans, step.step_seconds), step.step_seconds)
    return sum(end - start for start, end, busy in parts if busy > 0.5) / step.step_seconds


def traffic(step: Run) -> list[Span]:
    """Bytes per second of host memory over the step, those of each action spread evenly over it."""
    spans = [
        Span(event.start_s, event.end_s, event.nbytes / (event.end_s - event.start_s))
        for event in step.events
        if event.nbytes
    ]
    return level(folded(spans, step.step_seconds), step.step_seconds)


def fullest(step: Run) -> Span | None:
    """When host memory is full for the most part, and its mean traffic then; None where it never
    is.

    The stretch, around the step's end if need be, over which the bytes above `NEAR` of the ceiling
    exceed those that are missing to it by the most.
    """
    if step.host_memory_bytes_per_s is None:
        return None
    limit, period_s = NEAR * step.host_memory_bytes_per_s, step.step_seconds
    spans = [span._replace(value=span.value - limit) for span in traffic(step)]
    inside = best_stretch([span.area for span in spans])
    outside = best_stretch([-span.area for span in spans])
    gain = sum(span.area for span in spans[slice(*inside)])
    around = sum(s.area for s in spans) - sum(s.area for s in spans[slice(*outside)])
    if max(gain, around) <= 0:
        return None
    start, end = spans[inside[0]].start_s, spans[inside[1] - 1].end_s
    if around > gain:
        start, end, gain = spans[outside[1]].start_s, period_s + spans[outside[0]].start_s, around
    return Span(start, end, limit + gain / (end - start))


def best_stretch(values: Sequence[float]) -> tuple[int, int]:
    """[first, behind the last) of the neighbours with the largest sum (Kadane's algorithm).

    >>> best_stretch([-1.0, 2.0, -1.0, 3.0, -4.0])
    (1, 4)
    """
    best, found, total, begin = 0.0, (0, 0), 0.0, 0
    for place, value in enumerate(values):
        if total <= 0:
            total, begin = 0.0, place
        total += value
        if total > best:
            best, found = total, (begin, place + 1)
    return found


def table(steps: Iterable[Run], offload: pd.DataFrame) -> pd.DataFrame:
    """One row a step. `offload` (`table.OFFLOAD`) tells what plain training reaches."""
    rows = framed([_row(step, offload) for step in steps], COLUMNS)
    return rows.sort_values(["method", "layers", "batch", "case"], ignore_index=True)


def _row(step: Run, offload: pd.DataFrame) -> dict[str, Any]:
    ceiling, full = step.host_memory_bytes_per_s, fullest(step) or (None, None, None)
    moved, near = sum(event.nbytes for event in step.events), NEAR * (ceiling or math.inf)
    at_ceiling = sum(end - start for start, end, rate in traffic(step) if rate > near)
    limits = {
        lane: sum(event.end_s - event.start_s for event in of_lane(step, lane))
        for lane in (COMPUTE, DISK_IN, DISK_OUT)
    } | {HOST_MEMORY: moved / ceiling if ceiling else 0.0}
    bound = max(limits, key=limits.__getitem__)
    at_most = step.batch / limits[bound]
    own = step.named == METHOD
    share, goal = goal_of(step, offload) if own else (None, None)
    if own and step.device_cap_gib in SMALLER_CAPS_GIB:
        goal = OF_THE_BOUND * at_most
    return {
        **vars(step),
        "method": step.named,
        "label": step.label,
        "samples_per_second": step.batch / step.step_seconds,
        **{f"{lane}_share": busy_share(step, lane) for lane in SHOWN},
        "compute_seconds": limits[COMPUTE],
        "host_bytes": moved,
        "traffic_bytes_per_s": moved / step.step_seconds,
        "ceiling_bytes_per_s": ceiling,
        "full_share": at_ceiling / step.step_seconds if ceiling else None,
        **dict(zip(("full_from_s", "full_to_s", "full_bytes_per_s"), full, strict=True)),
        "bound": bound,
        "bound_samples_per_second": at_most,
        "goal_share": share,
        "goal_samples_per_second": goal,
        "source": "measured",
    }


def goal_of(step: Run, offload: pd.DataFrame) -> tuple[float | None, float | None]:
    """The share of plain training that this project wants of the step's setting, and the samples/s
    it makes; (None, None) where there is no such goal, or no plain training to compare with."""
    wanted = {(layers, batch): share for layers, batch, share in SHARES}
    share = wanted.get((step.layers, step.batch))
    setting = {name: getattr(step, name) for name in ("method", "layers", "batch", "device")}
    same = pick(offload, **setting, hidden=HIDDEN, seq=SEQ, dtype=DTYPE, device_cap_gib=CAP_GIB)
    plain = same["plain"].max()
    if share is None or step.device_cap_gib != CAP_GIB or pd.isna(plain):
        return None, None
    return share, share * float(plain)
