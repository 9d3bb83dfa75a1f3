"""Claims of figure 12 on bytes: estimates, plans and counted runs against each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import BETWEEN, PARTS
from workbench.exhibits.harmony import volumes
from workbench.exhibits.harmony.sizes import DP, DP_SWAP, HARMONY, ONE, PP, PP_SWAP, SWAPPED
from workbench.exhibits.harmony.table import PLANNED, RAN
from workbench.figures.rows import (
    BEFORE,
    FORMULA,
    MEASURED,
    OUR_PLAN,
    REFERENCE,
    SIMULATED,
    label_of,
    one,
    pick,
    quotient,
)
from workbench.figures.verdict import Verdict, at_least, within

MODEL, GPUS = "gpt2_xl", 4
"""Model and number of GPUs of the published schedules."""
WEIGHTS = ("weights_in", "gradients_out")
LINK = (*WEIGHTS, "activations_in", "activations_out")
"""Parts of the host link's traffic that estimates and plans name."""
OWN = ("load", "store")
"""Parts that every runtime counts; ours also `PARTS` of it, and `BETWEEN`."""
EQUAL = 0.01


def claims(rows: pd.DataFrame) -> Iterator[Verdict]:
    """Fewer bytes than DP and than swapping, as many on any number of devices, weights within their
    bounds, and all of it as the formula and the plan say."""
    place = {"model": MODEL, "ranks": GPUS, "minibatch": 64, "quantity": LINK}
    told, ours = (
        {method: sum(pick(rows, method=method, **place, **whose)["value"]) for method in HARMONY}
        for whose in ({"source": REFERENCE}, {"variant": OUR_PLAN})
    )
    words = (
        "GPT2-XL on 4 GPUs, minibatch 64: Harmony-PP moves fewer bytes over the host's link than "
        "Harmony-DP (DP over PP)"
    )
    ratios = (quotient(each[DP], each[PP]) for each in (told, ours))
    yield at_least(words, *ratios, 1.0, PLANNED)
    own = {
        (method, ranks): _total(rows, method=method, ranks=ranks)
        for method in HARMONY + SWAPPED
        for ranks in sorted(set(pick(rows, source=MEASURED)["ranks"].dropna()))
    }
    several = sorted(ranks for (method, ranks), total in own.items() if method == PP and total)
    most = several[-1] if several else None
    both = max((ranks for ranks in several if own.get((DP, ranks))), default=None)
    words = (
        "Harmony-PP moves fewer bytes than Harmony-DP on the most devices that both ran on (DP "
        f"over PP{_by_formula(both)})"
    )
    there = quotient(told[DP], told[PP]) if both == GPUS else None
    ratio = quotient(own.get((DP, both)), own.get((PP, both)))
    yield at_least(words, there, ratio, 1.0, RAN)
    words = (
        "Harmony-PP moves no more bytes on the most devices that ran than one device does (one "
        "over most, within 1 %)"
    )
    yield at_least(words, None, quotient(own.get((ONE, 1)), own.get((PP, most))), 1 - EQUAL, RAN)
    for method, swapped in ((PP, PP_SWAP), (DP, DP_SWAP)):
        ranks = max(
            (ranks for name, ranks in own if name == swapped and own[name, ranks]), default=0
        )
        words = (
            f"{label_of(method)} moves fewer bytes than {label_of(swapped)}, on as many "
            "devices of as much memory (the latter over the former)"
        )
        ratio = quotient(own.get((swapped, ranks)), own.get((method, ranks)))
        yield at_least(words, None, ratio, 1.0, RAN)
    yield from _bounds(rows)
    yield from _equalities(rows)


def _by_formula(ranks: float | None) -> str:
    """The ratio by the formula, which knows no activations, in words."""
    if ranks is None:
        return ""
    ratio = volumes.bound(DP, int(ranks)) / volumes.bound(PP, int(ranks))
    return f"; of weights and gradients alone {ratio:.2f} on {ranks:g} devices"


def _bounds(rows: pd.DataFrame) -> list[Verdict]:
    """Weights in and gradients out, as they were counted, of every run of both modes."""
    return [
        at_least(
            f"{label_of(method)} moves weights and gradients of at most {words} the weights, "
            "whatever the number of devices (the bound over what was counted, the least)",
            None,
            min(_shares_of_bound(rows, method), default=None),
            1.0,
            RAN,
        )
        for method, words in ((PP, "three times"), (DP, "2 N + 1 times"))
    ]


def _shares_of_bound(rows: pd.DataFrame, method: str) -> list[float]:
    part, found = pick(rows, method=method), []
    for ranks in sorted(set(pick(part, source=MEASURED)["ranks"].dropna())):
        moved = _total(part, WEIGHTS, ranks=ranks)
        weights = one(part, quantity="weights", ranks=ranks)
        if moved and weights:
            found.append(volumes.bound(method, int(ranks)) * weights / moved)
    return found


def _equalities(rows: pd.DataFrame) -> Iterator[Verdict]:
    """Verdicts on counted bytes, all of them and by part, against expected ones."""
    link = "weights, gradients, activations and sums that every run counted are each"
    across = "weights, gradients, activations, sums and messages that every run counted are each"
    for whose, source, variant, what, parts in (
        ("the formula of its packs", FORMULA, "", link, PARTS),
        ("its plan", SIMULATED, BEFORE, across, PARTS + BETWEEN),
    ):
        for told, quantities in (("all bytes that every run counted are", OWN), (what, parts)):
            if source == FORMULA and pick(rows, source=source, quantity=quantities).empty:
                continue
            worst = _worst(rows, quantities, source, variant)
            words = f"{told} what {whose} says, within 1 % (the worst one)"
            yield within(words, worst, None if worst is None else 1.0, EQUAL, RAN)


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
