"""Runs that goals compare: which one stands for a setting, whether it ended well, and two of one
round.

The goals are rows of ``offload.toml`` and ``servers.toml``; `offload_goals.py` and
`server_goals.py` have their metrics.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.core.record import RESULTS
from workbench.exhibits.hardware.table import preferred
from workbench.exhibits.metrics import Asked, Found, Undecided, by_name
from workbench.figures.verdict import FAILS
from workbench.published.here import in_words


@dataclass(frozen=True)
class Setting:
    """A run by its columns, and by its words in ``no run of ...``."""

    words: str
    where: dict[str, Any]

    def run(self, rows: pd.DataFrame, **more: Any) -> pd.Series | None:
        """The run that stands for it; None where there is none. Gaps equal gaps."""
        for name, value in {**self.where, **more}.items():
            column = rows[name]
            rows = rows[column.isna() if pd.isna(value) else column == value]
        return None if rows.empty else preferred(rows).iloc[0]

    def found(self, rows: pd.DataFrame, **more: Any) -> pd.Series:
        """The run that stands for it; raises Undecided where there is none."""
        run = self.run(rows, **more)
        if run is None:
            raise Undecided(f"no run of {self.words}")
        return run


def trained(run: pd.Series, *, peer: bool = False) -> pd.Series:
    """The run, if it ended well. Running out of memory is an answer, unless it is a peer's; a run
    that was cut short or broke is none."""
    if run["status"] == "ok":
        return run
    why = f"{run['label']} ended with status {run['status']}"
    if run["status"] in RESULTS and not peer:
        raise Undecided(why, "nothing", FAILS)
    raise Undecided(why)


_SAME = (
    "method", "variant", "layers", "hidden", "seq", "dtype", "batch", "clip", "device_cap_gib",
    "host_cap_gib",
)  # fmt: skip


def last_in(rounds: Container[str], every: pd.DataFrame, run: pd.Series) -> pd.Series:
    """The last repetition of a run in any of these rounds; the run itself where there is none."""
    same = repeats(every, run)
    there = same[[name in rounds for name in same["round"]]]
    return run if there.empty else there.iloc[-1]


def repeats(every: pd.DataFrame, run: pd.Series) -> pd.DataFrame:
    """The rows of the same settings, in the order in which they were measured."""
    for name in _SAME if "ranks" not in every else (*_SAME, "ranks"):
        column = every[name]
        every = every[column.isna() if pd.isna(run[name]) else column == run[name]]
    return every


def variant_of(run: pd.Series) -> str:
    """At the end of a reason: which variant ran; empty for the method's own choice."""
    return f"; {in_words(run['variant'])}" if run["variant"] else ""


def runs(count: int) -> str:
    """A number of runs, in words."""
    return "1 run" if count == 1 else f"{count} runs"


def over(asked: Asked) -> Found:
    """Throughput of a run over that of another, in the last round that has both; the other has the
    columns `same` as the first has them."""
    rows, every, claim = asked.rows, asked.every, asked.claim
    ours, theirs = (
        Setting(asked.given[name], claim.where | which)
        for name, which in (("ours", claim.of), ("theirs", claim.over))
    )
    run = ours.found(rows)
    other = theirs.found(rows, **{name: run[name] for name in asked.given.get("same", ())})
    both = set(repeats(every, run)["round"]) & set(repeats(every, other)["round"])
    run, other = (last_in(both, every, each) for each in (run, other))
    speeds = trained(run)["samples_per_second"], trained(other, peer=True)["samples_per_second"]
    why = f"{speeds[0]:.4g} and {speeds[1]:.4g} samples/s{variant_of(run)}"
    return Found(speeds[0] / speeds[1], why, rounds=(run["round"], other["round"]))


def worst(asked: Asked) -> Found:
    """The run that has most of a column, either way, among the claim's rows: how much, or (`mean`)
    how much all have. `why` tells of it by its columns; `without` of rows that lack the column and
    have the one that it `wants`; `none` that all lack it."""
    part, given = asked.part, asked.given
    known = part.dropna(subset=[given["column"]])
    if known.empty:
        raise Undecided(given["none"])
    sizes = known[given["column"]].abs()
    run = known.loc[sizes.idxmax()]
    told = {"runs": runs(len(known)), "count": len(known), "mean": sizes.mean()}
    why = given["why"].format_map({**run, **told, "variant": variant_of(run)})
    lacking = part[part[given["column"]].isna() & part[given.get("wants", "method")].notna()]
    if len(lacking) and "without" in given:
        listed = ", ".join(lacking.get("described", ()))
        why += given["without"].format(listed=listed, runs=runs(len(lacking)))
    return Found(float(sizes.mean() if given.get("mean") else sizes.max()), why)


METRICS = by_name(over, worst)
