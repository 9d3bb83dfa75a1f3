"""Files that Aceso's artifact (EuroSys'24) writes, with its columns: plans and their costs by
stage, how a search went, and the tables of its results.

Equal plans have equal names, where the artifact's end with the time of day. Each trend begins at 0
s, where the artifact adds up to a second a trial.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.core.files import replacing, write_whole
from workbench.methods.aceso.costs import PlanCost
from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.search import Effort, Found
from workbench.methods.aceso.searches import Outcome, file_name
from workbench.methods.aceso.space import Rated

INFO = ("stage-index", "time", "memory(total)", "memory(normal)", "memory(reserved)")
TREND = ("search_time (s)", "config time (ms)")
MISSING = "-"
"""In place of a value that nobody has."""


def save_plans(plans: Sequence[Rated], folder: Path, best: int = 0) -> list[Path]:
    """A file a plan, with its costs by stage in ``csv``; the first `best` also in
    ``top_configs``."""
    files = []
    for place, (plan, cost) in enumerate(plans):
        name, text = file_name(plan), plan.to_json()
        files.append(folder / name)
        for path in (files[-1], folder / "top_configs" / name)[: 1 + (place < best)]:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        save_info(plan, cost, folder / "csv" / f"info_{name.removesuffix('.json')}.csv")
    return files


def save_info(plan: Plan, cost: PlanCost, path: Path) -> None:
    """Milliseconds of an iteration and MB of each stage."""
    rows = (
        (f"stage-{index}", f"{ms:.2f}", *(f"{mb:.2f}" for mb in (s.memory, s.normal, s.reserved)))
        for index, (s, ms) in enumerate(zip(cost.stages, cost.times, strict=True))
    )
    save_rows(path, INFO, rows)


def save_search(outcome: Outcome, folder: Path, effort: Effort, start: str = "balance") -> None:
    """For each number of stages the plans of all trials, and how many bottlenecks and hops the
    trials that improved took; and the search's seconds."""
    name = outcome.space.subject.name
    for count, found in outcome.found.items():
        stem = f"{name}_{count}stages_init_{start}_{effort.hops}hops.csv"
        rows = ((f"{seconds:.3f}", f"{ms:.4f}") for seconds, ms in found.trend)
        save_rows(folder / "trends" / stem, TREND, rows)
        save_rows(folder / "trends" / f"distribution_{stem}", *distribution(found))
    summary = folder / f"{name}_summary.csv"
    save_rows(summary, ("search_cost",), [(f"{outcome.cpu_seconds:.2f}",)])


def distribution(found: Found) -> tuple[Sequence[Any], list[Sequence[Any]]]:
    """Bottlenecks and hops of each trial that improved, sorted."""

    def row(name: str, counted: Counter[int]) -> Sequence[Any]:
        return name, *sorted(counted.elements())

    return row("num_targets", found.targets), [row("num_hops", found.hops)]


def save_table(path: Path, columns: Sequence[str], rows: Mapping[str, Mapping[str, float]]) -> None:
    """A table of results: a line a series, a column a size."""
    lines = (
        (name, *(f"{values[c]:.2f}" if c in values else MISSING for c in columns))
        for name, values in rows.items()
    )
    save_rows(path, ("size", *columns), lines)


def save_rows(path: Path, head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> None:
    """A CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, part.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
