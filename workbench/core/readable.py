"""Durations and counts as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def format_seconds(seconds: float) -> str:
    """A duration to read: ``0.45 s``, ``12 s``, ``3 min 05 s``, ``2 h 07 min``.

    >>> format_seconds(0.4512), format_seconds(185), format_seconds(7620)
    ('0.45 s', '3 min 05 s', '2 h 07 min')
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_step(seconds: float | None, range_: Sequence[float] | None) -> str:
    """A predicted step to read, with the shortest and the longest to expect.

    >>> format_step(0.4512, (0.36, 0.54)), format_step(None, None)
    ('0.45 s a step (0.36 s to 0.54 s)', 'unknown time a step')
    """
    if not seconds or range_ is None:
        return "unknown time a step"
    low, high = map(format_seconds, range_)
    return f"{format_seconds(seconds)} a step ({low} to {high})"


def parameters(count: int) -> str:
    """``5.14 billion parameters``."""
    for unit, word in ((1e9, "billion"), (1e6, "million")):
        if count >= unit:
            return f"{count / unit:.3g} {word} parameters"
    return f"{count:,} parameters"
