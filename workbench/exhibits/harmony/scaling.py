"""Base of figures 17 and 18: GPT-2 of 10 to 40 billion parameters on 1, 2, 4 and 8 devices, and
ZeRO-Infinity beside Harmony where peers run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.harmony.base import HarmonyExhibit, nothing_reduced
from workbench.exhibits.harmony.sizes import HARMONY, ZERO, HarmonySize, Trained
from workbench.exhibits.harmony.table import both, estimated, missing, model_label, planned, table
from workbench.figures import draw
from workbench.figures.rows import MEASURED, OUR_PLAN, join, one, pick
from workbench.runs.store import Store

MODELS = ("gpt2_10b", "gpt2_20b", "gpt2_30b", "gpt2_40b")
DEVICES = (1, 2, 4, 8)


class Scaling(HarmonyExhibit):
    """Seconds of a step over the number of devices: a panel a model, and what ran here."""

    letters: ClassVar[int] = 110
    """Of a line of the words why nothing ran here."""
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

    def shown(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows that are drawn."""
        return rows

    @abstractmethod
    def places(self, figure: Any, *, ran: bool) -> dict[str, Any]:
        """Axes by the models that have any, and those of what ran ``here``, or why nothing did."""

    @abstractmethod
    def panel(self, axes: Any, rows: pd.DataFrame, ticks: Sequence[float]) -> None:
        """Draw rows of one model over the number of devices."""

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        shown = self.shown(rows)
        own = shown[~shown["model"].isin(MODELS)].dropna(subset=["value"])
        theirs = pick(shown, variant=("", OUR_PLAN), model=MODELS)
        places = self.places(figure, ran=len(own) > 0)
        here = places.pop("here")
        for model, axes in places.items():
            self.panel(axes, pick(theirs, model=model), DEVICES)
            draw.title(axes, model_label(model))
        if len(own):
            self.panel(here, own, sorted(set(own["x"])))
            draw.title(here, f"here: {own['model'].iloc[0]}, reduced size")
        else:
            nothing_reduced(here, rows, self.letters)
        drawn = pd.concat([theirs, own]).dropna(subset=["value"])
        draw.legend(figure, drawn, as_lines=True)
        draw.small_print(figure, self.printed())

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


def speedups(rows: pd.DataFrame) -> pd.DataFrame:
    """Every series as how many times one device's speed it has; without its one device, nothing."""
    out = []
    place = ["model", "method", "source", "variant"]
    for _, part in pick(rows, quantity="iteration_s").groupby(place, sort=False):
        base, spread = one(part, ranks=1), part["source"] == MEASURED
        if base is not None:
            low, high = (base / part[end].where(spread) for end in ("high", "low"))
            same = {"quantity": "speedup", "unit": "times", "value": base / part["value"]}
            out.append(part.assign(**same, low=low, high=high))
    return join(*out)
