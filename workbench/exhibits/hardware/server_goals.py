"""Metrics of this project's goals on servers of several GPUs, which are rows of ``servers.toml``.

Half of the goals are about GPT-2 XL on 4 GPUs of 11 GiB each, the cards of Harmony's (VLDB'22)
server; others ask of all rows that plans say of a run what the run did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from workbench.core.record import RESULTS
from workbench.exhibits.claim_rows import stated
from workbench.exhibits.hardware import judge
from workbench.exhibits.hardware.judge import Setting
from workbench.exhibits.hardware.table import HARMONY, MODEL, ROOF, preferred
from workbench.exhibits.metrics import Asked, Found, Undecided, by_name
from workbench.exhibits.words import read_claims
from workbench.figures.rows import pick
from workbench.figures.verdict import FAILS
from workbench.published.here import SERVERS

LABELS = SERVERS.labels
XL = {"layers": 48, "hidden": 1600, "seq": 1024, "dtype": "bf16"}
"""GPT-2 XL."""
GPUS, CAP_GIB = 4, 11
PP, DP, ZERO = "harmony-pp", "harmony-dp", "zero-infinity"
STEP_WITHIN, PEAK_WITHIN = (
    goal.most
    for goal in stated(read_claims(Path(__file__).with_name("servers.toml")))
    if goal.given.get("column") in ("step_error", "peak_error")
)
BATCHES = (64, 16)


def told(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with what they say of plans and caps, and each run in words."""
    known = rows[["moved", "planned_moved"]].notna().all(axis=1)
    ways = [(rows[f"{way}_gib"], rows[f"planned_{way}_gib"]) for way in ("load", "store")]
    off = [max(map(_off, (a, c), (b, d))) for a, b, c, d in zip(*ways[0], *ways[1], strict=True)]
    return rows.assign(
        described=[_described(run) for _, run in rows.iterrows()],
        moved_off=pd.Series(off, index=rows.index, dtype=float).where(known),
        step_error=rows["step_ratio"] - 1,
        peak_error=rows["peak_ratio"] - 1,
        used=rows["peak_device_gib"] / rows["device_cap_gib"],
    )


def _off(counted: float, planned: float) -> float:
    """How far a count is from its plan, as a share of it."""
    if planned == 0:
        return 0.0 if counted == 0 else math.inf
    return abs(counted / planned - 1)


def _described(run: pd.Series) -> str:
    gpus = "GPU" if run["ranks"] == 1 else "GPUs"
    return (
        f"{run['label']} with {run['layers']} layers on {run['ranks']} {gpus} at minibatch "
        f"{run['batch']}"
    )


# -- GPT-2 XL -------------------------------------------------------------------------------------


def _at(method: str, batch: int) -> Setting:
    words = f"{LABELS[method]} on {GPUS} GPUs of {CAP_GIB} GiB at minibatch {batch}"
    where = {"method": method, "batch": batch, "ranks": GPUS, "device_cap_gib": CAP_GIB}
    return Setting(words, {**XL, **where})


def over_zero(asked: Asked) -> Found:
    """Over the first reference; ZeRO-3 as this project measured it stands beside and decides
    nothing."""
    batch, rows = asked.given["batch"], asked.rows
    run = judge.trained(_at(PP, batch).found(rows))
    speed, zero = run["samples_per_second"], _at(ZERO, batch)
    theirs = zero.run(rows, clip=run["clip"])
    if theirs is None:
        told = f"of this project's own measurements there is no run of {zero.words}"
    elif theirs["status"] != "ok":
        told = f"this project's own {theirs['label']} ended with status {theirs['status']}"
    else:
        other = theirs["samples_per_second"]
        told = (
            f"{speed / other:.2f} times this project's own {theirs['label']}, {other:.4g} samples/s"
        )
    why = f"{speed:.4g} samples/s; {told}{judge.variant_of(run)}"
    return Found(speed / asked.given["reference"], why)


def share(asked: Asked) -> Found:
    """Throughput over that of data parallelism with all of the GPUs' memory."""
    batch = asked.given["batch"]
    run = judge.trained(_at(PP, batch).found(asked.rows))
    speed = f"{run['samples_per_second']:.4g}"
    if pd.isna(run["share"]):
        raise Undecided(
            f"no run of {LABELS[ROOF]} without a cap on {GPUS} GPUs at minibatch {batch}; "
            f"{speed} samples/s of {LABELS[PP]}"
        )
    why = f"{speed} of {run['roof']:.4g} samples/s of {run['roof_label']}{judge.variant_of(run)}"
    return Found(run["share"], why, rounds=(run["round"], run["roof_round"]))


