"""Base of figures 17 and 18: GPT-2 of 10 to 40 billion parameters on 1, 2, 4 and 8 devices, and
ZeRO-Infinity beside Harmony where peers run."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.harmony.base import HarmonyExhibit
from workbench.exhibits.harmony.sizes import HARMONY, ZERO, HarmonySize, Trained
from workbench.exhibits.harmony.table import both, estimated, missing, planned, table
from workbench.figures.rows import MEASURED, join, one, pick
from workbench.runs.store import Store

MODELS = ("gpt2_10b", "gpt2_20b", "gpt2_30b", "gpt2_40b")
DEVICES = (1, 2, 4, 8)


class Scaling(HarmonyExhibit):
    """Seconds of a step over the number of devices."""

    takes = ("layers", "hidden", "batch", "steps", "methods", "seed")
    plans = ("17",)

    def specs(self, size: HarmonySize) -> list[RunSpec]:
        """Both modes on every number of devices, on one they are the same; ZeRO-Infinity where
        peers
        run."""
        runs = [
            size.spec(method, trained, ranks)
            for trained in size.grown
            for method, ranks in size.on_several()
        ]
        if ZERO in methods(size):
            runs += [_zero(size, each, ranks) for each in size.grown for ranks in size.ranks_here()]
        return runs

    def rows(self, records: list[RunRecord], store: Store, size: HarmonySize) -> pd.DataFrame:
        """Seconds of a step over the number of devices, measured and predicted."""
        names = {trained.model: trained.name for trained in size.grown}
        out: list[dict[str, Any]] = []
        for record in records:
            model, ranks = names[RunSpec.from_dict(record.spec).model], record.spec["ranks"]
            for row in both(record, "iteration_s", model, x=ranks):
                out += with_both(row)
        return table(out)

    def known(self, size: HarmonySize, plans: pd.DataFrame) -> pd.DataFrame:
        """Reference estimates, and our plans under our simulator."""
        told = join(estimated("17", "iteration_s"), planned(pick(plans, figure=self.plans)))
        rows = [row for each in told.to_dict("records") for row in with_both(each)]
        return table([row | {"x": row["ranks"]} for row in rows])

    def absent(self, size: HarmonySize, why: str) -> pd.DataFrame:
        return table(
            [
                missing(method, trained.name, "iteration_s", why)
                for trained in size.grown
                for method in methods(size)
            ]
        )


def _zero(size: HarmonySize, trained: Trained, ranks: int) -> RunSpec:
    at_once = ranks * size.zero_samples
    return size.spec(ZERO, trained, ranks, microbatches=trained.minibatch // at_once)


def methods(size: HarmonySize) -> tuple[str, ...]:
    """Methods that run at this size."""
    return HARMONY + tuple(name for name in size.known_peers() if name == ZERO)


def with_both(row: dict[str, Any]) -> list[dict[str, Any]]:
    """On one device a row of Harmony stands for both modes: lines of both begin there."""
    if row["ranks"] > 1 or row["method"] not in HARMONY:
        return [row]
    return [row | {"method": method} for method in HARMONY]


def here(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows measured here, and predictions for their models."""
    return rows[~rows["model"].isin(MODELS) | (rows["source"] == MEASURED)]


def seconds(rows: pd.DataFrame, model: str, method: str, ranks: int, **of: Any) -> float | None:
    """Seconds of a step."""
    return one(pick(rows, model=model, method=method, ranks=ranks, quantity="iteration_s", **of))


def speedups(rows: pd.DataFrame) -> pd.DataFrame:
    """Every series_of as how many times one device's speed it has; without its one device,
    nothing."""
    out = []
    place = ["model", "method", "source", "variant"]
    for _, part in pick(rows, quantity="iteration_s").groupby(place, sort=False):
        base = one(part, ranks=1)
        if base is None:
            continue
        spread = base / part["high"].where(part["source"] == MEASURED)
        out.append(
            part.assign(
                quantity="speedup", unit="times", low=spread,
                high=base / part["low"].where(part["source"] == MEASURED),
                value=base / part["value"],
            )
        )  # fmt: skip
    return join(*out)
