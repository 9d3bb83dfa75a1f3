"""The best stages for a model's cuts, by dynamic programming over what is left of it.

An iteration lasts as long as its slowest stage, for all micro-batches but one, and the sum of all
stages. Where messages are hidden, neighbours may be slower together than each alone, and sums of
gradients may end after the passes of stages before. So each suffix of operators and devices keeps
all choices that no other one beats in each of these; the best ones of the whole are the best plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from workbench.methods.aceso.costs import Share
from workbench.methods.aceso.space import SIZES, Space

Span = tuple[int, int, int, int]
"""First operator of a stage, the one after its last, its devices, and stages behind it."""


class Suffix(NamedTuple):
    """The last stages of a plan."""

    slowest: float
    """Milliseconds of the slowest round trip through neighbours, of all micro-batches but one."""
    total: float
    late: float
    """By which sums end after the first stage's passes."""
    opened: tuple[float, ...]
    """Of round trips that begin at the first stage, by their stages; empty without hidden messages.
    """
    link: float
    """Messages of all micro-batches before the first stage."""
    choices: tuple[tuple[Span, int], ...]
    """Stages, and which of its shapes each has."""

    @property
    def time(self) -> float:
        """Milliseconds of an iteration."""
        return self.slowest + self.total + self.late

    def beats(self, other: Suffix) -> bool:
        """Whether it is as good in everything."""
        return (
            self.slowest <= other.slowest and self.total <= other.total and self.late <= other.late
            and self.link <= other.link
            and all(a <= b for a, b in zip(self.opened, other.opened, strict=True))
        )  # fmt: skip


END = Suffix(0.0, 0.0, 0.0, (), 0.0, ())


def joined(
    share: Share, rest: Suffix, batches: float, choice: tuple[tuple[Span, int], ...] = ()
) -> Suffix:
    """A stage before others."""
    opened, slowest, link = (), max(share.steady, rest.slowest), 0.0
    if share.link is not None:
        link = share.link * (batches - 1)
        opened = (share.steady, *(share.steady + rest.link + each for each in rest.opened))
        slowest = max(slowest, *(each / n for n, each in enumerate(opened, 1)))
    late = max(share.sums, rest.late - share.back, 0.0)
    return Suffix(slowest, share.once + rest.total, late, opened, link, choice + rest.choices)


class Suffixes:
    """Stages between `cuts` of a model, whose shapes' shares of an iteration `shares` tells; none
    where they do not fit."""

    def __init__(
        self, space: Space, cuts: Sequence[int], batches: float,
        shares: Callable[[int, int, int, int], Sequence[Share | None]],
    ) -> None:  # fmt: skip
        self.space, self.cuts, self.batches, self.shares = space, cuts, batches, shares
        self.known: dict[tuple[int, int, int], list[Suffix]] = {}

    def best(self, count: int) -> list[Suffix]:
        """All unbeaten stages of a number, the fastest first."""
        return sorted(self._from(0, count, self.space.cluster.gpus), key=lambda s: s.time)

    def _from(self, place: int, count: int, gpus: int) -> list[Suffix]:
        """Of the operators from a cut on, in `count` stages of `gpus` devices in all."""
        key = (place, count, gpus)
        if key not in self.known:
            self.known[key] = _unbeaten(self._all(place, count, gpus))
        return self.known[key]

    def _all(self, place: int, count: int, gpus: int) -> list[Suffix]:
        last, found = len(self.cuts) - 1, []
        for size in SIZES:
            if not self.space.may_have(self.space.cluster.gpus - gpus, size, count - 1):
                continue
            for end in (last,) if count == 1 else range(place + 1, last - count + 2):
                span = (self.cuts[place], self.cuts[end], size, count - 1)
                for shape, share in enumerate(self.shares(*span)):
                    if share is None:
                        continue
                    rests = [END] if count == 1 else self._from(end, count - 1, gpus - size)
                    found += [joined(share, r, self.batches, ((span, shape),)) for r in rests]
        return found


def _unbeaten(found: list[Suffix]) -> list[Suffix]:
    kept: list[Suffix] = []
    for each in sorted(found, key=lambda s: s[:3]):
        if not any(other.beats(each) for other in reversed(kept)):
            kept.append(each)
    return kept
