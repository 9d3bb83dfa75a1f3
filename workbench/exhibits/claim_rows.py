"""A claim as a row of data, and the claims that a row stands for.

A row lies in an exhibit's TOML file (`words.py`): a sentence, a metric (`metrics.py`), the rows
that the metric takes (selections of columns), a bound, and the series that judges. A row with
`each` or `found` is a claim for each of several models or methods, which its sentence and its
selections name in braces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from workbench.core.schema import read_as
from workbench.figures.rows import pick

Where = dict[str, Any]
"""A selection: column -> value, or a list of any of them. In `of` and `over` also `take`, the value
of several rows: ``first`` (if left out), ``least``, ``most`` or ``sum``."""
Series = tuple[str, str]
"""Source and variant."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row: a sentence, and how it is judged."""

    words: str = ""
    """The sentence, with names in braces of what varies, of bounds, and of facts that the metric
    found."""
    metric: str = "ratio"
    where: Where = field(default_factory=dict)
    """The rows that it is about."""
    of: Where = field(default_factory=dict)
    """Rows of the upper part of a ratio."""
    over: Where = field(default_factory=dict)
    """Rows of its lower part."""
    at: Where = field(default_factory=dict)
    """Rows of the upper ratio, in a ratio of ratios."""
    beside: Where = field(default_factory=dict)
    """The rows of the lower one."""
    by: dict[str, list[Any]] = field(default_factory=dict)
    """Columns and values, for all of which together the least ratio counts."""
    given: dict[str, Any] = field(default_factory=dict)
    """Numbers and words of the exhibit's own metric."""
    least: float = float("-inf")
    most: float = float("inf")
    form: str = ""
    """Format of a goal's number, with its unit; empty for claims."""
    judged: Series | None = None
    """The series that judges; None: each series that the exhibit names."""
    told: Series | float | None = None
    """The series that has the published ratio, or the ratio itself."""
    timed: list[str] | None = None
    """Methods whose times decide, of an empty list all: on a busy machine, and where ranks share a
    processor, nothing can be told."""
    on_cores: str = ""
    """Why nothing can be told on a processor, if not for the common reason."""
    untested: str = ""
    """Why nobody can tell at all."""
    why: str = ""
    why_not: str = ""
    """Reasons beside either answer, and beside a failure."""
    shown: bool = True
    """Whether the number is a ratio that people read."""
    optional: bool = False
    """Whether nothing is claimed where there is no number."""

    each: list[dict[str, Any]] = field(default_factory=list)
    """Values of what varies."""
    found: list[str] = field(default_factory=list)
    """Columns whose values, in the order of the rows, are what varies; selections by names that are
    not known yet are left out."""
    but: Where = field(default_factory=dict)
    """Rows in which nothing is found."""
    when: str = ""
    """Name in `each` without which there is no such claim."""
    parts: list[Where] = field(default_factory=list)
    """Claims for each of what varies; each has what it does not say from this one."""


def filled(value: Any, names: Mapping[str, Any]) -> Any:
    """A selection's value with the names in it filled in, a single one as it is; raises KeyError
    for a name that is not known yet."""
    if isinstance(value, str) and "{" in value:
        whole = value[1:-1] if value[0] == "{" and value.find("}") == len(value) - 1 else ""
        return names[whole] if whole else value.format_map(names)
    if isinstance(value, dict):
        return {name: filled(each, names) for name, each in value.items()}
    return tuple(filled(each, names) for each in value) if isinstance(value, list) else value


def claims_of(
    claim: Claim, rows: pd.DataFrame | None, names: Mapping[str, Any]
) -> Iterator[tuple[Claim, dict[str, Any]]]:
    """The claims that a row stands for, each with what its names stand for."""
    for more in claim.each or (_found(claim, rows, names) if claim.found else [{}]):
        known = {**names, **more}
        if claim.when and not known.get(claim.when):
            continue
        if not claim.parts:
            yield claim, known
        for part in claim.parts:
            yield from claims_of(_under(claim, part), rows, known)


def stated(claims: Iterable[Claim]) -> list[Claim]:
    """The claims of rows in which nothing varies by what was measured."""
    rows = (row for row in claims if not row.found)
    return [bound(each, names) for row in rows for each, names in claims_of(row, None, {})]


def _under(claim: Claim, part: Where) -> Claim:
    """A claim for each of what varies: what it says, and of the rest what the one above says."""
    own = read_as(Claim, part, claim.words or "a part of a claim")
    says = {name: getattr(own, name) for name in part}
    says |= {n: getattr(claim, n) | each for n, each in says.items() if isinstance(each, dict)}
    above = {"each": [], "found": [], "but": {}, "when": "", "parts": []}
    return replace(claim, **above | says)


def _found(claim: Claim, rows: pd.DataFrame, names: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    part = pick(rows, **dict(_known(claim.where, names, keep=False)))
    for name, value in claim.but.items():
        part = part[part[name] != value]
    for values in dict.fromkeys(zip(*(part[name] for name in claim.found), strict=True)):
        yield dict(zip(claim.found, values, strict=True))


def bound(claim: Claim, names: Mapping[str, Any]) -> Claim:
    """The claim with all names in its selections filled in. A text of `given` that names what only
    its metric knows is the metric's to fill in."""
    selections = ("where", "of", "over", "at", "beside", "by", "timed")
    known = {each: filled(getattr(claim, each), names) for each in selections}
    return replace(claim, **known, given=dict(_known(claim.given, names)))


def _known(told: Where, names: Mapping[str, Any], keep: bool = True) -> Iterator[tuple[str, Any]]:
    """The columns or words whose names are known; those that are not as they are, or (not `keep`)
    left out."""
    for name, value in told.items():
        try:
            yield name, filled(value, names)
        except KeyError:
            if keep:
                yield name, value
