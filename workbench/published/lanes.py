"""One measured step of a run on named hardware: what every lane did, and what it moved.

``results/published-here/<device>/lanes/<case>-<method>.jsonl`` is the record of a run of the
offload benchmark with its `Step`, which the benchmark keeps of each case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from workbench.published.here import LANES, OFFLOAD, Run
from workbench.schedule.action import COMPUTE, lane_kind, parse_name
from workbench.schedule.action import LANES as KNOWN
from workbench.schedule.simulate import Event

AGREE = 0.05
"""Compute may fill this much more than the step, which another clock measured."""


def measured_steps(roots: Iterable[Path]) -> list[Run]:
    """The steps of every root; of equal cases and methods on a machine the last root's. Each is a
    run with `step_seconds`, `host_memory_bytes_per_s` and `events` (`Event`), of the step.

    Empty where there is no such file. Raises ValueError as `Benchmark.read` does.
    """
    return list({(run.device, run.case, run.named): run for run in STEPS.runs(roots)}.values())


def of_lane(step: Run, kind: str) -> list[Event]:
    """The events on all lanes of a kind."""
    return [event for event in step.events if lane_kind(event.lane) == kind]


def _unfold(run: Run) -> None:
    """Enter the step's facts as attributes. Raises ValueError for a step that cannot be right."""
    step = run.record.bench.get("step")
    if step is None:
        raise ValueError("its bench has no step")
    run.step_seconds = step["seconds"]
    run.host_memory_bytes_per_s = step["host_memory_bytes_per_s"]
    run.events = tuple(_event(*told) for told in step["events"])
    for name in ("step_seconds", "host_memory_bytes_per_s"):
        if (value := getattr(run, name)) is not None and value <= 0:
            raise ValueError(f"{name} is {value!r}; it must be a number above 0")
    compute = of_lane(run, COMPUTE)
    if not compute:
        raise ValueError(f"lane is never {COMPUTE!r}, and every step computes")
    if (first := min(event.start_s for event in compute)) != 0:
        raise ValueError(f"start_s of the first compute action is {first}; times count from it")
    busy = sum(event.end_s - event.start_s for event in compute)
    if busy > run.step_seconds * (1 + AGREE):
        raise ValueError(f"seconds is {run.step_seconds}, and compute alone takes {busy:.6g} s")


def _event(lane: str, name: str, start: float, end: float, nbytes: int) -> Event:
    told = parse_name(name)
    if lane_kind(lane) not in KNOWN:
        raise ValueError(f"lane of {name} is {lane!r}; lanes are {', '.join(KNOWN)}")
    if end < start:
        raise ValueError(f"{name} ends at {end!r}, before it starts at {start!r}")
    if nbytes < 0 or (nbytes and end == start):
        raise ValueError(f"bytes of {name} are {nbytes!r}, moved in {end - start!r} s")
    unit, micro = told.unit, told.microbatch
    return Event(name, told.kind.value, unit, micro, 0, lane, 0, start, end, nbytes)


STEPS = replace(OFFLOAD, file=f"{LANES}/*.jsonl", check=_unfold)
"""A file a run."""
