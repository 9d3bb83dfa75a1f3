"""What this project set out to reach on an H200, and whether the measurements say so.

A goal is judged by the runs of one setting only: hidden size 2048, sequence 1024, bf16 weights with
fp32 AdamW, 32 GiB of device memory. A goal whose run is missing stays open and says which is.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import pandas as pd

from workbench.core.record import RESULTS
from workbench.exhibits.hardware.offload_table import PLAIN, mean_deviation, own_ratios, preferred
from workbench.figures.verdict import FAILS, HOLDS, MISSING

DTYPE, HIDDEN, SEQ = "bf16", 2048, 1024
CAP_GIB, HOST_GIB = 32, 90
SHARES = ((32, 4, 0.99), (78, 4, 0.80), (78, 16, 0.95), (100, 4, 0.60), (100, 16, 0.90))
"""Layers, batch, and the share of plain training's throughput to keep."""
OVER_ZERO_OFFLOAD = 4.5
CLIP_COSTS = 0.05
PREDICTED_WITHIN = 0.05
AUTO_WITHIN, FEWEST_PINNED, FEWEST_WINDOWS = 0.03, 4, 2
HOST_BYTES = 12.5
FLAT_WITHIN, FEWEST_DEPTHS = 0.01, 3
LARGEST, LARGEST_WITH_DISK = 9e9, 14e9


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One row of the table of goals."""

    goal: str
    measured: str
    """With its unit; empty where nothing was."""
    verdict: str
    why: str


def goals(rows: pd.DataFrame, repeated: pd.DataFrame | None = None) -> list[Goal]:
    """All goals against the rows of one device (`here_table.table`); `repeated`: the same with
    every repeated run, so that two methods may be compared in the last round that has both."""
    rows = of_setting(rows)
    every = rows if repeated is None else of_setting(repeated)
    shares = [_share(rows, every, *goal) for goal in SHARES]
    return [
        *shares[:3],
        _over_zero_offload(rows, every),
        *shares[3:],
        _clipping(rows),
        _predicted(rows, "step_ratio", "step time"),
        _predicted(rows, "peak_ratio", "device peak"),
        _auto(rows),
        _host_bytes(rows),
        _flat(rows),
        _largest(rows, "stronghold", LARGEST, "the largest model"),
        _largest(rows, "stronghold-disk", LARGEST_WITH_DISK, "the largest model with a disk"),
    ]


def of_setting(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that goals are about."""
    return rows[(rows["dtype"] == DTYPE) & (rows["hidden"] == HIDDEN) & (rows["seq"] == SEQ)]


def as_table(found: list[Goal]) -> pd.DataFrame:
    """The goals as people read them."""
    data = [(g.goal, g.measured, g.verdict, g.why) for g in found]
    return pd.DataFrame(data, columns=["goal", "measured", "verdict", "why"])


def _share(rows: pd.DataFrame, every: pd.DataFrame, layers: int, batch: int, wanted: float) -> Goal:
    goal = f"{layers} layers, batch {batch}: at least {wanted:.0%} of plain training at its best"
    run = _run(rows, "stronghold", layers, batch)
    if run is not None:
        beside = every[every["round"] == every["plain_round"]]
        run = last_in(set(repeats(beside, run)["round"]), every, run)
    if run is None or pd.isna(run["plain"]):
        absent = "stronghold" if run is None else PLAIN
        return left_open(goal, f"no run of {absent} with {layers} layers at batch {batch}")
    if run["status"] != "ok":
        return did_not_train(goal, run)
    why = (
        f"{run['samples_per_second']:.4g} of {run['plain']:.4g} samples/s of {run['plain_label']}"
        f"{variant_of(run)}{_of_other_plain(every, run)}"
    )
    if run["plain_round"] != run["round"]:
        return apart(goal, f"{run['share']:.1%}", why, run["round"], run["plain_round"])
    return judged(goal, f"{run['share']:.1%}", run["share"] >= wanted, why)


def _of_other_plain(rows: pd.DataFrame, run: pd.Series) -> str:
    """The shares of slower variants of plain training, which decide nothing."""
    plain = rows[
        (rows["method"] == PLAIN)
        & (rows["layers"] == run["layers"])
        & (rows["batch"] == run["batch"])
        & (rows["clip"].isna() == pd.isna(run["clip"]))
        & rows["device_cap_gib"].isna()
        & (rows["status"] == "ok")
        & (rows["label"] != run["plain_label"])
        & (rows["round"] == run["plain_round"])
    ]
    told = [
        f"; {run['samples_per_second'] / other.samples_per_second:.1%} of {other.label}"
        for other in plain.itertuples()
    ]
    return "".join(told)


