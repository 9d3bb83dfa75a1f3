"""Claims of figure 12 on bytes: estimates, plans and counted runs against each other."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.core.record import BETWEEN, PARTS
from workbench.exhibits.harmony import volumes
from workbench.exhibits.harmony.sizes import DP, HARMONY, ONE, PP, SWAPPED
from workbench.exhibits.metrics import Asked, Found, NoClaim, by_name
from workbench.figures.rows import FORMULA, MEASURED, REFERENCE, one, pick, quotient

MODEL, GPUS = "gpt2_xl", 4
"""Model and number of GPUs of the published schedules."""
WEIGHTS = ("weights_in", "gradients_out")
LINK = (*WEIGHTS, "activations_in", "activations_out")
"""Parts of the host link's traffic that estimates and plans name."""
OWN = ("load", "store")
"""Parts that every runtime counts; ours also `PARTS` of it, and `BETWEEN`."""


def totals(rows: pd.DataFrame) -> dict[tuple[str, float], float | None]:
    """(method, devices) -> bytes that all runs of it counted, loads and stores together."""
    every = sorted(set(pick(rows, source=MEASURED)["ranks"].dropna()))
    return {
        (method, ranks): _total(rows, method=method, ranks=ranks)
        for method in HARMONY + SWAPPED
        for ranks in every
    }


def _most(own: dict[tuple[str, float], float | None], *methods: str) -> float | None:
    """The most devices on which all of these methods counted bytes."""
    return max((n for _, n in own if all(own[name, n] for name in methods)), default=None)


def dp_over_pp(asked: Asked) -> Found:
    """Bytes of Harmony-DP over those of Harmony-PP on the most devices that both ran on."""
    own = totals(asked.rows)
    both = _most(own, PP, DP)
    told = None
    if both == GPUS:
        place = {"model": MODEL, "ranks": GPUS, "minibatch": 64, "quantity": LINK}
        parts = (pick(asked.rows, method=m, source=REFERENCE, **place) for m in (DP, PP))
        told = quotient(*(sum(part["value"]) for part in parts))
    ratio = quotient(own.get((DP, both)), own.get((PP, both)))
    return Found(ratio, told=told, names={"formula": _by_formula(both)})


def one_over_most(asked: Asked) -> float | None:
    """Bytes on one device over those of Harmony-PP on the most that it ran on."""
    own = totals(asked.rows)
    return quotient(own.get((ONE, 1)), own.get((PP, _most(own, PP))))


def swapped_over(asked: Asked) -> float | None:
    """Bytes of swapping over those of Harmony, on the most devices that swapped."""
    own, name = totals(asked.rows), asked.given["swapped"]
    ranks = _most(own, name)
    return quotient(own.get((name, ranks)), own.get((asked.given["method"], ranks)))


def of_its_bound(asked: Asked) -> float | None:
    """The bound of weights and gradients over what a mode's runs counted, the least."""
    return min(_shares_of_bound(asked.rows, asked.given["method"]), default=None)


def as_told(asked: Asked) -> float | None:
    """How near counted bytes are to those of a formula or a plan, all or each part, at worst."""
    told = asked.given
    quantities = OWN if told["all"] else PARTS + (BETWEEN if told["messages"] else ())
    rows, source = asked.rows, told["source"]
    if source == FORMULA and pick(rows, source=source, quantity=quantities).empty:
        raise NoClaim
    return quotient(1.0, _worst(rows, quantities, source, told["variant"]))


def _by_formula(ranks: float | None) -> str:
    """The ratio by the formula, which knows no activations, in words."""
    if ranks is None:
        return ""
    ratio = volumes.bound(DP, int(ranks)) / volumes.bound(PP, int(ranks))
    return f"; of weights and gradients alone {ratio:.2f} on {ranks:g} devices"


def _shares_of_bound(rows: pd.DataFrame, method: str) -> list[float]:
    part, found = pick(rows, method=method), []
    for ranks in sorted(set(pick(part, source=MEASURED)["ranks"].dropna())):
        moved = _total(part, WEIGHTS, ranks=ranks)
        weights = one(part, quantity="weights", ranks=ranks)
        if moved and weights:
            found.append(volumes.bound(method, int(ranks)) * weights / moved)
    return found


def _total(rows: pd.DataFrame, quantities: tuple[str, ...] = OWN, **where: Any) -> float | None:
    part = pick(rows, source=MEASURED, quantity=quantities, **where).dropna(subset=["value"])
    return float(part["value"].sum()) if len(part) == len(quantities) else None


def _worst(
    rows: pd.DataFrame, quantities: tuple[str, ...], source: str, variant: str
) -> float | None:
    """The largest factor between counted bytes and expected ones, of any run and quantity."""
    counted, expected = (
        pick(rows, quantity=quantities, **where).dropna(subset=["value"])
        for where in (
            {"source": MEASURED, "method": HARMONY + SWAPPED},
            {"source": source, "variant": variant},
        )
    )
    both = counted.merge(
        expected.drop_duplicates(["key", "quantity"]),
        on=["key", "quantity"],
        suffixes=("", "_told"),
    )
    factors = []
    for values in zip(both["value"], both["value_told"], strict=True):
        small, large = sorted(values)
        factors.append(large / small if small else float("inf") if large else 1.0)
    return max(factors, default=None)


METRICS = by_name(dp_over_pp, one_over_most, swapped_over, of_its_bound, as_told)
