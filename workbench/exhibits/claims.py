"""Holds the rows of an exhibit against its claims and goals.

Both are rows of data (`claim_rows.py`). A claim is shown as a ratio beside the published one
(`Verdict`). A goal is this project's own: its number is written in a unit (`Claim.form`), and it
stays open where its runs are missing, broke, or are of different rounds, since machines of one kind
differ from day to day, and so does the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.exhibits.claim_rows import Claim, Series, bound, claims_of
from workbench.exhibits.metrics import METRICS, Asked, Found, Metric, NoClaim, Undecided
from workbench.figures.verdict import FAILS, HOLDS, MISSING, UNTESTED, Verdict, at_least, busy_in


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One row of the table of goals."""

    goal: str
    measured: str
    """With its unit; empty where nothing was."""
    verdict: str
    why: str


class Judge:
    """Holds the rows of an exhibit against its claims."""

    def __init__(
        self,
        claims: Iterable[Claim],
        metrics: Mapping[str, Metric],
        labels: Mapping[str, Callable[[Any], str]],
        cannot: Callable[[Asked], str],
    ) -> None:
        """`metrics`: the exhibit's own, by name. `labels`: of values, for sentences. `cannot`: why
        times of these rows tell nothing; empty where they do."""
        self._claims, self._metrics = claims, {**METRICS, **metrics}
        self._labels, self._cannot = labels, cannot

    def verdicts(
        self, rows: pd.DataFrame, series: Series | None = None, every: pd.DataFrame | None = None
    ) -> list[Any]:
        """Verdicts or goals, in the order of their rows. `series` judges what names none; `every`:
        the rows with those of repeated runs."""
        out = []
        for row in self._claims:
            for claim, names in claims_of(row, rows, {}):
                asked = Asked(
                    claim=bound(claim, names), rows=rows, series=claim.judged or series or ("", ""),
                    every=rows if every is None else every,
                )  # fmt: skip
                try:
                    out.append((self._goal if claim.form else self._verdict)(asked, names))
                except NoClaim:
                    continue
        return out

    def _found(self, asked: Asked) -> Found:
        found = self._metrics[asked.claim.metric](asked)
        return found if isinstance(found, Found) else Found(found)

    def _sentence(self, text: str, asked: Asked, names: Mapping[str, Any], found: Found) -> str:
        said = {
            name: self._labels[name](value) if name in self._labels else value
            for name, value in names.items()
        }
        bounds = {"least": asked.claim.least, "most": asked.claim.most}
        return text.format_map({**bounds, **asked.given, **said, **found.names})

    def _verdict(self, asked: Asked, names: Mapping[str, Any]) -> Verdict:
        claim = asked.claim
        if claim.untested:
            told = {"published": claim.told, "here": None, "judged": "", "why": claim.untested}
            return Verdict(claim=claim.words, verdict=UNTESTED, **told)
        told, found = claim.told, self._found(asked)
        if found.value is None and claim.optional:
            raise NoClaim
        if isinstance(told, tuple):
            told = self._found(asked.inside(told)).value
        busy = cannot = ""
        if claim.timed is not None:
            busy = busy_in(asked.part, *asked.series, *claim.timed)
            cannot = self._cannot(asked)
        return at_least(
            self._sentence(claim.words, asked, names, found),
            found.told if told is None else told,
            found.value,
            claim.least,
            asked.series,
            why=found.why or claim.why,
            cannot=found.cannot or (claim.on_cores if cannot else "") or cannot,
            busy=busy,
            why_not=found.why_not or claim.why_not,
            is_ratio=claim.shown,
        )

    def _goal(self, asked: Asked, names: Mapping[str, Any]) -> Goal:
        claim, found = asked.claim, Found(None)
        try:
            found = self._found(asked)
        except Undecided as open_:
            measured, verdict, why = open_.measured, open_.verdict, open_.why
        else:
            measured, why = claim.form.format(found.value), found.why
            verdict = HOLDS if found.fair and claim.least <= found.value <= claim.most else FAILS
            if found.rounds[0] != found.rounds[1]:
                verdict = MISSING
                why += "; to be measured in one round: now {} beside {}".format(*found.rounds)
        text = self._sentence(claim.words, asked, names, found)
        return Goal(goal=text, measured=measured, verdict=verdict, why=why)


def goals_table(found: list[Goal]) -> pd.DataFrame:
    """The goals as people read them."""
    return pd.DataFrame(found, columns=["goal", "measured", "verdict", "why"])