def _over_zero_offload(rows: pd.DataFrame, every: pd.DataFrame) -> Goal:
    goal = f"78 layers, batch 4: at least {OVER_ZERO_OFFLOAD} times ZeRO-Offload"
    ours, theirs = (_run(rows, method, 78, 4) for method in ("stronghold", "zero-offload"))
    for name, run in (("stronghold", ours), ("zero-offload", theirs)):
        if run is None:
            return left_open(goal, f"no run of {name} with 78 layers at batch 4")
    rounds = set(repeats(every, ours)["round"]) & set(repeats(every, theirs)["round"])
    ours, theirs = (last_in(rounds, every, run) for run in (ours, theirs))
    if ours["status"] != "ok":
        return did_not_train(goal, ours)
    if theirs["status"] != "ok":
        return left_open(goal, f"{theirs['label']} ended with status {theirs['status']}")
    speeds = ours["samples_per_second"], theirs["samples_per_second"]
    ratio = speeds[0] / speeds[1]
    why = f"{speeds[0]:.4g} and {speeds[1]:.4g} samples/s{variant_of(ours)}"
    if ours["round"] != theirs["round"]:
        return apart(goal, f"{ratio:.2f} times", why, ours["round"], theirs["round"])
    return judged(goal, f"{ratio:.2f} times", ratio >= OVER_ZERO_OFFLOAD, why)


def _clipping(rows: pd.DataFrame) -> Goal:
    goal = f"clipping changes the throughput by at most {CLIP_COSTS:.0%}"
    same = ["method", "variant", "layers", "batch", "device_cap_gib", "host_cap_gib", "round"]
    own = rows[(rows["method"] == "stronghold") & (rows["status"] == "ok")].copy()
    on, off = own[own["clip"].notna()], own[own["clip"].isna()]
    # Gaps are no values to merge on: a cap that is not there is one like any other.
    pairs = on.fillna({"device_cap_gib": -1, "host_cap_gib": -1}).merge(
        off.fillna({"device_cap_gib": -1, "host_cap_gib": -1}), on=same, suffixes=("", "_off")
    )
    if pairs.empty:
        return left_open(goal, "no two runs of one round that differ in clipping only")
    change = pairs["samples_per_second"] / pairs["samples_per_second_off"] - 1
    worst = pairs.loc[change.abs().idxmax()]
    value = float(change.abs().max())
    why = (
        f"the worst of {len(pairs)} pairs, {worst['layers']} layers at batch {worst['batch']}: "
        f"{worst['samples_per_second']:.4g} with, {worst['samples_per_second_off']:.4g} without"
    )
    return judged(goal, f"{value:.1%}", value <= CLIP_COSTS, why)


def _predicted(rows: pd.DataFrame, column: str, words: str) -> Goal:
    goal = f"{words} predicted within {PREDICTED_WITHIN:.0%} on the mean"
    ratios = own_ratios(rows, column)
    value = mean_deviation(ratios)
    if value is None:
        return left_open(goal, "no run on our own runtime has a prediction")
    worst = ratios.loc[(ratios - 1).abs().idxmax()] - 1
    why = f"{len(ratios)} runs on our own runtime, the worst prediction {worst:+.1%}"
    return judged(goal, f"{value:.1%}", value <= PREDICTED_WITHIN, why)


def _host_bytes(rows: pd.DataFrame) -> Goal:
    goal = f"at most {HOST_BYTES} bytes of host memory per parameter"
    trained = rows[(rows["method"] == "stronghold") & (rows["status"] == "ok")]
    own, pinned = trained[~trained["pinned"]], trained[trained["pinned"]]
    values, others = (part["host_bytes_per_parameter"].dropna() for part in (own, pinned))
    if values.empty:
        return left_open(goal, "no run of stronghold tells its host memory")
    worst = own.loc[values.idxmax()]
    why = (
        f"the most of {len(values)} planned runs: {worst['host_gib']:.4g} GiB with "
        f"{worst['layers']} layers at batch {worst['batch']}{variant_of(worst)}"
    )
    if len(others) and others.max() > values.max():
        why += (
            f"; where all is pinned to visit, and gradients wait for their norm, {others.max():.3g}"
        )
    return judged(goal, f"{values.max():.2f} bytes", values.max() <= HOST_BYTES, why)


