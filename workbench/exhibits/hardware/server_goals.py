"""Goals of this project on servers of several GPUs, and whether the measurements reach them.

Half of the goals are about GPT-2 XL on 4 GPUs of 11 GiB each, the cards of Harmony's (VLDB'22)
server; others ask of all rows that plans say of a run what the run did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from workbench.core.record import RESULTS
from workbench.exhibits.hardware import judge
from workbench.exhibits.hardware.judge import Found, Goal, Setting, Undecided, Wanted
from workbench.exhibits.hardware.table import HARMONY, MODEL, ROOF, preferred
from workbench.exhibits.hardware.table import SERVER_RUNTIME as OWN_RUNTIME
from workbench.figures.verdict import FAILS
from workbench.published.here import SERVERS

LABELS = SERVERS.labels
XL = {"layers": 48, "hidden": 1600, "seq": 1024, "dtype": "bf16"}
"""GPT-2 XL."""
GPUS, CAP_GIB = 4, 11
PP, DP, ZERO = "harmony-pp", "harmony-dp", "zero-infinity"
OVER_ZERO = ((64, 5.0, 15.0), (16, 4.0, 10.7))
"""Minibatch, how many times as fast as ZeRO-3 with CPU offload, and the samples/s that this project
first measured of it on 4 H200s."""
MOST_GPUS, SPEEDUP = 8, 5.0
TIMES_THE_CAPS = 10
STEP_WITHIN, PEAK_WITHIN = 0.10, 0.05


def goals(rows: pd.DataFrame, repeated: pd.DataFrame | None = None) -> list[Goal]:
    """All goals against the rows of one device (`table.SERVERS`); `repeated`: the same with
    every repeated run, so that two methods may be compared in the last round that has both."""
    every = rows if repeated is None else repeated
    return [judge.evaluate(wanted, rows, every) for wanted in WANTED]


# -- GPT-2 XL -------------------------------------------------------------------------------------


def _at(method: str, batch: int) -> Setting:
    words = f"{LABELS[method]} on {GPUS} GPUs of {CAP_GIB} GiB at minibatch {batch}"
    where = {"method": method, "batch": batch, "ranks": GPUS, "device_cap_gib": CAP_GIB}
    return Setting(words, {**XL, **where})


def _over_zero(batch: int, times: float, reference: float) -> Wanted:
    """Over the first reference; ZeRO-3 as this project measured it stands beside and decides
    nothing."""

    def metric(rows: pd.DataFrame, every: pd.DataFrame) -> Found:
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
                f"{speed / other:.2f} times this project's own {theirs['label']}, {other:.4g} "
                "samples/s"
            )
        return Found(speed / reference, f"{speed:.4g} samples/s; {told}{judge.variant_of(run)}")

    text = (
        f"{_setting(batch)}: {LABELS[PP]} at least {times:g} times the first reference of ZeRO-3 "
        f"with CPU offload, {reference} samples/s"
    )
    return Wanted(text, metric, least=times, form="{:.2f} times")


def _share(batch: int, share: float) -> Wanted:
    def metric(rows: pd.DataFrame, every: pd.DataFrame) -> Found:
        run = judge.trained(_at(PP, batch).found(rows))
        speed = f"{run['samples_per_second']:.4g}"
        if pd.isna(run["share"]):
            raise Undecided(
                f"no run of {LABELS[ROOF]} without a cap on {GPUS} GPUs at minibatch {batch}; "
                f"{speed} samples/s of {LABELS[PP]}"
            )
        why = (
            f"{speed} of {run['roof']:.4g} samples/s of {run['roof_label']}{judge.variant_of(run)}"
        )
        return Found(run["share"], why, (run["round"], run["roof_round"]))

    whole = f"data parallelism without a cap on {GPUS} GPUs"
    text = f"{_setting(batch)}: {LABELS[PP]} at least {share:.0%} of {whole}"
    return Wanted(text, metric, least=share)


def _over_dp(batch: int) -> Wanted:
    text = f"{_setting(batch)}: {LABELS[PP]} at or above {LABELS[DP]}"
    metric = judge.over(_at(PP, batch), _at(DP, batch), same=("clip",))
    return Wanted(text, metric, least=1.0, form="{:.2f} times")


def missing(rows: pd.DataFrame) -> list[str]:
    """Minibatches of GPT-2 XL that lack runs the goals are about, and whose."""
    out = []
    for batch, *_ in OVER_ZERO:
        free = Setting("", {**XL, "method": ROOF, "batch": batch, "ranks": GPUS})
        names = (PP, DP, ZERO)
        absent = [LABELS[name] for name in names if _at(name, batch).run(rows) is None]
        if free.run(rows, device_cap_gib=None) is None:
            absent.append(f"{LABELS[ROOF]} without a cap")
        if absent:
            out.append(f"{_setting(batch)} ({', '.join(absent)})")
    return out


def _setting(batch: int) -> str:
    return f"GPT-2 XL on {GPUS} GPUs of {CAP_GIB} GiB, minibatch {batch}"


# -- plans ----------------------------------------------------------------------------------------


def _counted(rows: pd.DataFrame, every: pd.DataFrame) -> Found:
    own = rows[rows["method"].isin(HARMONY) & (rows["status"] == "ok")]
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


def _peaks(rows: pd.DataFrame, every: pd.DataFrame) -> Found:
    ratios = judge.predictions(rows, "peak_ratio", OWN_RUNTIME)
    own = rows[rows["method"].isin(OWN_RUNTIME) & (rows["status"] == "ok")]
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


def _caps(rows: pd.DataFrame, every: pd.DataFrame) -> Found:
    own = rows[rows["method"].isin(OWN_RUNTIME) & (rows["status"] == "ok")]
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


def _scaling(rows: pd.DataFrame, every: pd.DataFrame) -> Found:
    """Among the models that ran on one GPU and on most, the largest; then the largest minibatch."""
    own = rows[rows["method"].eq(PP) & rows["ranks"].le(MOST_GPUS) & rows["status"].isin(RESULTS)]
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
        return Found(ratio, told, (many["round"], one["round"]))
    told += f", {_sized(many)}, minibatch {many['batch']}{judge.variant_of(many)}"
    if most < MOST_GPUS:
        raise Undecided(f"{most} GPUs are {ratio:.1f} times 1: {told}")
    return Found(ratio, told)


def _outgrown(wanted: tuple[int, ...]) -> Wanted:
    def metric(rows: pd.DataFrame, every: pd.DataFrame) -> Found:
        # A run that failed early may not tell its parameters; others of its model do.
        states = rows.groupby(list(MODEL))["states_gib"].transform("max")
        times = states / (rows["ranks"] * rows["device_cap_gib"])
        known = rows.assign(times=times, states_gib=states)
        fit = known[rows["method"].isin(HARMONY) & rows["ranks"].isin(wanted)]
        fit = fit[fit["times"] >= TIMES_THE_CAPS]
        if fit.empty:
            raise Undecided(f"no run of Harmony with such a model on {_listed(wanted)} GPUs")
        parts = [part for _, part in fit.groupby([*MODEL, "device_cap_gib"])]
        part = max(parts, key=lambda p: (len(_trained(p)), p["states_gib"].max()))
        done = _trained(part)
        absent = [ranks for ranks in wanted if ranks not in done]
        told = _sized(part.iloc[0])
        failed = part[part["ranks"].isin(absent) & part["status"].isin(RESULTS)]
        if not absent:
            ok = part[part["status"] == "ok"]
            return Found(ok["times"].min(), told)
        on = f"trained on {_listed(done)} GPUs" if done else "trained on no number of them"
        if len(failed):
            run = failed.iloc[0]
            why = f"{run['label']} on {run['ranks']} GPUs ended with status {run['status']}"
            raise Undecided(f"{told}; {why}", on, FAILS)
        raise Undecided(f"{told}: {on}, no run on {_listed(absent)} came to an end")

    text = (
        f"a model whose states are {TIMES_THE_CAPS} times what its GPUs may hold trains on "
        f"{_listed(wanted)} GPUs"
    )
    return Wanted(text, metric, least=TIMES_THE_CAPS, form="{:.1f} times")


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


STEP = judge.mean_error("step_ratio", OWN_RUNTIME, lambda run: f", {_described(run)}")
COUNTED = "bytes over the host links, counted, within 1% of the plan's"
SCALES = f"{LABELS[PP]} on {MOST_GPUS} GPUs at least {SPEEDUP:g} times as fast as on one"
WANTED = (
    _over_zero(*OVER_ZERO[0]),
    _share(64, 0.60),
    _over_zero(*OVER_ZERO[1]),
    *(_over_dp(batch) for batch, *_ in OVER_ZERO),
    Wanted(COUNTED, _counted, most=0.01, form="{:.2%}"),
    Wanted("step time predicted within 10% on the mean", STEP, most=STEP_WITHIN),
    Wanted(
        "every device peak within 5% of its prediction",
        _peaks,
        most=PEAK_WITHIN,
        form="{:.1%} at most",
    ),  # fmt: skip
    Wanted("no device peak above its cap", _caps, most=1, form="{:.1%} of the cap at most"),
    Wanted(SCALES, _scaling, least=SPEEDUP, form="{:.2f} times"),
    _outgrown((1, 2, 4)),
    _outgrown((MOST_GPUS,)),
)
"""All goals, in the order of their table."""
