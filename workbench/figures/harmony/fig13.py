"""Harmony figure 13: losses of fine-tuning on pairs, however many devices there are (curves.py)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.figures.harmony import curves
from workbench.figures.harmony.sizes import HarmonySize
from workbench.figures.harmony.table import join
from workbench.figures.verdict import Verdict
from workbench.runs.record import RunRecord
from workbench.runs.spec import RunSpec
from workbench.runs.store import Store

FIGURE, SECTION = "harmony_13", "VLDB'22, figure 13: BERT-Large on MRPC"
TITLE = "Losses of fine-tuning"
CLAIM = (
    "Harmony fine-tunes BERT as one device does: the loss curves of one device, data parallel and "
    "pipeline coincide."
)
PLANS = ()
"""It shows no plans."""


def specs(size: HarmonySize, largest: dict[str, int]) -> list[RunSpec]:
    """One device, and both modes."""
    return curves.specs(size, size.pairs)


def rows(records: list[RunRecord], store: Store, size: HarmonySize) -> pd.DataFrame:
    """Losses by step."""
    return curves.rows(records, size.pairs)


def known(size: HarmonySize, plans: pd.DataFrame) -> pd.DataFrame:
    """No value of the original is known."""
    return join()


def absent(size: HarmonySize, why: str) -> pd.DataFrame:
    """What did not run."""
    return curves.absent(size.pairs, why)


def draw(figure: Any, rows: pd.DataFrame) -> None:
    """Losses and their differences."""
    curves.draw(figure, rows)


def verdicts(rows: pd.DataFrame) -> list[Verdict]:
    """Whether they are equal."""
    return curves.verdicts(rows)
