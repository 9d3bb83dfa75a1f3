"""Moves items over the borders of stages while it helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workbench.partition.placement import Placement, better
from workbench.partition.problem import SAME

ROUNDS = 200
"""Most rounds over all borders."""


def published(placement: Placement) -> tuple[float, ...]:
    """What Mixed-pipe makes smaller: the slowest stage, then message time; memory never grows
    over."""
    return placement.over(), placement.objective(), sum(placement.sent)


def refine(
    placement: Placement,
    key: Callable[[Placement], tuple[float, ...]] = Placement.key,
    *,
    fixed: Iterable[int] = (),
    between: bool = False,
    empties: bool = True,
    slower: bool = False,
) -> Placement:
    """Hill-climb in place, and return the placement.

    Each item at a border to a later stage is tried there, the last items first; then each at a
    border to an earlier one, the first items first; until a round changes nothing. `between`: also
    in the stages on the way. `fixed` items stay; without `empties` a stage keeps its last item.
    `slower`: whether a key may be better although the slowest stage is slower.
    """
    held = set(fixed)
    free = [item for item in range(len(placement.stage_of)) if item not in held]
    best = key(placement)
    for _ in range(ROUNDS):
        before = best
        for order, later in ((free[::-1], True), (free, False)):
            for item in order:
                for target in _targets(placement, item, later, between):
                    home = placement.stage_of[item]
                    if not empties and placement.members[home] == 1:
                        break
                    if _too_full(placement, item, target, slower):
                        continue
                    placement.move(item, target)
                    if better(found := key(placement), best):
                        best = found
                    else:
                        placement.move(item, home)
        if not better(best, before):
            break
    return placement


def _targets(placement: Placement, item: int, later: bool, between: bool) -> Iterable[int]:
    """The stages in which an item is tried: those with something that it reads or that reads it,
    and those `between`."""
    home, problem = placement.stage_of[item], placement.problem
    first, last = placement.reach(item)
    if later:
        farthest = last if problem.successors[item] or between else home
        stages = range(farthest, home, -1)
    else:
        farthest = first if problem.predecessors[item] or between else home
        stages = range(farthest, home)
    return stages if between else stages[:1]


def _too_full(placement: Placement, item: int, target: int, slower: bool) -> bool:
    """Whether the device of the target stage would have more work than any stage takes now, or more
    bytes than memory, while all devices are within it."""
    device = placement.device_of[target]
    if device == placement.device_of[placement.stage_of[item]] or placement.over():
        return False
    problem = placement.problem
    if placement.held[device] + problem.needs[item] > problem.limit:
        return True
    load = placement.load[device] + problem.work[item]
    return not slower and load > placement.objective() * (1 + SAME)
