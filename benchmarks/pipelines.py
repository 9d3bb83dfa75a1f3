"""Pipelines in every shape of a few GPUs of one machine: predicted, and measured.

    python -m benchmarks.pipelines --out results/published-here/h100 --list
    python -m benchmarks.pipelines --out results/published-here/h100 --only '4x1-*'
    python -m benchmarks.pipelines --out results/published-here/h100 --only '*/varuna'
    python -m benchmarks.pipelines --out FOLDER --size tiny

As benchmarks/offload.py, whose loop it is: a record a run in FOLDER/pipelines.jsonl, as soon as it
ends; what runs is data (pipeline_cases.py). At the end it tells how far predictions were from
measurements, and whether the shape that they choose is the best. With
NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 NCCL's messages go by sockets: give another FOLDER.

A prediction is from profiles that were measured here, a peer's too, once our runs have measured
them. A bubble is the share of a step in which a stage computes no pass; it is known where events
are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import offload
from benchmarks.pipeline_cases import CASES
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures.rows import quotient
from workbench.published.here import GIB, ORDERS, PEERS, Run, latest, replicas_of
from workbench.published.here import PIPELINES as ROWS
from workbench.runs.planning import answer
from workbench.runs.store import Store
from workbench.runs.timeline import load_timeline
from workbench.schedule.action import COMPUTE, lane_kind
from workbench.schedule.schedule import DEVICE
from workbench.schedule.simulate import Event

Error = Callable[[Run], float | None]
ERRORS: dict[str, Error] = {
    "step": lambda run: run.error,
    "peak memory": lambda run: less(quotient(run.predicted_peak_device_gib, run.peak_device_gib)),
    "bubble (of a step)": lambda run: less(run.predicted_bubble, run.bubble),
}
"""Quantity -> the error of a run's prediction of it; None where either value is lacking."""


def less(value: float | None, other: float | None = 1.0) -> float | None:
    """The difference, where both are there."""
    return None if value is None or other is None else value - other


def more(record: RunRecord, store: Store) -> dict[str, Any]:
    """Bubbles of a run of ours; the prediction of a peer's, which makes none itself. What is not
    known is left out."""
    spec, found = RunSpec.from_dict(record.spec), {}
    stages = spec.ranks // replicas_of(vars(spec.options))
    with suppress(ValueError, FileNotFoundError):  # peers keep no events
        timeline = load_timeline(store.folder(record.key))
        found["bubble"] = round(bubble(timeline.events, stages), 4)
        found["predicted_bubble"] = round(bubble(timeline.predicted, stages), 4)
    with suppress(ValueError):  # not planned
        planned = None if record.predicted.get("step_seconds") else answer(spec, store)
        if planned and planned.source == "measured" and planned.plan.fits:
            peak, seconds = planned.plan.peak_bytes[DEVICE], planned.plan.step_seconds
            found["predicted_peak_device_gib"] = round(peak / GIB, 4)
            found["predicted_step_seconds"] = round(seconds, 6)
    return found


def bubble(events: Sequence[Event], stages: int) -> float:
    """Mean over the stages of the share of a step in which none of a stage's passes runs, in all
    steps but the last one, after which a run ends and waits.

    `events` are those of one replica in two steps or more, measured or simulated. A stage's step
    lasts from its first pass to its first pass of the next one. Raises ValueError for fewer steps.
    """
    passes = [event for event in events if lane_kind(event.lane) == COMPUTE]
    steps = sorted({event.step for event in passes})
    if len(steps) < 2:
        raise ValueError("a bubble is known where two steps or more have events")

    def begins(rank: int, step: int) -> float:
        return min(e.start_s for e in passes if (e.rank, e.step) == (rank, step))

    lasted = sum(begins(rank, steps[-1]) - begins(rank, steps[0]) for rank in range(stages))
    busy = sum(event.end_s - event.start_s for event in passes if event.step < steps[-1])
    return max(0.0, 1 - busy / lasted)


def summary(path: Path) -> list[str]:
    """Lines on the rows of a file: errors, what predictions choose, ours beside peers."""
    runs = latest(ROWS.read(path))
    ours, peers = ([run for run in runs if run.method in names] for names in (ORDERS, PEERS))
    lines = []
    for what, error in ERRORS.items():
        for who, some in (("ours", ours), ("peers", peers)):
            lines += _told(f"{what}, {who}", some, error)
    for ranks in sorted({run.ranks for run in ours}):
        there = [run for run in ours if run.ranks == ranks]
        varuna = [run for run in there if run.method == "varuna"]
        for name, among in (("varuna", varuna), ("all orders", there)):
            chosen, best = _fastest(among, "predicted_step_seconds"), _fastest(among)
            if chosen is not None:
                over = chosen.step_seconds_median / best.step_seconds_median - 1
                lines.append(
                    f"choice on {ranks} GPUs, {name}: {chosen.method} {chosen.shape}, {over:.1%} "
                    f"over the best, {best.method} {best.shape}"
                )
    for shape in dict.fromkeys(run.shape for run in runs):
        own, their = (_fastest(r for r in some if r.shape == shape) for some in (ours, peers))
        if own and their:
            times = their.step_seconds_median / own.step_seconds_median
            lines.append(f"{shape}: {own.method} {times:.3f} times as fast as {their.method}")
    return lines


def _told(what: str, runs: Iterable[Run], error: Error) -> list[str]:
    found = [(abs(value), run) for run in runs if (value := error(run)) is not None]
    if not found:
        return []
    mean, (worst, at) = fmean(value for value, _ in found), max(found, key=itemgetter(0))
    worst = f"{worst:.1%} ({at.method} {at.shape})"
    return [f"error of the {what}: mean {mean:.1%}, worst {worst}, {len(found)} runs"]


def _fastest(runs: Iterable[Run], by: str = "step_seconds_median") -> Run | None:
    """The run with the least of a field in seconds, among those that ended and have it."""
    ended = [run for run in runs if None not in (run.step_seconds_median, getattr(run, by))]
    return min(ended, key=attrgetter(by), default=None)


PIPELINES = offload.Suite(
    name="pipelines",
    about=__doc__,
    cases=CASES,
    form=ROWS,
    roof="torch-1f1b",
    more=more,
    summary=summary,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes as of offload.py."""
    return offload.main(argv, PIPELINES)


if __name__ == "__main__":
    sys.exit(main())
