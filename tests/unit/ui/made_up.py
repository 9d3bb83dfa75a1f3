"""Small timelines whose numbers can be checked by hand."""

from __future__ import annotations

from typing import Any

from workbench.schedule.action import parse_name
from workbench.schedule.simulate import Event

MS = 1e-3


def event(
    name: str = "F1.0",
    lane: str = "compute",
    start: float = 0.0,
    end: float = 1.0,
    *,
    step: int = 0,
    nbytes: int = 0,
    **changes: Any,
) -> Event:
    """An event from `start` to `end`, in milliseconds; kind, unit and rank follow its name."""
    said = parse_name(name)
    fields = {
        "name": name,
        "kind": said.kind.value,
        "unit": said.unit,
        "microbatch": said.microbatch,
        "rank": said.rank,
        "lane": lane,
        "step": step,
        "start_s": start * MS,
        "end_s": end * MS,
        "nbytes": nbytes,
    }
    return Event(**{**fields, **changes})


def two_steps(slower: float = 1.0, origin: float = 0.0) -> list[Event]:
    """A load, a forward and a backward pass and an update, 10 ms a step, times `slower`.

    The update of a step runs beside the forward pass of the next.
    """
    found = []
    for step in (0, 1):
        for name, lane, start, end, nbytes in (
            ("L1", "h2d", 0, 2, 8_000_000),
            ("F1.0", "compute", 2, 4, 0),
            ("B1.0", "compute", 4, 8, 0),
            ("U1", "host", 8, 14, 0),
        ):
            at = [origin + slower * (10 * step + time) for time in (start, end)]
            found.append(event(name, lane, *at, step=step, nbytes=nbytes))
    return found