def missing(rows: pd.DataFrame) -> list[str]:
    """Minibatches of GPT-2 XL that lack runs the goals are about, and whose."""
    out = []
    for batch in BATCHES:
        free = Setting("", {**XL, "method": ROOF, "batch": batch, "ranks": GPUS})
        names = (PP, DP, ZERO)
        absent = [LABELS[name] for name in names if _at(name, batch).run(rows) is None]
        if free.run(rows, device_cap_gib=None) is None:
            absent.append(f"{LABELS[ROOF]} without a cap")
        if absent:
            out.append(
                f"GPT-2 XL on {GPUS} GPUs of {CAP_GIB} GiB, minibatch {batch} ({', '.join(absent)})"
            )
    return out


# -- more GPUs, larger models ----------------------------------------------------------------------


def scaling(asked: Asked) -> Found:
    """Among the models that ran on one GPU and on most, the largest; then the largest minibatch."""
    rows, wanted = asked.rows, asked.given["gpus"]
    own = rows[rows["method"].eq(PP) & rows["ranks"].le(wanted) & rows["status"].isin(RESULTS)]
    series = [
        (part["ranks"].max(), part["parameters"].fillna(0).max(), batch, part)
        for (batch, *_), part in own.groupby(
            ["batch", "clip", "device_cap_gib", *MODEL], dropna=False, sort=False
        )
        if part["ranks"].min() == 1 < part["ranks"].max()
    ]
    if not series:
        raise Undecided(f"no model ran in {LABELS[PP]} on one GPU and on more, at one minibatch")
    most, *_, part = max(series, key=lambda each: each[:3])
    one, many = (
        judge.trained(preferred(part[part["ranks"] == ranks]).iloc[0]) for ranks in (1, most)
    )
    ratio = many["samples_per_second"] / one["samples_per_second"]
    told = f"{many['samples_per_second']:.4g} and {one['samples_per_second']:.4g} samples/s"
    if one["round"] != many["round"]:
        return Found(ratio, told, rounds=(many["round"], one["round"]))
    told += f", {_sized(many)}, minibatch {many['batch']}{judge.variant_of(many)}"
    if most < wanted:
        raise Undecided(f"{most} GPUs are {ratio:.1f} times 1: {told}")
    return Found(ratio, told)


def outgrown(asked: Asked) -> Found:
    """How many times what its GPUs may hold the states of a model are that trains on all numbers
    of them."""
    rows, wanted = asked.rows, asked.given["gpus"]
    # A run that failed early may not tell its parameters; others of its model do.
    states = rows.groupby(list(MODEL))["states_gib"].transform("max")
    times = states / (rows["ranks"] * rows["device_cap_gib"])
    known = rows.assign(times=times, states_gib=states)
    fit = pick(known, method=HARMONY, ranks=wanted)
    fit = fit[fit["times"] >= asked.claim.least]
    if fit.empty:
        raise Undecided(f"no run of Harmony with such a model on {_listed(wanted)} GPUs")
    parts = [part for _, part in fit.groupby([*MODEL, "device_cap_gib"])]
    part = max(parts, key=lambda p: (len(_trained(p)), p["states_gib"].max()))
    done = _trained(part)
    absent = [ranks for ranks in wanted if ranks not in done]
    told = _sized(part.iloc[0])
    failed = part[part["ranks"].isin(absent) & part["status"].isin(RESULTS)]
    if not absent:
        return Found(pick(part, status="ok")["times"].min(), told)
    on = f"trained on {_listed(done)} GPUs" if done else "trained on no number of them"
    if len(failed):
        run = failed.iloc[0]
        why = f"{run['label']} on {run['ranks']} GPUs ended with status {run['status']}"
        raise Undecided(f"{told}; {why}", on, FAILS)
    raise Undecided(f"{told}: {on}, no run on {_listed(absent)} came to an end")


def _trained(rows: pd.DataFrame) -> list[int]:
    """Numbers of GPUs."""
    return sorted(set(rows[rows["status"] == "ok"]["ranks"]))


def _sized(run: pd.Series) -> str:
    size = "" if pd.isna(run["parameters"]) else f"{run['parameters'] / 1e9:.1f} B parameters, "
    cap = run["device_cap_gib"]
    return f"{size}{run['layers']} layers, {'no limit' if pd.isna(cap) else f'{cap:g} GiB a GPU'}"


def _listed(numbers: Iterable[int]) -> str:
    """``1, 2 and 4``."""
    *first, last = (str(number) for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last


METRICS = judge.METRICS | by_name(over_zero, share, scaling, outgrown)
