"""What Harmony's verdicts share: why a processor cannot tell speeds, and equality as a claim."""

from __future__ import annotations

import pandas as pd

from workbench.exhibits.harmony.table import MEASURED
from workbench.figures.verdict import Verdict, at_least

SHARED = (
    "without GPUs the ranks share the processor and its memory, so bytes that are not moved save "
    "no time here"
)


def cannot_tell(rows: pd.DataFrame) -> str:
    """Why measured rows say nothing of speed; empty where they do."""
    part = rows[(rows["source"] == MEASURED) & rows["value"].notna()]
    return SHARED if "cpu" in set(part["device"]) else ""


def within(
    claim: str, here: float | None, expected: float | None, share: float, series: tuple[str, str]
) -> Verdict:
    """A claim that two numbers are equal up to a share. What is shown is the smaller one over the
    larger one."""
    ratio = None
    if here is not None and expected:
        ratio = min(here, expected) / max(here, expected)
    return at_least(claim, None, ratio, 1 - share, series)
