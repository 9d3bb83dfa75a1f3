"""Metrics of this project's goals on an H200, which are rows of ``offload.toml``.

Goals are about one setting only: hidden size 2048, sequence 1024, bf16 weights with fp32 AdamW,
32 GiB of device memory.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workbench.exhibits.claim_rows import stated
from workbench.exhibits.hardware import judge
from workbench.exhibits.hardware.judge import Setting
from workbench.exhibits.hardware.table import PLAIN, preferred
from workbench.exhibits.metrics import Asked, Found, Undecided, by_name
from workbench.exhibits.words import read_claims
from workbench.figures.rows import pick

DTYPE, HIDDEN, SEQ = "bf16", 2048, 1024
CAP_GIB, HOST_GIB = 32, 90
SHARES = tuple(
    (goal.given["layers"], goal.given["batch"], goal.least)
    for goal in stated(read_claims(Path(__file__).with_name("offload.toml")))
    if goal.metric == "share"
)
"""Layers, batch, and the share of plain training's throughput to keep."""


def of_setting(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that goals are about."""
    return rows[(rows["dtype"] == DTYPE) & (rows["hidden"] == HIDDEN) & (rows["seq"] == SEQ)]


def told(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with errors of predictions, and what models within both budgets take."""
    fits = (rows["device_cap_gib"] <= CAP_GIB) & (rows["host_cap_gib"] <= HOST_GIB)
    return rows.assign(
        step_error=rows["step_ratio"] - 1,
        peak_error=rows["peak_ratio"] - 1,
        billions=(rows["parameters"] / 1e9).where(fits),
        disk=[*map(_on_disk, rows["disk_gib"], rows["disk_step_gb"])],
    )


def _on_disk(gib: float, step_gb: float) -> str:
    words = f", {gib:.4g} GiB on the disk" if gib > 0 else ""
    if step_gb > 0:
        words += f", of which {step_gb:.3g} GB are read and written in a step"
    return words


def trained(rows: pd.DataFrame) -> pd.DataFrame:
    """STRONGHOLD's runs that ended well."""
    return rows[(rows["method"] == "stronghold") & (rows["status"] == "ok")]


def _at(method: str, layers: int, batch: int) -> Setting:
    where = {"method": method, "layers": layers, "batch": batch, "device_cap_gib": CAP_GIB}
    return Setting(f"{method} with {layers} layers at batch {batch}", where)


def share(asked: Asked) -> Found:
    """Throughput over plain training's."""
    rows, every = asked.rows, asked.every
    layers, batch = asked.given["layers"], asked.given["batch"]
    run = _at("stronghold", layers, batch).found(rows)
    beside = every[every["round"] == every["plain_round"]]
    run = judge.last_in(set(judge.repeats(beside, run)["round"]), every, run)
    if pd.isna(run["plain"]):
        raise Undecided(f"no run of {_at(PLAIN, layers, batch).words}")
    why = (
        f"{judge.trained(run)['samples_per_second']:.4g} of {run['plain']:.4g} samples/s of "
        f"{run['plain_label']}{judge.variant_of(run)}{_of_other_plain(every, run)}"
    )
    return Found(run["share"], why, rounds=(run["round"], run["plain_round"]))


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


def clipping(asked: Asked) -> Found:
    """By how much clipping changes the throughput: pairs of one round that differ in it alone."""
    same = ["method", "variant", "layers", "batch", "device_cap_gib", "host_cap_gib", "round"]
    own = trained(asked.rows)
    on, off = own[own["clip"].notna()], own[own["clip"].isna()]
    # Gaps are no values to merge on: a cap that is not there is one like any other.
    pairs = on.fillna({"device_cap_gib": -1, "host_cap_gib": -1}).merge(
        off.fillna({"device_cap_gib": -1, "host_cap_gib": -1}), on=same, suffixes=("", "_off")
    )
    if pairs.empty:
        raise Undecided("no two runs of one round that differ in clipping only")
    change = pairs["samples_per_second"] / pairs["samples_per_second_off"] - 1
    worst = pairs.loc[change.abs().idxmax()]
    why = (
        f"the worst of {len(pairs)} pairs, {worst['layers']} layers at batch {worst['batch']}: "
        f"{worst['samples_per_second']:.4g} with, {worst['samples_per_second_off']:.4g} without"
    )
    return Found(float(change.abs().max()), why)


def host_bytes(asked: Asked) -> Found:
    """The most of runs that were planned, and of others where that is more."""
    found = judge.worst(asked)
    others = pick(trained(asked.rows), pinned=True)["host_bytes_per_parameter"].dropna()
    if len(others) and others.max() > found.value:
        more = "; where all is pinned to visit, and gradients wait for their norm, "
        found = found._replace(why=f"{found.why}{more}{others.max():.3g}")
    return found


def planners_choice(asked: Asked) -> Found:
    """The planner's choice beside runs of the same setting that pin others, of one round: machines
    of one kind differ by more than the goal allows, and so do states of the code."""
    own, pinned, windows = trained(asked.rows), asked.given["pinned"], asked.given["windows"]
    same = ["layers", "batch", "clip", "device_cap_gib", "host_cap_gib", "round"]
    sweeps = [
        (part, preferred(part[~part["pinned"]]).iloc[0])
        for _, part in own.groupby(same, dropna=False)
        if part["pinned"].sum() >= pinned
        and part["variant"].str.contains(r"\bw\d").sum() >= windows
        and not part["pinned"].all()
    ]
    if not sweeps:
        raise Undecided(
            f"no planned run stands beside {pinned} of one round with other placements, "
            f"{windows} of them with other windows"
        )
    part, chosen = max(sweeps, key=lambda sweep: len(sweep[0]))
    best = part.loc[part["samples_per_second"].idxmax()]
    behind = 1 - chosen["samples_per_second"] / best["samples_per_second"]
    why = (
        f"{chosen['samples_per_second']:.4g} samples/s, {len(part) - 1} other placements at most "
        f"{best['samples_per_second']:.4g}{judge.variant_of(best)}"
    )
    return Found(behind, why)


def flat(asked: Asked) -> Found:
    """By how much the planned peak grows over depths, as runs keep to it."""
    deep, depths = trained(asked.rows), asked.given["depths"]
    deep = deep[deep["variant"].str.contains(r"\bstash\b")].drop_duplicates("layers")
    if len(deep) < depths:
        raise Undecided(f"fewer than {depths} depths of such runs")
    peaks, planned = deep["peak_device_gib"], deep["predicted_peak_device_gib"]
    # How full the proven peak gets depends on how copies fall; that it does not grow is the goal.
    grown = float(planned.max() / planned.min() - 1)
    above = float((peaks / planned).max() - 1)
    why = (
        f"{planned.max():.4g} GiB planned and {peaks.min():.4g} to {peaks.max():.4g} GiB measured "
    )
    why += f"from {deep['layers'].min()} to {deep['layers'].max()} layers"
    why += judge.variant_of(deep.iloc[0])
    return Found(grown, why, fair=above <= asked.given["above"])


METRICS = judge.METRICS | by_name(share, clipping, host_bytes, planners_choice, flat)
