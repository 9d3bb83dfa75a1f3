"""Verdicts: a claim, what was published, what was seen here, and whether it holds and why.

Absolute numbers of other hardware prove nothing, so claims are ratios. A claim that this machine cannot
test is not judged; the reason stands beside it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pandas as pd

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "cannot be told here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One row of an exhibit's verdict table."""

    claim: str
    published: float | None
    """The published ratio."""
    here: float | None
    """The ratio of this run's rows."""
    source: str
    """Where `here` comes from: measured or simulated."""
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
    source: str,
    *,
    why: str = "",
    testable: bool = True,
) -> Verdict:
    """A claim of the form: the ratio is at least `threshold`."""
    if here is None:
        verdict, why = UNTESTED, why or "a value is missing: see the figure"
    elif not testable:
        verdict = UNTESTED
    else:
        verdict = HOLDS if here >= threshold else FAILS
    return Verdict(
        claim=claim, published=published, here=here, source=source, verdict=verdict, why=why
    )


def as_table(verdicts: list[Verdict]) -> pd.DataFrame:
    """The verdicts as people read them."""
    rows = []
    for verdict in verdicts:
        row = asdict(verdict)
        row["here / published"] = verdict.ratio
        rows.append(row)
    columns = ["claim", "published", "here", "here / published", "source", "verdict", "why"]
    return pd.DataFrame(rows, columns=columns)
