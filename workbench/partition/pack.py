"""Which items share a device: list scheduling, then moves and swaps.

The published rule (Eliad et al., ATC 2021) takes items from the lightest to the heaviest, and sees
loads alone; `shortest_first` keeps it for comparison. `pack` takes the longest first, which leaves
small items to even out what large ones left, and then improves: items move and swap while memory,
the slowest stage with its messages, or the evenness of loads gets better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from workbench.partition.placement import Key, Placement, better, placed, placed_within
from workbench.partition.problem import Problem

SWAPPED = 400
"""Most items among which swaps are looked for."""
LOOKS = 200_000
"""Items, or so many times fewer placements as a whole, that are looked at from one start."""
KICKS = 12
"""Times that a placement is disturbed, and improved again."""


def shortest_first(problem: Problem) -> list[int]:
    """The published rule: the device of each item, by work, or else by memory. Raises ValueError
    where an item fits nowhere."""
    try:
        return _listed(problem, problem.work, longest=False)
    except ValueError:
        return _listed(problem, problem.needs, longest=False)


def pack(problem: Problem, random: Random) -> list[int]:
    """The device of each item: by work, by memory and by the larger share, longest first, and then
    improved. Where no placement fits in memory, one that is over it by little."""
    starts: list[list[int]] = []
    for cost in (problem.work, problem.needs, _shares(problem)):
        start = _listed(problem, cost, longest=True, forced=True)
        if start not in starts:
            starts.append(start)
    found = min((_Packing(problem, start) for start in starts), key=_Packing.improved)
    for _ in range(KICKS):
        if not better((0.0, problem.bound), found.key[:2]):
            break
        other = _Packing(problem, found.disturbed(random))
        other.improved()
        if better(other.key, found.key):
            found = other
    return found.where


def polished(placement: Placement, stages: int, fixed: Sequence[int] = ()) -> Placement:
    """The placement after moves and swaps of single items, with at most so many stages. `fixed`
    items stay."""
    packing = _Packing(placement.problem, placement.devices, stages, frozenset(fixed))
    packing.left //= 2
    packing.improved()
    return placed(placement.problem, packing.where)


def gathered(placement: Placement) -> Placement:
    """The placement with all users of each shared weight on the device of one of them: the one with
    which memory and the slowest stage are best."""
    problem, found = placement.problem, placement
    for name in sorted(frozenset().union(*problem.shared)):
        users = {item for item, names in enumerate(problem.shared) if name in names}
        devices = found.devices
        moved = [
            placed(problem, [device if i in users else old for i, old in enumerate(devices)])
            for device in sorted({devices[item] for item in users})
        ]
        found = min(moved, key=lambda one: one.key()[:2])
    return found


def apart(placement: Placement) -> int:
    """Devices on which shared weights lie more than once."""
    used = {
        (name, placement.device_of[stage])
        for names, stage in zip(placement.problem.shared, placement.stage_of, strict=True)
        for name in names
    }
    return len(used) - len({name for name, _ in used})


def _shares(problem: Problem) -> list[float]:
    """The larger of each item's shares of all work and of all memory."""
    work, needs = sum(problem.work) or 1.0, sum(problem.needs) or 1.0
    return [max(a / work, b / needs) for a, b in zip(problem.work, problem.needs, strict=True)]


def _listed(
    problem: Problem, cost: Sequence[float], *, longest: bool, forced: bool = False
) -> list[int]:
    """List scheduling by a cost: each item goes to the device with the least of it that has memory
    left; `forced`: to the emptiest one, where none has; else ValueError is raised."""
    load, held = [0.0] * problem.devices, [0.0] * problem.devices
    device_of = [0] * len(cost)
    for item in sorted(range(len(cost)), key=cost.__getitem__, reverse=longest):
        needs = problem.needs[item]
        free = [d for d, used in enumerate(held) if used + needs <= problem.limit]
        if not free and not forced:
            raise ValueError("no device has memory left for the next block")
        device = min(free, key=load.__getitem__) if free else held.index(min(held))
        load[device] += cost[item]
        held[device] += needs
        device_of[item] = device
    return device_of


class _Packing:
    """A placement while items move and swap."""

    def __init__(
        self,
        problem: Problem,
        device_of: Sequence[int],
        stages: int | None = None,
        fixed: frozenset[int] = frozenset(),
    ) -> None:
        """`stages` is how many there may be, any number by default; `fixed` items stay."""
        self.problem, self.where = problem, list(device_of)
        self.stages = len(problem.work) if stages is None else stages
        self.free = [item for item in range(len(problem.work)) if item not in fixed]
        self.left = LOOKS
        self._take(placed(problem, self.where))

    def improved(self) -> Key:
        """Move and swap until nothing helps; returns the key."""
        while self.left > 0 and any(map(self._tried, self._changes())):
            pass
        return self.key

    def disturbed(self, random: Random) -> list[int]:
        """Devices after a few swaps."""
        where = list(self.where)
        for _ in range(3):
            a, b = random.randrange(len(where)), random.randrange(len(where))
            where[a], where[b] = where[b], where[a]
        return where

    def _take(self, placement: Placement) -> None:
        self.key, self.load, self.held = placement.key(), placement.load, placement.held
        self.needed = placement.needed
        stages = range(len(placement.device_of))
        self.slowest = placement.device_of[max(stages, key=placement.cost)]

    def _changes(self) -> Iterator[tuple[int, int, int | None]]:
        """(item, its new device, the item that comes instead) of the device that binds."""
        device = self.held.index(max(self.held)) if self.key[0] else self.slowest
        own = [item for item in self.free if self.where[item] == device]
        by_load = sorted(range(len(self.load)), key=self.load.__getitem__)
        for item in own:
            yield from ((item, other, None) for other in by_load if other != device)
        if len(self.where) <= SWAPPED:
            others = [item for item in self.free if self.where[item] != device]
            for item in own:
                yield from ((item, self.where[other], other) for other in others)

    def _tried(self, change: tuple[int, int, int | None]) -> bool:
        """Make a change if it helps. Loads and bytes of items alone, which messages and inputs in
        flight only add to, rule most out."""
        item, target, back = change
        problem, home = self.problem, self.where[item]
        work, needs = problem.work[item], problem.needs[item]
        if back is not None:
            work, needs = work - problem.work[back], needs - problem.needs[back]
        loads, held = list(self.load), list(self.needed)
        loads[home] -= work
        loads[target] += work
        held[home] -= needs
        held[target] += needs
        over = sum(max(0.0, each - problem.limit) for each in held)
        could = over, max(loads), sum(load * load for load in loads)
        if self.left <= 0 or not better(could, self.key[:3]):
            return False
        self.left -= len(self.where)
        where = list(self.where)
        where[item] = target
        if back is not None:
            where[back] = home
        placement = placed_within(problem, where, self.stages)
        if placement is None or not better(placement.key(), self.key):
            return False
        self.where = where
        self._take(placement)
        return True
