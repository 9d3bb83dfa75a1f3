"""Verdicts: a claim, what was published, what was seen here, and whether it holds and why.

Absolute numbers of other hardware prove nothing, so claims are ratios. A claim that this machine
cannot test is not judged; the ratio is shown and the reason stands beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

from workbench.figures.rows import HERE, MEASURED
from workbench.figures.style import name_of

HOLDS, FAILS = "holds", "does not hold"
UNTESTED, MISSING = "cannot be told here", "no result"
BUSY = "cannot be told: the machine was busy"
"""Where others used too much of the machine (`record.BUSY`); running it again may tell."""

NO_OVERLAP = (
    "without a GPU DeepSpeed copies and computes one after the other and its device is the same "
    "memory, so its speed here says nothing about its speed on one"
)
SHARED_CORES = (
    "without GPUs the ranks share the processor and its memory, so bytes that are not moved save "
    "no time here"
)
DEEPSPEED = ("zero-offload", "zero-infinity")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One row of an exhibit's verdict table."""

    claim: str
    published: float | None
    """The published ratio."""
    here: float | None
    """The ratio of the judged series."""
    judged: str
    """The series: measured, or simulated in a variant."""
    verdict: str
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the published one."""
        return self.here / self.published if self.here and self.published else None


def at_least(
    claim: str,
    published: float | None,
    here: float | None,
    threshold: float,
    series: tuple[str, str],
    *,
    why: str = "",
    cannot: str = "",
    busy: str = "",
    why_not: str = "",
    is_ratio: bool = True,
) -> Verdict:
    """A claim of the form: the ratio is at least `threshold`. What is no ratio (`is_ratio`) decides
    and is not shown as one: `why` says it in its own unit.

    `why` stands beside either answer, `why_not` beside a failure, else the bound that was missed;
    `cannot` is the reason for not judging, where there is one, and `busy` (`busy_in`) that of a
    machine which was: every claim on times that were measured here asks it.
    """
    if here is None:
        verdict, why = MISSING, "not run, or run without a result: the figure says which"
    elif cannot:
        verdict, why = UNTESTED, cannot
    elif busy:
        verdict, why = BUSY, busy
    elif here >= threshold:
        verdict = HOLDS
    else:
        verdict, why = FAILS, why_not or why or f"{here:.3g}, below {threshold:.3g}"
    return Verdict(
        claim=claim,
        published=published if is_ratio else None,
        here=here if is_ratio else None,
        judged=name_of(*series),
        verdict=verdict,
        why=why,
    )


def no_speed_of(rows: pd.DataFrame, source: str, method: str) -> str:
    """Why a series cannot tell how fast a library is; empty where it can."""
    part = rows[(rows["source"] == source) & (rows["method"] == method)]
    on_cpu = source == "measured" and "cpu" in set(part["device"])
    return NO_OVERLAP if on_cpu and method in DEEPSPEED else ""


def busy_in(rows: pd.DataFrame, source: str = MEASURED, variant: str = "", *methods: str) -> str:
    """How busy the machine was while rows of a series, of these methods or of all, were measured;
    empty where it was not, and of rows that do not say."""
    if "busy" not in rows:
        return ""
    part = rows[(rows["source"] == source) & (rows["variant"] == variant) & (rows["busy"] != "")]
    part = part[part["value"].notna() & (part["method"].isin(methods) if methods else True)]
    told = [f"{row.label}: {row.busy}" for row in part.itertuples()]
    more = f" and {len(told) - 2} more" if len(told) > 2 else ""
    return "; ".join(told[:2]) + more


def series_to_judge(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Measured values where there are some, else the simulations of the published machine.

    Measurements of another setting than the exhibit's (a variant: other numbers, named hardware)
    replace no simulation; they are judged beside it.
    """
    pairs = dict.fromkeys(zip(rows["source"], rows["variant"], strict=True))
    measured = [pair for pair in pairs if pair == ("measured", "")]
    elsewhere = [pair for pair in pairs if pair[0] == "measured" and pair[1]]
    simulated = [pair for pair in pairs if pair[0] == "simulated" and pair[1] != HERE]
    return [*(measured or simulated), *elsewhere] or [("measured", "")]


def as_table(verdicts: list[Verdict], reference: str = "published") -> pd.DataFrame:
    """The verdicts as people read them: ``measured ÷ published``, where all that is judged was."""
    kinds = {re.split("[: ]", v.judged)[0] for v in verdicts}
    over = f"{kinds.pop() if len(kinds) == 1 else 'here'} ÷ {reference}"
    columns = ["claim", f"{reference} ratio", "ratio here", over, "judged", "verdict", "why"]
    rows = [(v.claim, v.published, v.here, v.ratio, v.judged, v.verdict, v.why) for v in verdicts]
    return pd.DataFrame(rows, columns=columns)


def cannot_tell(rows: pd.DataFrame) -> str:
    """Why measured rows say nothing of speed; empty where they do."""
    part = rows[(rows["source"] == MEASURED) & rows["value"].notna()]
    return SHARED_CORES if "cpu" in set(part["device"]) else ""