def _auto(rows: pd.DataFrame) -> Goal:
    """The planner's choice beside runs of the same setting that pin others, of one round: machines
    of one kind differ by more than the goal allows, and so do states of the code."""
    goal = f"the planner's choice is within {AUTO_WITHIN:.0%} of the best of a sweep"
    own = rows[(rows["method"] == "stronghold") & (rows["status"] == "ok")]
    same = ["layers", "batch", "clip", "device_cap_gib", "host_cap_gib", "round"]
    sweeps = [
        (part, preferred(part[~part["pinned"]]).iloc[0])
        for _, part in own.groupby(same, dropna=False)
        if part["pinned"].sum() >= FEWEST_PINNED
        and part["variant"].str.contains(r"\bw\d").sum() >= FEWEST_WINDOWS
        and not part["pinned"].all()
    ]
    if not sweeps:
        return left_open(
            goal,
            f"no planned run stands beside {FEWEST_PINNED} of one round with other placements, "
            f"{FEWEST_WINDOWS} of them with other windows",
        )
    part, chosen = max(sweeps, key=lambda sweep: len(sweep[0]))
    best = part.loc[part["samples_per_second"].idxmax()]
    behind = 1 - chosen["samples_per_second"] / best["samples_per_second"]
    why = (
        f"{chosen['samples_per_second']:.4g} samples/s, {len(part) - 1} other placements at most "
        f"{best['samples_per_second']:.4g}{variant_of(best)}"
    )
    return judged(goal, f"{behind:.1%} behind", behind <= AUTO_WITHIN, why)


def _flat(rows: pd.DataFrame) -> Goal:
    goal = "device memory does not grow with depth (window fixed, activations on the host)"
    deep = rows[(rows["method"] == "stronghold") & rows["variant"].str.contains(r"\bstash\b")]
    deep = deep[deep["status"] == "ok"].drop_duplicates("layers")
    if len(deep) < FEWEST_DEPTHS:
        return left_open(goal, f"fewer than {FEWEST_DEPTHS} depths of such runs")
    peaks, planned = deep["peak_device_gib"], deep["predicted_peak_device_gib"]
    # How full the proven peak gets depends on how copies fall; that it does not grow is the goal.
    grown = float(planned.max() / planned.min() - 1)
    above = float((peaks / planned).max() - 1)
    why = (
        f"{planned.max():.4g} GiB planned and {peaks.min():.4g} to {peaks.max():.4g} GiB measured "
    )
    why += f"from {deep['layers'].min()} to {deep['layers'].max()} layers{variant_of(deep.iloc[0])}"
    holds = grown <= FLAT_WITHIN and above <= PREDICTED_WITHIN
    return judged(goal, f"{grown:.1%}", holds, why)


def _largest(rows: pd.DataFrame, method: str, wanted: float, words: str) -> Goal:
    budget = f"{CAP_GIB} GiB of device and {HOST_GIB} GiB of host memory"
    goal = f"{words} within {budget}: at least {wanted / 1e9:.0f} billion parameters"
    fit = rows[
        (rows["method"] == method)
        & (rows["status"] == "ok")
        & (rows["device_cap_gib"] <= CAP_GIB)
        & (rows["host_cap_gib"] <= HOST_GIB)
    ]
    if fit.empty:
        return left_open(goal, f"no run of {method} within both budgets")
    best = fit.loc[fit["parameters"].idxmax()]
    disk = ""
    if best["disk_gib"] > 0:
        disk = f", {best['disk_gib']:.4g} GiB on the disk"
    if best["disk_step_gb"] > 0:
        disk += f", of which {best['disk_step_gb']:.3g} GB are read and written in a step"
    return judged(
        goal,
        f"{best['parameters'] / 1e9:.2f} billion",
        best["parameters"] >= wanted,
        f"{best['layers']} layers at batch {best['batch']}, {best['step_seconds']:.3g} s a step"
        f"{disk}{variant_of(best)}",
    )


def _run(rows: pd.DataFrame, method: str, layers: int, batch: int) -> pd.Series | None:
    """The run that stands for a method under the cap; None where there is none."""
    found = rows[
        (rows["method"] == method)
        & (rows["layers"] == layers)
        & (rows["batch"] == batch)
        & (rows["device_cap_gib"] == CAP_GIB)
    ]
    return None if found.empty else preferred(found).iloc[0]


_SAME = ("method", "variant", "layers", "batch", "clip", "device_cap_gib", "host_cap_gib")


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
    return f"; variant {run['variant']}" if run["variant"] else ""


def judged(goal: str, measured: str, holds: bool, why: str) -> Goal:
    """A goal that the rows decide."""
    return Goal(goal=goal, measured=measured, verdict=HOLDS if holds else FAILS, why=why)


def did_not_train(goal: str, run: pd.Series) -> Goal:
    """Running out of memory is an answer; a run that was cut short or broke is none."""
    why = f"{run['label']} ended with status {run['status']}"
    return judged(goal, "nothing", False, why) if run["status"] in RESULTS else left_open(goal, why)


def apart(goal: str, measured: str, why: str, ours: str, theirs: str) -> Goal:
    """A goal whose two runs are of different rounds, which is no comparison."""
    why = f"{why}; to be measured in one round: now {ours} beside {theirs}"
    return Goal(goal=goal, measured=measured, verdict=MISSING, why=why)


def left_open(goal: str, why: str) -> Goal:
    """A goal that the rows do not decide, for a reason."""
    return Goal(goal=goal, measured="", verdict=MISSING, why=why)
