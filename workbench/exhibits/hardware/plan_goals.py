"""What this project set out to reach of plans on servers of several GPUs: what they say of a run is
what the run did."""

from __future__ import annotations

import math

import pandas as pd

from workbench.exhibits.hardware.offload_goals import Goal, judged, left_open, variant_of
from workbench.exhibits.hardware.offload_table import mean_deviation, own_ratios
from workbench.exhibits.hardware.server_table import HARMONY, OWN_RUNTIME

COUNTED_WITHIN = 0.01
STEP_WITHIN, PEAK_WITHIN = 0.10, 0.05


def plan_goals(rows: pd.DataFrame) -> list[Goal]:
    """Those goals against the rows of one device (`server_table.table`)."""
    return [_counted(rows), _step_times(rows), _peaks(rows), _caps(rows)]


def _counted(rows: pd.DataFrame) -> Goal:
    goal = f"bytes over the host links, counted, within {COUNTED_WITHIN:.0%} of the plan's"
    own = rows[rows["method"].isin(HARMONY) & (rows["status"] == "ok")]
    known = own.dropna(subset=["moved", "planned_moved"])
    if known.empty:
        return left_open(goal, "no run of Harmony has both")
    off = {
        i: max(_off(run[f"{way}_gib"], run[f"planned_{way}_gib"]) for way in ("load", "store"))
        for i, run in known.iterrows()
    }
    worst = known.loc[max(off, key=off.__getitem__)]
    value = max(off.values())
    why = (
        f"{_runs(len(known))} of Harmony, the worst {_described(worst)}: {worst['moved']:.4g} |W| "
        f"counted, {worst['planned_moved']:.4g} |W| planned{variant_of(worst)}"
    )
    without = len(own) - len(known)
    why += f"; {_runs(without)} more without both" if without else ""
    return judged(goal, f"{value:.2%}", value <= COUNTED_WITHIN, why)


def _off(counted: float, planned: float) -> float:
    """How far a count is from its plan, as a share of it."""
    if planned == 0:
        return 0.0 if counted == 0 else math.inf
    return abs(counted / planned - 1)


def _step_times(rows: pd.DataFrame) -> Goal:
    goal = f"step time predicted within {STEP_WITHIN:.0%} on the mean"
    ratios = own_ratios(rows, "step_ratio", OWN_RUNTIME)
    value = mean_deviation(ratios)
    if value is None:
        return left_open(goal, "no run on our own runtime has a prediction")
    worst = (ratios - 1).abs().idxmax()
    why = (
        f"{_runs(len(ratios))} on our own runtime, the worst prediction {ratios[worst] - 1:+.1%}, "
        f"{_described(rows.loc[worst])}"
    )
    return judged(goal, f"{value:.1%}", value <= STEP_WITHIN, why)


def _peaks(rows: pd.DataFrame) -> Goal:
    goal = f"every device peak within {PEAK_WITHIN:.0%} of its prediction"
    ratios = own_ratios(rows, "peak_ratio", OWN_RUNTIME)
    own = rows[rows["method"].isin(OWN_RUNTIME) & (rows["status"] == "ok")]
    planned = own[own["predicted_peak_device_gib"].notna()]
    if ratios.empty:
        return left_open(goal, "no run on our own runtime has a prediction")
    far = (ratios - 1).abs()
    worst = ratios.loc[far.idxmax()] - 1
    why = (
        f"{_runs(len(ratios))} on our own runtime, {far.mean():.1%} off on the mean; the worst "
        f"prediction {worst:+.1%}, {_described(rows.loc[far.idxmax()])}"
        f"{_without_peak(planned)}"
    )
    return judged(goal, f"{far.max():.1%} at most", far.max() <= PEAK_WITHIN, why)


def _caps(rows: pd.DataFrame) -> Goal:
    goal = "no device peak above its cap"
    own = rows[rows["method"].isin(OWN_RUNTIME) & (rows["status"] == "ok")]
    used = (own["peak_device_gib"] / own["device_cap_gib"]).dropna()
    if used.empty:
        return left_open(goal, "no run on our own runtime under a cap tells its peak")
    worst = own.loc[used.idxmax()]
    why = (
        f"{_runs(len(used))} on our own runtime, the fullest {worst['peak_device_gib']:.4g} of "
        f"{worst['device_cap_gib']:g} GiB, {_described(worst)}"
        f"{_without_peak(own[own['device_cap_gib'].notna()])}"
    )
    return judged(goal, f"{used.max():.1%} of the cap at most", used.max() <= 1, why)


def _without_peak(rows: pd.DataFrame) -> str:
    """At the end of a reason: whose peak was not measured, of which nothing is said."""
    told = [_described(run) for _, run in rows[rows["peak_device_gib"].isna()].iterrows()]
    return f"; not measured: {', '.join(told)}" if told else ""


def _described(run: pd.Series) -> str:
    gpus = "GPU" if run["ranks"] == 1 else "GPUs"
    return (
        f"{run['label']} with {run['layers']} layers on {run['ranks']} {gpus} at minibatch "
        f"{run['batch']}"
    )


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
