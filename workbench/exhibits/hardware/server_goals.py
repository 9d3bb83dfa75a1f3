"""Metrics of this project's goals on servers of several GPUs, which are rows of ``servers.toml``.

Half of the goals are about GPT-2 XL on 4 GPUs of 11 GiB each, the cards of Harmony's (VLDB'22)
server; others ask of all rows that plans say of a run what the run did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from workbench.core.record import RESULTS
from workbench.exhibits.claim_rows import stated
from workbench.exhibits.hardware import judge
from workbench.exhibits.hardware.judge import Setting
from workbench.exhibits.hardware.offload_table import preferred
from workbench.exhibits.hardware.server_table import HARMONY, MODEL, OWN_RUNTIME, ROOF
from workbench.exhibits.metrics import Asked, Found, Metric, Undecided
from workbench.exhibits.words import read_claims
from workbench.figures.rows import pick
from workbench.figures.verdict import FAILS
from workbench.published.servers import LABELS

XL = {"layers": 48, "hidden": 1600, "seq": 1024, "dtype": "bf16"}
"""GPT-2 XL."""
GPUS, CAP_GIB = 4, 11
PP, DP, ZERO = "harmony-pp", "harmony-dp", "zero-infinity"
STATED = {
    goal.metric: goal for goal in stated(read_claims(Path(__file__).with_name("servers.toml")))
}
STEP_WITHIN, PEAK_WITHIN = (STATED[name].most for name in ("step error", "peak error"))
BATCHES = (64, 16)


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


def over_dp(asked: Asked) -> Found:
    """Throughput of Harmony-PP over Harmony-DP's."""
    batch = asked.given["batch"]
    return judge.over(asked, _at(PP, batch), _at(DP, batch), same=("clip",))


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


# -- plans ----------------------------------------------------------------------------------------


def counted_bytes(asked: Asked) -> Found:
    """By how much counted bytes are off their plan's, either way, at most."""
    own = pick(asked.rows, method=HARMONY, status="ok")
    known = own.dropna(subset=["moved", "planned_moved"])
    if known.empty:
        raise Undecided("no run of Harmony has both")
    off = {
        i: max(_off(run[f"{way}_gib"], run[f"planned_{way}_gib"]) for way in ("load", "store"))
        for i, run in known.iterrows()
    }
    worst = known.loc[max(off, key=off.__getitem__)]
    why = (
        f"{judge.runs(len(known))} of Harmony, the worst {_described(worst)}: {worst['moved']:.4g} "
        f"times the weights counted, {worst['planned_moved']:.4g} planned{judge.variant_of(worst)}"
    )
    without = len(own) - len(known)
    why += f"; {judge.runs(without)} more without both" if without else ""
    return Found(max(off.values()), why)


def _off(counted: float, planned: float) -> float:
    """How far a count is from its plan, as a share of it."""
    if planned == 0:
        return 0.0 if counted == 0 else math.inf
    return abs(counted / planned - 1)


def peak_error(asked: Asked) -> Found:
    """By how much a device's peak is off its prediction, at most."""
    rows = asked.rows
    ratios = judge.predictions(rows, "peak_ratio", OWN_RUNTIME)
    own = pick(rows, method=OWN_RUNTIME, status="ok")
    planned = own[own["predicted_peak_device_gib"].notna()]
    far = (ratios - 1).abs()
    worst = ratios.loc[far.idxmax()] - 1
    why = (
        f"{judge.runs(len(ratios))} on our own runtime, {far.mean():.1%} off on the mean; the "
        "worst "
        f"prediction {worst:+.1%}, {_described(rows.loc[far.idxmax()])}"
        f"{_without_peak(planned)}"
    )
    return Found(far.max(), why)


def caps(asked: Asked) -> Found:
    """The fullest device, of its cap."""
    own = pick(asked.rows, method=OWN_RUNTIME, status="ok")
    used = (own["peak_device_gib"] / own["device_cap_gib"]).dropna()
    if used.empty:
        raise Undecided("no run on our own runtime under a cap tells its peak")
    worst = own.loc[used.idxmax()]
    why = (
        f"{judge.runs(len(used))} on our own runtime, the fullest {worst['peak_device_gib']:.4g} "
        "of "
        f"{worst['device_cap_gib']:g} GiB, {_described(worst)}"
        f"{_without_peak(own[own['device_cap_gib'].notna()])}"
    )
    return Found(used.max(), why)


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


def step_error(asked: Asked) -> Found:
    """Mean error of predicted steps."""
    return judge.mean_error(
        asked.rows, "step_ratio", OWN_RUNTIME, lambda run: f", {_described(run)}"
    )


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "over zero": over_zero,
        "share": share,
        "over dp": over_dp,
        "counted bytes": counted_bytes,
        "step error": step_error,
        "peak error": peak_error,
        "caps": caps,
        "scaling": scaling,
        "outgrown": outgrown,
    }
)
