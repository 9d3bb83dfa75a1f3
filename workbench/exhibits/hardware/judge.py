"""Runs that goals compare: which one stands for a setting, whether it ended well, and two of one
round.

The goals are rows of ``offload.toml`` and ``servers.toml``; `offload_goals.py` and
`server_goals.py` have their metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.core.record import RESULTS
from workbench.exhibits.hardware.offload_table import mean_deviation, own_ratios, preferred
from workbench.exhibits.metrics import Asked, Found, Undecided
from workbench.figures.verdict import FAILS
from workbench.published.sheet import in_words


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


def over(asked: Asked, ours: Setting, theirs: Setting, *, same: tuple[str, ...] = ()) -> Found:
    """Throughput of a run over that of another, in the last round that has both; the other has the
    columns `same` as the first has them."""
    rows, every = asked.rows, asked.every
    run = ours.found(rows)
    other = theirs.found(rows, **{name: run[name] for name in same})
    both = set(repeats(every, run)["round"]) & set(repeats(every, other)["round"])
    run, other = (last_in(both, every, each) for each in (run, other))
    speeds = trained(run)["samples_per_second"], trained(other, peer=True)["samples_per_second"]
    why = f"{speeds[0]:.4g} and {speeds[1]:.4g} samples/s{variant_of(run)}"
    return Found(speeds[0] / speeds[1], why, rounds=(run["round"], other["round"]))


def mean_error(
    rows: pd.DataFrame,
    column: str,
    own: tuple[str, ...],
    describe: Callable[[pd.Series], str] = lambda run: "",
) -> Found:
    """Mean deviation of predictions over measurements, of the methods `own`."""
    ratios = predictions(rows, column, own)
    worst = (ratios - 1).abs().idxmax()
    off = f"the worst prediction {ratios[worst] - 1:+.1%}{describe(rows.loc[worst])}"
    return Found(mean_deviation(ratios), f"{runs(len(ratios))} on our own runtime, {off}")


def predictions(rows: pd.DataFrame, column: str, own: tuple[str, ...]) -> pd.Series:
    """Predicted over measured, of runs on our own runtime; raises Undecided without any."""
    ratios = own_ratios(rows, column, own)
    if ratios.empty:
        raise Undecided("no run on our own runtime has a prediction")
    return ratios
