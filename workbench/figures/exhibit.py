"""What an exhibit is: a claim, the runs that test it, a drawing, and a verdict.

Exhibits read rows (rows.py) and never start a run; `workbench.exhibits.session` runs what `specs`
asks for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures.sizes import Size
from workbench.figures.verdict import Verdict


class Exhibit(Protocol):
    """The members every module of an exhibit has."""

    FIGURE: str
    """As in the paper, e.g. ``8a``; a name where the paper has no such figure."""
    TITLE: str
    SECTION: str
    """Where the paper shows it."""
    CLAIM: str
    """In one sentence or two."""

    def specs(self, size: Size, largest: dict[str, int]) -> list[RunSpec]:
        """The runs to make; `largest` is figure 6a's outcome: layers by method, as far as known."""

    def rows(self, records: list[RunRecord]) -> pd.DataFrame:
        """Measured and predicted values of those runs."""

    def draw(self, figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
        """Draw on an empty matplotlib figure. `same_scale`: published values share the axes."""

    def verdicts(self, rows: pd.DataFrame, source: str, variant: str) -> list[Verdict]:
        """Judge the claim by the rows of one series."""


FIGURES = ("6a", "7a", "8a", "8b", "9")
"""The paper's."""
HERE_OFFLOAD, HERE_LANES, HERE_SERVERS = HERE = ("here_offload", "here_lanes", "here_servers")
"""This project's own: what it measured on named hardware, steps of it lane by lane, and what it
measured on servers of several GPUs."""
HARMONY = {
    f"harmony_{name}": f"harmony.{module}"
    for name, module in {
        **{str(number): f"fig{number}" for number in (8, 10, 12, 13, 17, 18, 21)},
        "table1": "table1",
    }.items()
}
"""Those of Harmony (VLDB'22), and the module of each."""
EXHIBITS = (*FIGURES, *HERE, *HARMONY)


def find(figure: str) -> Exhibit:
    """The exhibit by its number, ``8a`` or ``fig8a``, or by its name, ``harmony_8``.

    Raises ValueError naming the known ones.
    """
    name = figure.lower().removeprefix("fig")
    if name not in EXHIBITS:
        raise ValueError(f"unknown exhibit {figure!r}; known: {', '.join(map(name_of, EXHIBITS))}")
    return import_module(f"workbench.figures.{HARMONY.get(name) or name_of(name)}")


def name_of(figure: str) -> str:
    """An exhibit's name on the command line and of its files: ``fig8a``, ``harmony_8``."""
    return f"fig{figure}" if figure in FIGURES else figure


def notebook_of(figure: str) -> str:
    """The stem of an exhibit's notebook: ``stronghold_8a``, ``harmony_8``, ``here_offload``."""
    return f"stronghold_{figure}" if figure in FIGURES else figure


def words_of(figure: str) -> str:
    """An exhibit in a sentence: ``figure 8a``, ``Harmony, table 1``, ``exhibit here_offload``."""
    if figure in HARMONY:
        number = figure.removeprefix("harmony_")
        return "Harmony, " + ("table 1" if number == "table1" else f"figure {number}")
    return f"figure {figure}" if figure in FIGURES else f"exhibit {figure}"


def value(
    rows: pd.DataFrame, source: str, variant: str | None = None, **where: Any
) -> float | None:
    """The one value of a series with these columns; None when it is missing.

    Where a simulated series has no such row at all, the other one answers: a simulation of our own
    runtime is compared with the baselines as they were published.
    """
    part = rows[rows["source"] == source]
    for column, wanted in where.items():
        part = part[part[column] == wanted]
    if variant is not None and (source != "simulated" or (part["variant"] == variant).any()):
        part = part[part["variant"] == variant]
    part = part.dropna(subset=["value"])
    return float(part["value"].iloc[0]) if len(part) else None


def advantage(
    rows: pd.DataFrame, source: str, variant: str | None = None, *, over: str
) -> float | None:
    """STRONGHOLD's value of a series over that of a method."""
    ours, theirs = (value(rows, source, variant, method=name) for name in ("stronghold", over))
    return quotient(ours, theirs)


def quotient(a: float | None, b: float | None) -> float | None:
    """a / b where both are there."""
    return a / b if a is not None and b else None
