"""A proof that the validator's rules share: actions by kind, their order, and its one sentence."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate

from workbench.schedule.action import Action, Kind
from workbench.schedule.graph import ScheduleError, resolve
from workbench.schedule.order import Order
from workbench.schedule.schedule import Schedule


class Spans:
    """Actions by what they work on, of which those that share samples with a span are found."""

    def __init__(self, actions: Sequence[Action], among: Iterable[int]) -> None:
        self._all = sorted([(*actions[i].span, i) for i in among])
        self._ends = [*accumulate((end for _, end, _ in self._all), max)]

    def sharing(self, span: tuple[int, int]) -> list[int]:
        """Actions that share these samples, by their first ones."""
        first, end = span
        at, found = bisect_right(self._ends, first), []
        while at < len(self._all) and self._all[at][0] < end:
            if self._all[at][1] > first:
                found.append(self._all[at][2])
            at += 1
        return found


class Proof:
    """A schedule, and questions about the order of its actions. Actions are given by index."""

    def __init__(self, schedule: Schedule, order: Order) -> None:
        self.schedule, self.order = schedule, order
        self._spans: dict[tuple[Kind, int], Spans] = {}
        self._found: dict[tuple[Kind, int], list[int]] = defaultdict(list)
        for i, action in enumerate(schedule.actions):
            self._found[action.kind, action.unit].append(i)

    def find(self, kind: Kind, unit: int) -> list[int]:
        """All actions of a kind on a unit, in the schedule's order."""
        return self._found.get((kind, unit), [])

    def spans(self, kind: Kind, unit: int) -> Spans:
        """Samples of all actions of a kind on a unit."""
        if (kind, unit) not in self._spans:
            self._spans[kind, unit] = Spans(self.schedule.actions, self.find(kind, unit))
        return self._spans[kind, unit]

    def sharing(self, kind: Kind, unit: int, like: int) -> list[int]:
        """Actions of the kind that share samples with `like`."""
        return self.spans(kind, unit).sharing(self.schedule.actions[like].span)

    def name(self, i: int) -> str:
        """The name of action number i."""
        return self.schedule.actions[i].name

    def waits(self, action: Action) -> list[tuple[int, int]]:
        """(relative step, action) of what an action itself names."""
        return [resolve(action, text, self._index) for text in action.after]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {action.name: i for i, action in enumerate(self.schedule.actions)}

    def before(self, first: int, second: int, *, steps: int = 0) -> bool:
        """True when `first` has surely ended when `second` starts, of micro-batches that began in
        one step, or of those of `second` so many steps later."""
        actions, n = self.schedule.actions, len(self.schedule.actions)
        steps += actions[second].lag - actions[first].lag
        base = max(0, -steps)
        return self.order.before(first + base * n, second + (base + steps) * n)

    def require(self, first: int, second: int, why: str, *, steps: int = 0) -> None:
        """Raises ScheduleError unless `first` surely ends before `second` (so many steps later)."""
        if not self.before(first, second, steps=steps):
            when = (
                ["", " of the next step"][steps] if steps in (0, 1) else f", {steps} steps later,"
            )
            raise ScheduleError(
                f"{self.name(second)}{when} may start before {self.name(first)} has ended: {why}"
            )
