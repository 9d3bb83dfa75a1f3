"""The points of a sweep as pages name them: which run is which, by what sets it apart."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.core.spec import RunSpec, flat
from workbench.runs.axis import format_axis
from workbench.runs.columns import label, label_of

ALWAYS = ("method", "layers")
"""Named even where all runs of a sweep have the same."""


def varied(specs: Iterable[RunSpec]) -> list[dict[str, str]]:
    """For each spec the fields in which the specs that have them differ, as text; method and layers
    always."""
    rows = [flat(spec) for spec in specs]
    if not rows:
        return []
    every = dict.fromkeys(name for row in rows for name in row)
    differing = [name for name in every if len({r[name] for r in rows if name in r}) > 1]
    names = dict.fromkeys((*ALWAYS, *differing))
    return [{n: format_axis(n, [row[n]]) for n in names if n in row} for row in rows]


def in_words(changes: dict[str, str]) -> str:
    """One line: ``STRONGHOLD, 8 layers, batch 4``.

    >>> in_words({"method": "l2l", "layers": "8", "batch": "4"})
    'L2L, 8 layers, batch 4'
    """
    rest = [f"{label(name)} {text}" for name, text in changes.items() if name not in ALWAYS]
    return ", ".join([label_of(changes["method"]), f"{changes['layers']} layers", *rest])
