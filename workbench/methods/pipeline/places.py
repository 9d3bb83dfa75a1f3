"""Units on a device while pass after pass needs them: a direct-mapped cache.

Memory that is virtualized brings a layer when a pass touches it and lets the longest unused one go.
Passes go up and down the layers, so what is used last before a turn is used first after it. A layer
has one place, which it shares with every so-manieth other: those around a turn are still there, all
others come again for each micro-batch. Some layers have a place of their own and stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from workbench.schedule.build.ring import aligned


@dataclass(kw_only=True, eq=False)
class Visit:
    """A unit in its place, from the pass that needs it first to the one that does last."""

    unit: int
    turn: int
    """How many visits of the unit there were before in the step."""
    first: str
    last: str
    """Names of the passes that begin and end it."""
    behind: tuple[int, Visit] | None = None
    """(step, visit) that must have ended before; 0 is this step, -1 the one before."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """A position's places: so many units have one of their own, the others share."""

    units: Sequence[int]
    """In the order of the model."""
    own: int = 0
    """The first ones have places of their own."""
    shared: int = 2

    def place(self, unit: int) -> int:
        """The number of a unit's place."""
        at = self.units.index(unit)
        return at if at < self.own else self.own + (at - self.own) % self.shared

    def nbytes(self, nbytes: Sequence[int]) -> int:
        """Bytes of all places, for the sizes of all units of the model."""
        return sum(self._sizes(nbytes))

    def offsets(self, nbytes: Sequence[int]) -> dict[int, int]:
        """Unit -> bytes before its place."""
        starts = [0, *accumulate(self._sizes(nbytes))]
        return {unit: starts[self.place(unit)] for unit in self.units}

    def _sizes(self, nbytes: Sequence[int]) -> list[int]:
        sizes: dict[int, int] = {}
        for unit in self.units:
            place = self.place(unit)
            sizes[place] = max(sizes.get(place, 0), aligned(nbytes[unit]))
        return [sizes[place] for place in sorted(sizes)]

    def visits(self, uses: Iterable[tuple[str, int]]) -> dict[str, Visit]:
        """Pass -> the visit that serves it, for (pass, unit) of a step in their order."""
        there: dict[int, Visit] = {}
        first: dict[int, Visit] = {}
        turns: dict[int, int] = dict.fromkeys(self.units, 0)
        found: dict[str, Visit] = {}
        for use, unit in uses:
            place = self.place(unit)
            before = there.get(place)
            if before is None or before.unit != unit:
                visit = Visit(unit=unit, turn=turns[unit], first=use, last=use)
                visit.behind = None if before is None else (0, before)
                turns[unit] += 1
                there[place] = visit
                first.setdefault(place, visit)
            there[place].last = use
            found[use] = there[place]
        for place, visit in first.items():
            visit.behind = (-1, there[place])
        return found
