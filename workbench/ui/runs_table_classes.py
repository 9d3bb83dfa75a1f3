"""Values of a field sorted into the few classes that colours, panels and ticks can tell apart."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from workbench.ui.runs_table_fields import ENDINGS, cell, in_order

OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Classes:
    """Labels, and which of them a value goes under."""

    labels: list[str]
    _places: dict[Any, int]
    _bounds: list[float]
    """Where there are more numbers than classes: from which on each class but the first goes."""
    _rest: int
    """Class of values that have no place of their own."""

    @classmethod
    def of(cls, values: Sequence[Any], most: int, *, name: str = "", kind: str = "text") -> Classes:
        """At most `most` classes of the values of a field.

        Fewer values have a class each, in their order. More numbers are put into classes of about
        equal size; of more texts the rarer ones share a last class.
        """
        counts = Counter(values)
        distinct = in_order(counts)
        numbers = [value for value in distinct if isinstance(value, float)]
        if len(distinct) <= most:
            labels = [_words(name, kind, value) for value in distinct]
            return cls(labels=labels, _places={v: i for i, v in enumerate(distinct)}, _bounds=[],
                       _rest=0)  # fmt: skip
        if kind != "text" and numbers:
            return cls._of_numbers(counts, numbers, most, name, kind)
        frequent = {value for value, _ in counts.most_common(most - 1)}
        kept = [value for value in distinct if value in frequent]
        labels = [*(_words(name, kind, value) for value in kept), OTHER]
        return cls(labels=labels, _places={v: i for i, v in enumerate(kept)}, _bounds=[],
                   _rest=len(kept))  # fmt: skip

    @classmethod
    def _of_numbers(
        cls, counts: Counter[Any], numbers: list[float], most: int, name: str, kind: str
    ) -> Classes:
        others = len(counts) > len(numbers)
        parts = most - others
        spread = sorted(value for value in counts.elements() if isinstance(value, float))
        bounds = sorted({spread[len(spread) * i // parts] for i in range(1, parts)} - {numbers[0]})
        starts = [numbers[0], *bounds]
        ends = [max(v for v in numbers if v < bound) for bound in bounds] + [numbers[-1]]
        labels = []
        for low, high in zip(starts, ends, strict=True):
            first, last = _words(name, kind, low), _words(name, kind, high)
            labels.append(first if first == last else f"{first} to {last}")
        return cls(labels=labels + [OTHER] * others, _places={}, _bounds=bounds,
                   _rest=len(labels))  # fmt: skip

    def place(self, value: Any) -> int:
        """The number of the value's class."""
        if self._bounds and isinstance(value, float):
            return bisect_right(self._bounds, value)
        return self._places.get(value, self._rest)


def _words(name: str, kind: str, value: Any) -> str:
    if value is None:
        return ""
    if kind == "time" and isinstance(value, float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d")
    return ENDINGS[value].words if value in ENDINGS else cell(name, value)
