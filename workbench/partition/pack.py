"""Which items share a device: list scheduling, then moves and swaps.

The published rule (Eliad et al., ATC 2021) takes items from the lightest to the heaviest, and sees
loads alone; `shortest_first` keeps it for comparison. `pack` takes the longest first, which leaves
small items to even out what large ones left, and then improves: items move and swap while memory,
the slowest stage with its messages, or the evenness of loads gets better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from workbench.partition.placement import Key, Placement, better, placed
from workbench.partition.problem import Problem

SWAPPED = 400
"""Most bundles among which swaps are looked for."""
LOOKS = 200_000
"""Items, or so many times fewer placements as a whole, that are looked at from one start."""
KICKS = 12
"""Times that a placement is disturbed, and improved again."""

Bundles = Sequence[Sequence[int]]
"""Items that stay together, by bundle."""


def shortest_first(problem: Problem) -> list[int]:
    """The published rule: the device of each item. Raises ValueError where an item fits nowhere."""
    for cost in (problem.work, problem.needs):
        device_of = _listed(problem, [[item] for item in range(len(cost))], cost, longest=False)
        if device_of is not None:
            return device_of
    raise ValueError(
        "no device has memory left for the next block, neither by work nor by memory; "
        "--packing best moves blocks"
    )


def pack(problem: Problem, bundles: Bundles, random: Random) -> list[int]:
    """Give each item a device, bundles together: by work and by memory, longest first, improved."""
    starts = []
    for cost in (problem.work, problem.needs, _shares(problem)):
        start = _listed(problem, bundles, cost, longest=True, forced=True)
        if start is not None and start not in starts:
            starts.append(start)
    found = min((_Packing(problem, bundles, start) for start in starts), key=_Packing.improved)
    for _ in range(KICKS):
        if not better((0.0, problem.bound), found.key[:2]):
            break
        other = _Packing(problem, bundles, found.disturbed(random))
        other.improved()
        if better(other.key, found.key):
            found = other
    return found.device_of


def together(problem: Problem) -> list[list[int]]:
    """Bundles of the items that use a shared weight, directly or through others; as far as a bundle
    fits in a device."""
    owner: dict[str, int] = {}
    bundle_of = list(range(len(problem.work)))
    for item, names in enumerate(problem.shared):
        for name in sorted(names):
            old, new = bundle_of[item], bundle_of[owner.setdefault(name, item)]
            bundle_of = [new if bundle == old else bundle for bundle in bundle_of]
    bundles: dict[int, list[int]] = {}
    for item, bundle in enumerate(bundle_of):
        bundles.setdefault(bundle, []).append(item)
    parts: list[list[int]] = []
    for bundle in bundles.values():
        fits = sum(problem.needs[item] for item in bundle) <= problem.limit
        parts += [bundle] if fits else [[item] for item in bundle]
    return parts


def _shares(problem: Problem) -> list[float]:
    """The larger of each item's shares of all work and of all memory."""
    work, needs = sum(problem.work) or 1.0, sum(problem.needs) or 1.0
    return [max(a / work, b / needs) for a, b in zip(problem.work, problem.needs, strict=True)]


def _listed(
    problem: Problem,
    bundles: Bundles,
    cost: Sequence[float],
    *,
    longest: bool,
    forced: bool = False,
) -> list[int] | None:
    """List scheduling by a cost: each bundle goes to the device with the least of it that has
    memory left; `forced`: to the emptiest one, where none has."""
    sums = [sum(cost[item] for item in bundle) for bundle in bundles]
    needs = [sum(problem.needs[item] for item in bundle) for bundle in bundles]
    order = sorted(range(len(bundles)), key=sums.__getitem__, reverse=longest)
    load, held = [0.0] * problem.devices, [0.0] * problem.devices
    device_of = [0] * len(problem.work)
    for at in order:
        free = [d for d, used in enumerate(held) if used + needs[at] <= problem.limit]
        if not free and not forced:
            return None
        device = min(free, key=load.__getitem__) if free else held.index(min(held))
        load[device] += sums[at]
        held[device] += needs[at]
        for item in bundles[at]:
            device_of[item] = device
    return device_of


class _Packing:
    """A placement of bundles while it is improved."""

    def __init__(self, problem: Problem, bundles: Bundles, device_of: Sequence[int]) -> None:
        self.problem, self.bundles = problem, bundles
        self.work = [sum(problem.work[item] for item in bundle) for bundle in bundles]
        self.needs = [sum(problem.needs[item] for item in bundle) for bundle in bundles]
        self.where = [device_of[bundle[0]] for bundle in bundles]
        self.left = LOOKS
        self._take(self._placed(self.where))

    @property
    def device_of(self) -> list[int]:
        return self._spread(self.where)

    def improved(self) -> Key:
        """Move and swap until nothing helps; returns the key."""
        while self.left > 0 and any(map(self._tried, self._changes())):
            pass
        return self.key

    def disturbed(self, random: Random) -> list[int]:
        """Devices after a few swaps of bundles, by item."""
        where = list(self.where)
        for _ in range(3):
            a, b = random.randrange(len(where)), random.randrange(len(where))
            where[a], where[b] = where[b], where[a]
        return self._spread(where)

    def _spread(self, where: Sequence[int]) -> list[int]:
        device_of = [0] * len(self.problem.work)
        for bundle, device in zip(self.bundles, where, strict=True):
            for item in bundle:
                device_of[item] = device
        return device_of

    def _placed(self, where: Sequence[int]) -> Placement:
        return placed(self.problem, self._spread(where))

    def _take(self, placement: Placement) -> None:
        self.key, self.load, self.held = placement.key(), placement.load, placement.held
        stages = range(len(placement.device_of))
        self.slowest = placement.device_of[max(stages, key=placement.cost)]

    def _changes(self) -> Iterator[tuple[int, int, int | None]]:
        """(bundle, its new device, the bundle that comes instead) of the device that binds."""
        over, device = self.key[0], self.slowest
        if over:
            device = self.held.index(max(self.held))
        own = [at for at, home in enumerate(self.where) if home == device]
        by_load = sorted(range(len(self.load)), key=self.load.__getitem__)
        for at in own:
            yield from ((at, other, None) for other in by_load if other != device)
        if len(self.where) <= SWAPPED:
            others = [at for at, home in enumerate(self.where) if home != device]
            for at in own:
                yield from ((at, self.where[other], other) for other in others)

    def _tried(self, change: tuple[int, int, int | None]) -> bool:
        """Make a change if it helps. Loads alone, which no message makes less, rule most out."""
        at, target, back = change
        home = self.where[at]
        work, needs = self.work[at], self.needs[at]
        if back is not None:
            work, needs = work - self.work[back], needs - self.needs[back]
        limit = self.problem.limit
        before = max(0.0, self.held[home] - limit) + max(0.0, self.held[target] - limit)
        after = max(0.0, self.held[home] - needs - limit)
        after += max(0.0, self.held[target] + needs - limit)
        loads = list(self.load)
        loads[home] -= work
        loads[target] += work
        could = (self.key[0] - before + after, max(loads), sum(load * load for load in loads))
        if self.left <= 0 or not better(could, self.key[:3]):
            return False
        self.left -= len(self.problem.work)
        where = list(self.where)
        where[at] = target
        if back is not None:
            where[back] = home
        placement = self._placed(where)
        if not better(placement.key(), self.key):
            return False
        self.where = where
        self._take(placement)
        return True
