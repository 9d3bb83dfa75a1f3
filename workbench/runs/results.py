"""Held-out figures of many runs over their seeds, as the original FTPipe's `get_results` tells
them: by algorithm, batch and accumulation.

An algorithm is a method with those of its options that change what is learnt. Runs that differ in
anything else but their seed, such as in their model or learning rate, are groups of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from workbench.core.aligned import aligned
from workbench.core.options import options_of
from workbench.core.record import RunRecord

FIGURES = {"squad": ("exact", "f1"), "lm": ("loss", "perplexity"), "cv": ("loss", "accuracy")}
"""Task -> figures of its evaluations."""
APART = ("seed", "save_every", "start_from", "device_memory", "host_memory", "disk_memory")
"""Fields that runs of one group may differ in."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One figure of a group of runs, after their last step."""

    algorithm: str
    batch: int
    """Samples an update."""
    accumulated: int
    """Micro-batches an update."""
    figure: str
    runs: int
    mean: float
    spread: float | None
    """Sample standard deviation over seeds; None of one run."""
    least: float
    most: float
    seeds: tuple[int, ...]


def results(records: Iterable[RunRecord], task: str) -> list[Result]:
    """A row a group and figure. Runs without evaluations, and such as did not end well, are left
    out. Raises ValueError for a task that is none."""
    if task not in FIGURES:
        raise ValueError(f"the task is {task!r}; it must be {', '.join(FIGURES)}")
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        ended = record.status == "ok" and record.evaluations
        if ended and FIGURES[task][-1] in record.evaluations[-1]:
            alike = {name: value for name, value in record.spec.items() if name not in APART}
            groups.setdefault(json.dumps(alike, sort_keys=True), []).append(record)
    found = []
    for group in groups.values():
        spec = group[0].spec
        group = sorted(group, key=lambda record: record.spec["seed"])
        for figure in FIGURES[task]:
            values = [float(record.evaluations[-1][figure]) for record in group]
            found.append(
                Result(
                    algorithm=algorithm(group[0]), batch=spec["batch"],
                    accumulated=group[0].parts, figure=figure, runs=len(values),
                    mean=fmean(values), spread=stdev(values) if len(values) > 1 else None,
                    least=min(values), most=max(values),
                    seeds=tuple(record.spec["seed"] for record in group),
                )
            )  # fmt: skip
    return sorted(found, key=lambda one: (one.algorithm, one.batch, one.accumulated, one.figure))


def algorithm(record: RunRecord) -> str:
    """A method, and options of its own that are not at their default."""
    usual = vars(options_of(record.method)())
    given = record.spec.get("options") or {}
    told = [
        name if value is True else f"{name} {value}"
        for name, value in given.items()
        if name in usual and value != usual[name]
    ]
    return ", ".join([record.method, *told])


def table(rows: Sequence[Result]) -> list[str]:
    """Lines for people."""
    shown = [("algorithm", "batch", "micro-batches", "figure", "runs", "mean", "spread", "least",
              "most")]  # fmt: skip
    for row in rows:
        spread = "" if row.spread is None else f"{row.spread:.4g}"
        numbers = (f"{row.mean:.5g}", spread, f"{row.least:.5g}", f"{row.most:.5g}")
        shown.append((row.algorithm, str(row.batch), str(row.accumulated), row.figure,
                      str(row.runs), *numbers))  # fmt: skip
    return aligned(shown)
