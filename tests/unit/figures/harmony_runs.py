"""Made-up runs of Harmony's exhibits: what figures do must not depend on how a run came about."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from tests.unit.figures.records import record
from workbench.core.record import BETWEEN, PARTS, RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits import HARMONY, find
from workbench.exhibits.harmony import sizes, volumes
from workbench.figures.rows import join
from workbench.published import harmony_plans
from workbench.runs.store import Store

SMOKE = sizes.named("smoke")
EXHIBITS = tuple(HARMONY)


def run(spec: RunSpec, seconds: float = 0.5, /, **changes: Any) -> RunRecord:
    """A run that moved what the formula says, if there is one, and lost as every run does; what
    swaps moves all weights for each micro-batch."""
    parameters = spec.model.parameters if spec.model.family == "gpt" else 1000
    parts = moved_parts(spec, 4 * parameters)
    moved = {
        way: sum(nbytes for part, nbytes in parts.items() if part.endswith(end))
        for way, end in (("load", "_in"), ("store", "_out"))
    }
    packs = getattr(spec.options, "backward_packs", "auto")
    losses = [5.0 - 0.1 * step for step in range(spec.steps)]
    values = {
        "key": f"{spec.method}-{spec.model.family}-{spec.ranks}-{packs}-{spec.batch}",
        "parameters": parameters,
        "losses": losses,
        "moved_bytes": moved,
        "moved_parts": parts,
        "predicted": {
            "step_seconds": 0.9 * seconds,
            "moved_bytes": moved,
            "moved_parts": parts,
        },
    }
    if changes.get("status", "ok") != "ok":
        values |= {"losses": [], "moved_bytes": {}, "moved_parts": {}, "predicted": {}}
    values |= {"method": spec.method, "spec": spec.to_dict()}
    gpt = SMOKE.spec("plain", SMOKE.text)  # whose parameters a formula counts
    return record(gpt, seconds, **{**values, **changes})


def moved_parts(spec: RunSpec, weights: int) -> dict[str, int]:
    """Bytes over the link and between devices by what they are, as our runtime counts them and
    libraries do not."""
    none = dict.fromkeys(PARTS + BETWEEN, 0)
    if spec.ranks > 1:
        replicas = spec.method in (sizes.DP, sizes.DP_SWAP)
        none |= {"all_reduced": spec.ranks * weights} if replicas else {"p2p": weights // 2}
    if spec.method in sizes.SWAPPED:
        size = spec.options.forward_size
        visits = weights * (spec.batch // (1 if size == "auto" else size))
        return none | {"weights_in": 2 * visits, "sums_in": visits, "gradients_out": visits}
    if spec.method not in sizes.HARMONY:
        return {}
    told = volumes.formula(spec)
    if told is None:  # nobody says what a planner chooses
        return none | {"weights_in": 2 * weights, "gradients_out": weights}
    return none | {part: told.to_dict().get(part, 0) for part in PARTS}


def runs(name: str, size: sizes.HarmonySize = SMOKE) -> list[RunRecord]:
    """Every run of an exhibit."""
    return [run(spec) for spec in find(name).specs(size)]


def rows_of(
    name: str,
    records: list[RunRecord],
    store: Store,
    size: sizes.HarmonySize = SMOKE,
) -> pd.DataFrame:
    """Rows of an exhibit from these runs, beside the kept ones."""
    exhibit = find(name)
    own = exhibit.rows(records, store, size) if records else exhibit.absent(size, "not here")
    return join(exhibit.known(size, plans()), own.assign(size=size.name))


@cache
def plans() -> pd.DataFrame:
    """A made-up answer to every question: ours is a tenth faster, PP scales, DP hardly from 4 to 8
    GPUs, and packs of 14 are uneven."""
    rows = []
    for question in harmony_plans.questions():
        pp = question.mode == "pp"
        speed = question.ranks**0.95 if pp else min(question.ranks, 4) ** 0.9
        for planner in question.planners:
            ours = planner == harmony_plans.OURS
            pack = question.pack if question.sizes and not ours else None
            seconds = (0.9 if ours else 1.0) * (1.7 if pack == 14 else 1.0)
            rows.append(
                harmony_plans.Row(
                    figure=question.figure, model=question.model, method=f"harmony-{question.mode}",
                    ranks=question.ranks, minibatch=question.minibatch, planner=planner,
                    given="{}/{}, packs of {}".format(*question.sizes, pack) if pack else "",
                    setting="4/2, 10 and 11 packs", seconds=question.minibatch * seconds / speed,
                    estimate_s=None if ours else 1.3 * question.minibatch / speed,
                    estimate_prefetch_s=None if ours else 1.1 * question.minibatch / speed,
                    search_s=None if pack else 2.0, candidates=None if pack else 12,
                    device_bytes=10 * 2**30, fits=True, busy=" ".join(["0.9"] * question.ranks),
                    weights_in=2**30 * (12 if pp else 12 * question.ranks), gradients_out=2**32,
                    activations_in=2**31, activations_out=2**31, p2p=2**31 * pp, all_reduced=0,
                    planned="2026-11-22",
                )
            )  # fmt: skip
    return pd.DataFrame([asdict(row) for row in rows])


def nowhere(folder: Path) -> Store:
    """A store without any run."""
    return Store(folder / "nothing")
