"""Places of weights and gradients on the devices, decided before any action is written.

A layer visits a device: its weights come for a task and stay to their last use, its gradients are
there from the first backward pass of a task until they leave. Either kind has a ring of memory
(schedule/build/ring.py) on each rank. Layers that stay have memory of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from workbench.methods.harmony.packs import Packs, Task
from workbench.profile.unit_costs import Sizes
from workbench.schedule.build.ring import aligned, ring


@dataclass(frozen=True, kw_only=True, slots=True)
class Rings:
    """Device memory of one rank for what comes and goes, in bytes."""

    weights: int
    gradients: int


@dataclass(kw_only=True, eq=False)
class Visit:
    """A layer's weights, or its gradients, on a device, up to their last use."""

    rank: int
    unit: int
    turn: int = 0
    first: Task | None
    """The task that brings them; None where they are resident."""
    last: Task | None
    """The last task that uses the weights: a later one where they are pinned."""
    offset: int = 0
    behind: list[tuple[int, Visit]] = field(default_factory=list)
    """(step, what must be gone before)."""


class Visits:
    """Visits of all layers to all ranks."""

    def __init__(self, packs: Packs, sizes: Sizes, rings: Sequence[Rings]) -> None:
        """Raises ValueError where a pack is larger than its ring."""
        self._packs, self._sizes = packs, sizes
        self.weights: dict[tuple[Task, int], Visit] = {}
        """(task, unit) -> the weights that the task uses."""
        self.gradients: dict[tuple[Task, int], Visit] = {}
        """(backward task, unit) -> the gradients that the task makes."""
        for rank, own in enumerate(rings):
            self._place_weights(rank, own.weights)
            self._place_gradients(rank, own.gradients)

    def _place_weights(self, rank: int, capacity: int) -> None:
        tasks = self._packs.tasks_of(rank)
        groups: list[list[Visit]] = []
        for before, task in zip([None, *tasks], tasks, strict=False):
            pins = self._pins(before, task, capacity)
            if not pins:
                groups.append([])
            for unit in task.units:
                if unit in self._packs.resident:
                    visit = Visit(rank=rank, unit=unit, first=None, last=None)
                elif unit in pins:
                    visit = self.weights[before, unit]
                    visit.last = task
                else:
                    turn = int(not task.forward)
                    visit = Visit(rank=rank, unit=unit, turn=turn, first=task, last=task)
                    groups[-1].append(visit)
                self.weights[task, unit] = visit
        self._put(groups, capacity)

    def _pins(self, before: Task | None, task: Task, capacity: int) -> set[int]:
        """Layers that stay from a rank's last forward task to its first backward one, where both
        packs fit together."""
        if before is None or not before.forward or task.forward:
            return set()
        both = ({*before.units} | {*task.units}) - self._packs.resident
        needed = sum(aligned(self._sizes.visit_bytes(unit)) for unit in both)
        return {*before.units} & {*task.units} & both if needed <= capacity else set()

    def _place_gradients(self, rank: int, capacity: int) -> None:
        groups: list[list[Visit]] = []
        behind = capacity
        for task in self._packs.tasks_of(rank):
            if task.forward:
                continue
            groups.append([])
            for unit in reversed(task.units):
                visit = Visit(rank=rank, unit=unit, first=task, last=task)
                self.gradients[task, unit] = visit
                if unit in self._packs.resident:  # behind the ring, until the update
                    visit.offset = behind
                    behind += aligned(self._sizes.visit_bytes(unit))
                else:
                    groups[-1].append(visit)
        self._put(groups, capacity)

    def _put(self, groups: list[list[Visit]], capacity: int) -> None:
        visits = [visit for group in groups for visit in group]
        sizes = [[self._sizes.visit_bytes(visit.unit) for visit in group] for group in groups]
        for visit, place in zip(visits, ring(sizes, capacity), strict=True):
            visit.offset = place.offset
            visit.behind = [(step, visits[other]) for step, other in place.behind]
