"""Which items share a device, proved: a branch and bound over the devices' sets of items.

One device after the other gets the largest item that is left and a set beside it (Korf, "Multi-way
number partitioning", IJCAI 2009). Sets are cut off where a device has more work than the best
placement known, more bytes than memory, or so little that the devices left could not take the rest.
The first search proves the least load: it skips equal items and sets that could hold one more item,
since messages are not in it. Where messages of the placement it finds make a stage slower than the
loads, or inputs in flight count as memory, a second search looks at all sets by their true costs;
the bound stays that of the loads, and with inputs in flight that of the problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random

from workbench.partition.mpipe import Mpipe, mixed
from workbench.partition.pack import pack
from workbench.partition.placement import Placement, better, placed
from workbench.partition.problem import SAME, Problem

STEPS = 600_000
"""Choices of an item that a search makes before it gives up its proof."""
PLACED = 20
"""Steps for which an item of a complete placement counts."""
MOST = 300
"""Most items among which a proof is looked for."""


def exact(problem: Problem, seed: int) -> Placement:
    """The best placement found, never worse than a mixed one, and its `bound`: its objective, where
    the search came to its end and messages hide behind the work. Raises ValueError where none is
    found that fits in memory."""
    best = None
    with suppress(ValueError):
        best = mixed(problem, Mpipe(), seed)
    bound = problem.bound
    items = len(problem.work)
    if best is None or items <= MOST:
        packed = placed(problem, pack(problem, Random(seed)))
        if best is None or better(packed.key()[:2], best.key()[:2]):
            best = packed
    if items <= MOST:
        search = _Search(problem, best, messages=False)
        best = search.run()
        if search.left > 0 and not best.over() and not problem.micros:
            bound = max(bound, search.limit)
        if problem.micros or best.objective() > search.limit * (1 + SAME):
            best = _Search(problem, best, messages=True).run()
    if best.over():
        raise ValueError(f"no placement {'was found that ' * (items > MOST)}fits in memory")
    best.bound = bound
    return best


class _Search:
    def __init__(self, problem: Problem, best: Placement, *, messages: bool) -> None:
        self.problem, self.best, self.messages = problem, best, messages
        self.limit = best.objective() if messages else max(best.load)
        if best.over():
            self.limit = float("inf")
        """Milliseconds of the best placement so far: by true costs, or by loads alone."""
        self.left = STEPS
        self.where = [0] * len(problem.work)

    def run(self) -> Placement:
        """Search until the limit is the bound, all sets are seen, or no steps are left."""
        work, needs = self.problem.work, self.problem.needs
        self._device(0, sorted(range(len(work)), key=lambda item: (-work[item], needs[item], item)))
        return self.best

    def _device(self, device: int, items: Sequence[int]) -> None:
        """Give the first item, the largest, and others to a device, and the rest to later ones."""
        problem = self.problem
        if not items:
            self._found()
        elif devices := problem.devices - device:
            pair = items[devices - 1 : devices + 1]  # two of so many and one share a device
            if len(pair) < 2 or sum(problem.work[item] for item in pair) < self._most():
                self.where[items[0]] = device
                own = problem.work[items[0]], problem.needs[items[0]]
                self._sets(device, items, 1, own, (0.0, 0.0), [])

    def _sets(
        self, device: int, items: Sequence[int], at: int, own: tuple[float, float],
        out: tuple[float, float], left_out: list[int],
    ) -> None:  # fmt: skip
        """Decide on `items[at]` and all after it. `own` and `out` are milliseconds and bytes of
        what the device has taken and of what it has left out."""
        problem, most = self.problem, self._most()
        later = problem.devices - device - 1
        self.left -= 1
        if (
            self.left <= 0
            or self.limit <= problem.bound * (1 + SAME)
            or own[0] >= most
            or own[1] > problem.limit
            or out[0] > later * most
            or out[1] > later * problem.limit
        ):
            return
        if at == len(items):
            if self.messages or not self._could_take(own, left_out):
                self._device(device + 1, left_out)
            return
        work, needs = problem.work[items[at]], problem.needs[items[at]]
        self.where[items[at]] = device
        self._sets(device, items, at + 1, (own[0] + work, own[1] + needs), out, left_out)
        stop = at + 1
        while not self.messages and stop < len(items) and self._equal(items[at], items[stop]):
            stop += 1
        count = stop - at
        self._sets(
            device, items, stop, own, (out[0] + count * work, out[1] + count * needs),
            [*left_out, *items[at:stop]],
        )  # fmt: skip

    def _most(self) -> float:
        """Milliseconds below which a placement is better."""
        return self.limit * (1 - SAME)

    def _equal(self, one: int, other: int) -> bool:
        problem = self.problem
        same = problem.work[one] == problem.work[other]
        return same and problem.needs[one] == problem.needs[other]

    def _could_take(self, own: tuple[float, float], left_out: Sequence[int]) -> bool:
        """Whether one more item fits: a placement with it here is as good as one without."""
        problem = self.problem
        return any(
            own[0] + problem.work[item] < self._most()
            and own[1] + problem.needs[item] <= problem.limit
            for item in left_out
        )

    def _found(self) -> None:
        placement = placed(self.problem, self.where)
        self.left -= PLACED * len(self.where)
        if better(placement.key()[:2], self.best.key()[:2]):
            self.best = placement
        if not placement.over():
            reached = placement.objective() if self.messages else max(placement.load)
            self.limit = min(self.limit, reached)
