"""Moves items over the borders of stages while it helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workbench.partition.placement import Placement, better

ROUNDS = 200
"""Most rounds over all borders."""


def published(placement: Placement) -> tuple[float, ...]:
    """What Mixed-pipe makes smaller: the slowest stage, then message time; memory never grows over."""
    return placement.over(), placement.objective(), sum(placement.sent)


def refine(
    placement: Placement,
    key: Callable[[Placement], tuple[float, ...]] = Placement.key,
    *,
    fixed: Iterable[int] = (),
    empties: bool = True,
) -> Placement:
    """Hill-climb in place, and return the placement: each item at a border to a later stage is tried
    there, the last items first; then each at a border to an earlier one, the first items first; until
    a round changes nothing. `fixed` items stay; without `empties` a stage keeps its last item."""
    free = [item for item in range(len(placement.stage_of)) if item not in set(fixed)]
    best = key(placement)
    for _ in range(ROUNDS):
        before = best
        for order, side in ((free[::-1], 1), (free, 0)):
            for item in order:
                home = placement.stage_of[item]
                target = placement.reach(item)[side]
                if target == home or not (empties or placement.members[home] > 1):
                    continue
                if not _near(placement, item, side) or _hopeless(placement, item, target, best):
                    continue
                placement.move(item, target)
                if better(found := key(placement), best):
                    best = found
                else:
                    placement.move(item, home)
        if not better(best, before):
            break
    return placement


def _near(placement: Placement, item: int, side: int) -> bool:
    """Whether an edge leads from the item over the border."""
    problem = placement.problem
    return bool((problem.predecessors, problem.successors)[side][item])


def _hopeless(
    placement: Placement, item: int, target: int, best: tuple[float, ...]
) -> bool:
    """Whether the device of the target stage would have too much work, whatever messages do."""
    device = placement.device_of[target]
    if device == placement.device_of[placement.stage_of[item]] or best[0]:
        return False
    problem = placement.problem
    load = placement.load[device] + problem.work[item]
    held = placement.held[device] + problem.needs[item]
    return load > best[1] * (1 + 1e-9) or held > problem.limit
