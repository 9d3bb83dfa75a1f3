"""What this project set out to reach on servers of several GPUs, and what measurements say of it.

Half of the goals are about GPT-2 XL on 4 GPUs of 11 GiB each, the cards of Harmony's (VLDB'22)
server; the others about all rows. A goal whose run is missing stays open and says which is.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from workbench.core.record import RESULTS
from workbench.exhibits.hardware.offload_goals import (
    Goal,
    apart,
    did_not_train,
    judged,
    last_in,
    left_open,
    repeats,
    variant_of,
)
from workbench.exhibits.hardware.offload_table import preferred
from workbench.exhibits.hardware.plan_goals import plan_goals
from workbench.exhibits.hardware.server_table import HARMONY, MODEL, ROOF
from workbench.published.servers import LABELS

XL = {"layers": 48, "hidden": 1600, "seq": 1024, "dtype": "bf16"}
"""GPT-2 XL."""
GPUS, CAP_GIB = 4, 11
PP, DP, ZERO = "harmony-pp", "harmony-dp", "zero-infinity"
OVER_ZERO = ((64, 5.0, 15.0), (16, 4.0, 10.7))
"""Minibatch, how many times as fast as ZeRO-3 with CPU offload, and the samples/s that this project
first measured of it on 4 H200s."""
SHARE_BATCH, SHARE = 64, 0.60
MOST_GPUS, SPEEDUP = 8, 5.0
TIMES_THE_CAPS = 10


def goals(rows: pd.DataFrame, repeated: pd.DataFrame | None = None) -> list[Goal]:
    """All goals against the rows of one device (`server_table.table`); `repeated`: the same with
    every repeated run, so that two methods may be compared in the last round that has both."""
    xl = _of_xl(rows)
    every = xl if repeated is None else _of_xl(repeated)
    large, small = OVER_ZERO
    return [
        _over_zero(xl, *large),
        _share(xl),
        _over_zero(xl, *small),
        *(_over_dp(xl, every, batch) for batch, *_ in OVER_ZERO),
        *plan_goals(rows),
        _scaling(rows),
        _outgrown(rows, (1, 2, 4)),
        _outgrown(rows, (MOST_GPUS,)),
    ]


def _of_xl(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows[list(XL)] == pd.Series(XL)).all(axis=1)]


# -- GPT-2 XL -------------------------------------------------------------------------------------


def _over_zero(rows: pd.DataFrame, batch: int, wanted: float, reference: float) -> Goal:
    goal = (
        f"{_setting(batch)}: {LABELS[PP]} at least {wanted:g} times the first reference of ZeRO-3 "
        f"with CPU offload, {reference} samples/s"
    )
    run = _run(rows, PP, batch)
    if run is None:
        return left_open(goal, _no_run(PP, batch))
    if run["status"] != "ok":
        return did_not_train(goal, run)
    speed = run["samples_per_second"]
    why = f"{speed:.4g} samples/s; {_beside_zero(rows, run)}{variant_of(run)}"
    ratio = speed / reference
    return judged(goal, f"{ratio:.2f} times", ratio >= wanted, why)


def _beside_zero(rows: pd.DataFrame, run: pd.Series) -> str:
    """The same over what this project measured of ZeRO-3, which decides nothing."""
    theirs = _run(rows, ZERO, run["batch"], beside=run)
    if theirs is None:
        return f"of this project's own measurements there is {_no_run(ZERO, run['batch'])}"
    if theirs["status"] != "ok":
        return f"this project's own {theirs['label']} ended with status {theirs['status']}"
    speed = theirs["samples_per_second"]
    return (
        f"{run['samples_per_second'] / speed:.2f} times this project's own {theirs['label']}, "
        f"{speed:.4g} samples/s"
    )


def _share(rows: pd.DataFrame) -> Goal:
    goal = (
        f"{_setting(SHARE_BATCH)}: {LABELS[PP]} at least {SHARE:.0%} of data parallelism without a "
        f"cap on {GPUS} GPUs"
    )
    run = _run(rows, PP, SHARE_BATCH)
    if run is None:
        return left_open(goal, _no_run(PP, SHARE_BATCH))
    if run["status"] != "ok":
        return did_not_train(goal, run)
    if pd.isna(run["share"]):
        words = f"no run of {LABELS[ROOF]} without a cap on {GPUS} GPUs at minibatch {SHARE_BATCH}"
        return left_open(
            goal, f"{words}; {run['samples_per_second']:.4g} samples/s of {LABELS[PP]}"
        )
    why = (
        f"{run['samples_per_second']:.4g} of {run['roof']:.4g} samples/s of {run['roof_label']}"
        f"{variant_of(run)}"
    )
    if run["round"] != run["roof_round"]:
        return apart(goal, f"{run['share']:.1%}", why, run["round"], run["roof_round"])
    return judged(goal, f"{run['share']:.1%}", run["share"] >= SHARE, why)


def _over_dp(rows: pd.DataFrame, every: pd.DataFrame, batch: int) -> Goal:
    goal = f"{_setting(batch)}: {LABELS[PP]} at or above {LABELS[DP]}"
    run = _run(rows, PP, batch)
    if run is None:
        return left_open(goal, _no_run(PP, batch))
    other = _run(rows, DP, batch, beside=run)
    if other is None:
        return left_open(goal, _no_run(DP, batch))
    both = set(repeats(every, run)["round"]) & set(repeats(every, other)["round"])
    run, other = (last_in(both, every, each) for each in (run, other))
    if run["status"] != "ok":
        return did_not_train(goal, run)
    if other["status"] != "ok":
        return left_open(goal, f"{other['label']} ended with status {other['status']}")
    speeds = run["samples_per_second"], other["samples_per_second"]
    why = f"{speeds[0]:.4g} and {speeds[1]:.4g} samples/s{variant_of(run)}"
    ratio = f"{speeds[0] / speeds[1]:.2f} times"
    if run["round"] != other["round"]:
        return apart(goal, ratio, why, run["round"], other["round"])
    return judged(goal, ratio, speeds[0] >= speeds[1], why)


def missing(rows: pd.DataFrame) -> list[str]:
    """Minibatches of GPT-2 XL that lack runs the goals are about, and whose."""
    xl, out = _of_xl(rows), []
    for batch, *_ in OVER_ZERO:
        at = xl[(xl["batch"] == batch) & (xl["ranks"] == GPUS)]
        free = at[at["device_cap_gib"].isna() & (at["method"] == ROOF)]
        absent = [LABELS[name] for name in (PP, DP, ZERO) if _run(xl, name, batch) is None]
        absent += [f"{LABELS[ROOF]} without a cap"] if free.empty else []
        if absent:
            out.append(f"{_setting(batch)} ({', '.join(absent)})")
    return out


def _setting(batch: int) -> str:
    return f"GPT-2 XL on {GPUS} GPUs of {CAP_GIB} GiB, minibatch {batch}"


def _no_run(method: str, batch: int) -> str:
    return f"no run of {LABELS[method]} on {GPUS} GPUs of {CAP_GIB} GiB at minibatch {batch}"


def _run(
    rows: pd.DataFrame, method: str, batch: int, *, beside: pd.Series | None = None
) -> pd.Series | None:
    """The run that stands for a method under the cap, clipped as the one `beside` it; None where
    there is none."""
    found = rows[
        (rows["method"] == method)
        & (rows["ranks"] == GPUS)
        & (rows["batch"] == batch)
        & (rows["device_cap_gib"] == CAP_GIB)
    ]
    if beside is not None:
        clip = beside["clip"]
        found = found[found["clip"].isna() if pd.isna(clip) else found["clip"] == clip]
    return None if found.empty else preferred(found).iloc[0]


# -- more GPUs, larger models ----------------------------------------------------------------------


def _scaling(rows: pd.DataFrame) -> Goal:
    """Of the models that ran on one GPU and on most, the largest; then the largest minibatch."""
    goal = f"{LABELS[PP]} on {MOST_GPUS} GPUs at least {SPEEDUP:g} times as fast as on one"
    own = rows[rows["method"].eq(PP) & rows["ranks"].le(MOST_GPUS) & rows["status"].isin(RESULTS)]
    series = [
        (part["ranks"].max(), part["parameters"].fillna(0).max(), batch, part)
        for (batch, *_), part in own.groupby(
            ["batch", "clip", "device_cap_gib", *MODEL], dropna=False, sort=False
        )
        if part["ranks"].min() == 1 < part["ranks"].max()
    ]
    if not series:
        return left_open(
            goal, f"no model ran in {LABELS[PP]} on one GPU and on more, at one minibatch"
        )
    most, *_, part = max(series, key=lambda each: each[:3])
    one, many = (preferred(part[part["ranks"] == ranks]).iloc[0] for ranks in (1, most))
    for run in (one, many):
        if run["status"] != "ok":
            return did_not_train(goal, run)
    ratio = many["samples_per_second"] / one["samples_per_second"]
    if one["round"] != many["round"]:
        told = f"{many['samples_per_second']:.4g} and {one['samples_per_second']:.4g} samples/s"
        return apart(goal, f"{ratio:.2f} times", told, many["round"], one["round"])
    told = (
        f"{many['samples_per_second']:.4g} and {one['samples_per_second']:.4g} samples/s, "
        f"{_sized(many)}, minibatch {many['batch']}{variant_of(many)}"
    )
    if most < MOST_GPUS:
        return left_open(goal, f"{most} GPUs are {ratio:.1f} times 1: {told}")
    return judged(goal, f"{ratio:.2f} times", ratio >= SPEEDUP, told)


def _outgrown(rows: pd.DataFrame, wanted: tuple[int, ...]) -> Goal:
    goal = (
        f"a model whose states are {TIMES_THE_CAPS} times what its GPUs may hold trains on "
        f"{_listed(wanted)} GPU{'s' if wanted != (1,) else ''}"
    )
    # A run that failed early may not tell its parameters; others of its model do.
    states = rows.groupby(list(MODEL))["states_gib"].transform("max")
    times = states / (rows["ranks"] * rows["device_cap_gib"])
    known = rows.assign(times=times, states_gib=states)
    fit = known[rows["method"].isin(HARMONY) & rows["ranks"].isin(wanted)]
    fit = fit[fit["times"] >= TIMES_THE_CAPS]
    if fit.empty:
        return left_open(goal, f"no run of Harmony with such a model on {_listed(wanted)} GPUs")
    parts = [part for _, part in fit.groupby([*MODEL, "device_cap_gib"])]
    part = max(parts, key=lambda p: (len(_trained(p)), p["states_gib"].max()))
    done = _trained(part)
    absent = [ranks for ranks in wanted if ranks not in done]
    told = _sized(part.iloc[0])
    failed = part[part["ranks"].isin(absent) & part["status"].isin(RESULTS)]
    if not absent:
        ok = part[part["status"] == "ok"]
        return judged(goal, f"{ok['times'].min():.1f} times", True, told)
    on = f"trained on {_listed(done)} GPUs" if done else "trained on no number of them"
    if len(failed):
        run = failed.iloc[0]
        why = f"{run['label']} on {run['ranks']} GPUs ended with status {run['status']}"
        return judged(goal, on, False, f"{told}; {why}")
    return left_open(goal, f"{told}: {on}, no run on {_listed(absent)} came to an end")


def _trained(rows: pd.DataFrame) -> list[int]:
    """Numbers of GPUs."""
    return sorted(set(rows[rows["status"] == "ok"]["ranks"]))


def _sized(run: pd.Series) -> str:
    size = "" if pd.isna(run["parameters"]) else f"{run['parameters'] / 1e9:.1f} B parameters, "
    cap = run["device_cap_gib"]
    return f"{size}{run['layers']} layers, {'no cap' if pd.isna(cap) else f'{cap:g} GiB a GPU'}"


def _listed(numbers: Iterable[int]) -> str:
    """``1, 2 and 4``."""
    *first, last = (str(number) for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last
