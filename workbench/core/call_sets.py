"""Sets of a module's calls in words, such as ``depth=9 0-3,5 4,6-8``.

A word a set, in the order in which they run: numbers of calls and spans of numbers. Words before
them say which calls there are, as the flags of ``workbench partition`` do: modules below ``depth``
others are one call, and so are those of the classes of ``basic``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

EXAMPLE = "depth=9 0-3,5 4,6-8"
_SPAN = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_CLASS = re.compile(r"[^\W\d]\w*")
MOST = 1_000_000
"""Calls of a module."""


@dataclass(frozen=True, kw_only=True)
class CallSets:
    """Calls, which have the numbers that their names begin with, of each set."""

    sets: tuple[tuple[int, ...], ...]
    depth: int | None = None
    basic: tuple[str, ...] = ()
    inside: str = ""
    """Beginning of the paths in a module that calls the one whose calls these are, such as
    ``module.``; its calls behind them are in the last set."""
    names: frozenset[str] = frozenset()
    """Names of the calls, where they are known."""

    @property
    def set_of(self) -> dict[int, int]:
        """Call -> its set."""
        return {call: number for number, own in enumerate(self.sets) for call in own}

    def __str__(self) -> str:
        words = [] if self.depth is None else [f"depth={self.depth}"]
        words += [f"basic={','.join(self.basic)}"] if self.basic else []
        return " ".join([*words, *map(_spans, self.sets)])


def read_sets(text: str) -> CallSets:
    """Read sets in words. Raises ValueError for words that are none, and a call that stands
    twice."""
    words, depth, basic = text.split(), None, ()
    while words and "=" in words[0]:
        key, _, value = words.pop(0).partition("=")
        if key == "depth" and value.isdecimal() and int(value):
            depth = int(value)
        elif key == "basic" and all(map(_CLASS.fullmatch, value.split(","))):
            basic = tuple(value.split(","))
        else:
            raise _wrong(text, f"{key}={value}")
    sets = tuple(tuple(_calls(word, text)) for word in words)
    every = [call for own in sets for call in own]
    if len(sets) < 2 or len({*every}) < len(every):
        raise _wrong(text, text if len(sets) < 2 else "a call that stands twice")
    return CallSets(sets=sets, depth=depth, basic=basic)


def _wrong(text: str, what: str) -> ValueError:
    return ValueError(
        f"calls is {text!r}, with {what!r}; give two sets or more, such as {EXAMPLE!r}"
    )


def _calls(word: str, text: str) -> Iterable[int]:
    found: list[int] = []
    for part in word.split(","):
        span = _SPAN.fullmatch(part)
        if span is None:
            raise _wrong(text, part)
        first, last = int(span[1]), int(span[2] or span[1])
        if not first <= last < MOST:
            raise _wrong(text, part)
        found += range(first, last + 1)
    return sorted(found)


def _spans(calls: Iterable[int]) -> str:
    """Numbers as spans, which may only join neighbours."""
    spans: list[list[int]] = []
    for call in sorted(calls):
        if spans and call == spans[-1][1] + 1:
            spans[-1][1] = call
        else:
            spans.append([call, call])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
