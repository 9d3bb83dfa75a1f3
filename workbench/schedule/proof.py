"""What the validator's rules share: the actions by kind, the order among them, and one sentence."""

from __future__ import annotations

from collections import defaultdict

from workbench.schedule.action import Kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.order import Order
from workbench.schedule.schedule import Schedule


class Proof:
    """A schedule, and questions about the order of its actions. Actions are given by index."""

    def __init__(self, schedule: Schedule, order: Order) -> None:
        self.schedule, self.order = schedule, order
        self._found: dict[tuple[Kind, int], list[int]] = defaultdict(list)
        for i, action in enumerate(schedule.actions):
            self._found[action.kind, action.unit].append(i)

    def find(self, kind: Kind, unit: int) -> list[int]:
        """All actions of a kind on a unit, in the schedule's order."""
        return self._found.get((kind, unit), [])

    def name(self, i: int) -> str:
        return self.schedule.actions[i].name

    def before(self, first: int, second: int, *, next_step: bool = False) -> bool:
        """True when `first` has surely ended when `second` (of the next step) starts."""
        return self.order.before(first, second + next_step * len(self.schedule.actions))

    def require(self, first: int, second: int, why: str, *, next_step: bool = False) -> None:
        """Raises ScheduleError unless `first` surely ends before `second` (of the next step)."""
        if not self.before(first, second, next_step=next_step):
            later = " of the next step" if next_step else ""
            raise ScheduleError(
                f"{self.name(second)}{later} may start before {self.name(first)} has ended: {why}"
            )
