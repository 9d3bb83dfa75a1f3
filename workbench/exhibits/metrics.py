"""Metrics of claims: a number of the rows, most often a ratio of two selections.

A metric of one exhibit alone is a function of that exhibit, called by its name (`Exhibit.metrics`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from workbench.exhibits.claim_rows import Claim, Series, Where
from workbench.figures.rows import one, pick, quotient
from workbench.figures.verdict import MISSING


class Found(NamedTuple):
    """A metric's value, and how it came about."""

    value: float | None
    why: str = ""
    why_not: str = ""
    cannot: str = ""
    told: float | None = None
    """The published ratio, where no series has it."""
    names: Mapping[str, Any] = MappingProxyType({})
    """Facts that the sentence names."""
    rounds: tuple[str, str] = ("", "")
    """Rounds in which the two runs of a comparison were made."""
    fair: bool = True
    """Whether all else is as the goal wants it."""


class Undecided(Exception):
    """Why the rows give no result: what was measured all the same, and the verdict."""

    def __init__(self, why: str, measured: str = "", verdict: str = MISSING) -> None:
        self.why, self.measured, self.verdict = why, measured, verdict


class NoClaim(Exception):
    """There is nothing that could be claimed of these rows."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Question to a metric: a claim whose names are filled in, and a series of rows."""

    claim: Claim
    rows: pd.DataFrame
    """All of them."""
    series: Series
    every: pd.DataFrame
    """With repeated runs, where there are any."""

    @cached_property
    def part(self) -> pd.DataFrame:
        """The rows that the claim is about."""
        return pick(self.rows, **self.claim.where)

    @property
    def given(self) -> dict[str, Any]:
        return self.claim.given

    def of_series(self) -> pd.DataFrame:
        """The rows of the claim and of the series."""
        source, variant = self.series
        return pick(self.part, source=source, variant=variant)

    def value(self, *selections: Where) -> float | None:
        """The value of rows with all of these columns, in the series unless they name another."""
        where = {"source": self.series[0], "variant": self.series[1]}
        for each in selections:
            where |= each
        take = where.pop("take", "first")
        if take == "first":
            return one(self.part, **where)
        values = pick(self.part, **where)["value"].dropna()
        if take == "sum":
            return float(values.sum())
        if values.empty:
            return None
        return float(values.min() if take == "least" else values.max())

    def ratio(self, *selections: Where) -> float | None:
        """The claim's ratio, of rows with these columns."""
        return quotient(
            *(self.value(each, *selections) for each in (self.claim.of, self.claim.over))
        )

    def inside(self, series: Series) -> Asked:
        return replace(self, series=series)


Metric = Callable[[Asked], Found | float | None]
"""Raises `Undecided` where a goal's rows give no result, `NoClaim` where nothing is claimed."""


def ratio(asked: Asked) -> float | None:
    """One value over another."""
    return asked.ratio()


def of_ratios(asked: Asked) -> float | None:
    """The ratio of some rows over that of others."""
    return quotient(asked.ratio(asked.claim.at), asked.ratio(asked.claim.beside))


def least_ratio(asked: Asked) -> float | None:
    """The smallest ratio of several; None where one of them is not there."""
    by = asked.claim.by
    ways = (dict(zip(by, values, strict=True)) for values in product(*by.values()))
    ratios = [asked.ratio(way) for way in ways]
    return None if None in ratios else min(ratios)


def limit_over(asked: Asked) -> float | None:
    """A limit over a value."""
    return quotient(asked.given["limit"], asked.value(asked.claim.of))


def first_over_last(asked: Asked) -> Found:
    """The value at the smallest x over that at the largest; None for fewer than two."""
    part = asked.of_series().dropna(subset=["value"]).sort_values("x", kind="stable")
    if len(part) < 2:
        return Found(None)
    first, last = part.iloc[0], part.iloc[-1]
    return Found(float(first["value"] / last["value"]), names={"first": first, "last": last})


def straightness(asked: Asked) -> float | None:
    """R squared of a straight line through the values over x; None for fewer than three."""
    part = asked.of_series().dropna(subset=["value"])
    if len(part) < 3:
        return None
    return float(part["x"].astype(float).corr(part["value"].astype(float)) ** 2)


def by_name(*metrics: Metric) -> dict[str, Metric]:
    """Metrics as claims name them: ``least ratio`` is `least_ratio`."""
    return {metric.__name__.replace("_", " "): metric for metric in metrics}


METRICS: Mapping[str, Metric] = MappingProxyType(
    by_name(ratio, of_ratios, least_ratio, limit_over, first_over_last, straightness)
)
