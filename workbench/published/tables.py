"""STRONGHOLD's published values as a table, with the origin of each and its soundness.

A value is *sound* when the run behind it trained what the figure says it trained. The column
``defects`` names what is wrong with a run, sound or not; ``note`` spells it out.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).resolve().parent


def published() -> pd.DataFrame:
    """All published values.

    Columns: ``figure`` (``memory`` and ``none`` for values that no figure shows), ``method``,
    ``layers``, ``window`` (missing where there is none), ``value``, ``unit``, ``statistic``,
    ``spread`` (standard deviation of the log points), ``pair`` (figure 7a: the baseline whose
    largest model it is), ``source`` (always ``published``), ``origin`` (the table or log it was
    read from), ``sound``, ``defects``, ``note``.
    """
    meaning = defects()["meaning"]
    table = pd.read_csv(
        FOLDER / "stronghold.csv",
        dtype={"figure": str, "window": "Int64"},
        keep_default_na=False,
        na_values={"window": [""], "spread": [""]},
    )
    table["sound"] = table["sound"] == "yes"
    table["note"] = [
        "; ".join(meaning[defect] for defect in defects.split()) for defects in table["defects"]
    ]
    table = table.rename(columns={"source": "origin"})
    table.insert(table.columns.get_loc("origin"), "source", "published")
    return table


def defects() -> pd.DataFrame:
    """What is wrong with published runs, by the names in ``defects``: their ``meaning``, and
    ``short`` for figures, empty of what does not make a run unsound."""
    path = FOLDER / "stronghold_defects.csv"
    return pd.read_csv(path, index_col="defect", keep_default_na=False)
