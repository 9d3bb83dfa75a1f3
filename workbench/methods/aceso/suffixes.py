"""The best stages for a model's cuts, by dynamic programming over what is left of it.

An iteration lasts as long as its slowest stage, for all micro-batches but one, and the sum of all
stages. So each suffix of operators and devices keeps every pair of slowest stage and sum that no
other one beats; the best pair of the whole is the best plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from workbench.methods.aceso.space import MOST_OF_STAGE, Space

Span = tuple[int, int, int, int]
"""First operator of a stage, the one after its last, its devices, and stages behind it."""


@dataclass(frozen=True, slots=True)
class Suffix:
    """The last stages of a plan."""

    slowest: float
    total: float
    spans: tuple[Span, ...]


class Suffixes:
    """Stages between `cuts` of a model, of which `time` tells the milliseconds; infinite for one
    that does not fit."""

    def __init__(self, space: Space, cuts: Sequence[int], time: Callable[..., float]) -> None:
        self.space, self.cuts, self.time = space, cuts, time
        self.sizes = [2**k for k in range(MOST_OF_STAGE.bit_length())]
        self.known: dict[tuple[int, int, int], list[Suffix]] = {}

    def best(self, count: int, batches: int) -> Suffix | None:
        """The fastest stages of a number, for so many micro-batches."""
        found = self._from(0, count, self.space.cluster.gpus)
        return min(found, key=lambda s: (batches - 1) * s.slowest + s.total, default=None)

    def _from(self, place: int, count: int, gpus: int) -> list[Suffix]:
        """Of the operators from a cut on, in `count` stages of `gpus` devices in all."""
        key = (place, count, gpus)
        if key not in self.known:
            self.known[key] = _unbeaten(self._all(place, count, gpus))
        return self.known[key]

    def _all(self, place: int, count: int, gpus: int) -> list[Suffix]:
        last, found = len(self.cuts) - 1, []
        per_node = self.space.cluster.per_node
        start = self.space.cluster.gpus - gpus
        for size in self.sizes:
            over = start // per_node != (start + size - 1) // per_node
            if over or size > gpus or (count == 1) != (size == gpus):
                continue
            for end in (last,) if count == 1 else range(place + 1, last - count + 2):
                span = (self.cuts[place], self.cuts[end], size, count - 1)
                time = self.time(*span)
                if time == inf:
                    continue
                if count == 1:
                    found.append(Suffix(time, time, (span,)))
                    continue
                found += [
                    Suffix(max(time, rest.slowest), time + rest.total, (span, *rest.spans))
                    for rest in self._from(end, count - 1, gpus - size)
                ]
        return found


def _unbeaten(found: list[Suffix]) -> list[Suffix]:
    kept: list[Suffix] = []
    for each in sorted(found, key=lambda s: (s.slowest, s.total)):
        if not kept or each.total < kept[-1].total:
            kept.append(each)
    return kept
