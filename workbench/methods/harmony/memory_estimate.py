"""Bytes that packs need on each device, and how many layers it has room to keep."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from itertools import accumulate, chain

from workbench.core.division import DP, PP
from workbench.methods.harmony.packs import Packs, Task
from workbench.methods.harmony.recordings import Recordings
from workbench.methods.harmony.visits import Rings
from workbench.profile.profile import UnitCost
from workbench.profile.unit_costs import Sizes
from workbench.schedule.build.inbox import AHEAD, PLACES
from workbench.schedule.build.ring import aligned

_Top = tuple[int, int, int, int]
"""Bytes of a layer that is passed forward and backward, with all that the layers before it keep;
and of gradients that its backward pass takes and makes."""


class MemoryEstimate:
    """Bytes that packs of one model need, from running sums: thousands of packs are asked for."""

    def __init__(self, sizes: Sizes, units: int, recorded_below_s: float = 0.0) -> None:
        self._sizes, self._units = sizes, units
        self._recordings = Recordings(sizes, units, recorded_below_s)
        self._visits = [aligned(sizes.visit_bytes(unit)) for unit in range(units)]
        self._ends = [0, *accumulate(self._visits)]
        self._stays = [
            2 * visit + sizes.state_bytes(unit) for unit, visit in enumerate(self._visits)
        ]
        """Weights, gradients and states of a layer that stays."""
        together: dict[int, list[int]] = {}
        for unit in range(units):
            together.setdefault(sizes.owner(unit), []).append(unit)
        self._together = {unit: tuple(group) for group in together.values() for unit in group}
        """Unit -> those that share weights with it, itself among them."""
        self._inside: dict[tuple[int, bool], tuple[list[int], list[_Top]]] = {}
        """By samples, and whether blocks are recorded: running sums of what layers keep for their
        backward passes, and those with what a layer's own passes need beside."""
        self._passing: dict[tuple[int, bool], list[int]] = {}
        self._asked: tuple[Task, ...] = ()
        self._known: dict[int, int] = {}
        """Rank -> what these tasks work in. The same are asked for with other residents."""

    def recorded(self, packs: Packs) -> bool:
        """Whether passes of these packs are recorded."""
        return self._recordings.made(packs)

    def rings(self, packs: Packs, rank: int, device_bytes: int, less: int = 0) -> Rings:
        """A rank's rings: of two packs of weights, or what there is room for but at least one; so
        many bytes `less`, where a proof found more than is foreseen here."""
        largest, gradients = self._largest(packs.tasks_of(rank), packs.resident)
        stay = sum(
            self._stays[unit] for unit in packs.backward_units(rank) if unit in packs.resident
        )
        room = device_bytes - self._working(packs, rank) - stay
        weights = max(largest, min(2 * largest, room - gradients) - less)
        return Rings(weights=weights, gradients=gradients)

    def spare(self, packs: Packs, device_bytes: int) -> list[int]:
        """Rank -> what is left beside about the least it needs, one pack of weights in its ring;
        below 0 where that does not fit. The validator proves the rest."""
        left = [
            device_bytes - self._needed(packs, rank, packs.resident, self._working(packs, rank))
            for rank in range(packs.ranks if packs.mode == PP else 1)
        ]
        return left if packs.mode == PP else left * packs.ranks

    def with_residents(self, packs: Packs, device_bytes: int) -> Packs:
        """Packs with as many layers resident on each rank as it has room for, those first whose
        weights the next step needs first. Layers that share weights stay together: if other ranks
        have some of them, they are updated on the host, where their gradients meet."""
        stay: set[int] = set()
        for rank in range(packs.ranks):
            own = self._groups(packs.backward_units(rank))
            working = self._working(packs, rank)

            def fits(
                count: int,
                own: list[tuple[int, ...]] = own,
                rank: int = rank,
                working: int = working,
            ) -> bool:
                return self._needed(packs, rank, {*chain(*own[:count])}, working) <= device_bytes

            if fits(len(own)):  # no ring at all: all may fit where fewer do not
                stay.update(*own)
                continue
            low, high = 0, len(own)
            while low + 1 < high:
                middle = (low + high) // 2
                low, high = (middle, high) if fits(middle) else (low, middle)
            stay.update(*own[:low])
        return packs.keeping(frozenset(stay))

    def _groups(self, units: Iterable[int]) -> list[tuple[int, ...]]:
        """Groups of those among some units that share weights with none but each other."""
        here = {*units}
        groups = {self._together[unit] for unit in here}
        return sorted(group for group in groups if here.issuperset(group))

    def with_fewer_residents(self, packs: Packs, over: dict[int, int]) -> Packs:
        """Packs with so many resident bytes fewer on the ranks that hold too much."""
        stay = set(packs.resident)
        for rank, excess in over.items():
            own = self._groups(unit for unit in packs.backward_units(rank) if unit in stay)
            while excess > 0 and own:
                for unit in own.pop():
                    stay.remove(unit)
                    excess -= self._stays[unit]
        return packs.keeping(frozenset(stay))

    def _needed(self, packs: Packs, rank: int, stay: Set[int], working: int) -> int:
        """The least that a rank needs: each ring holds one pack."""
        own = packs.backward_units(rank)
        kept = sum(self._stays[unit] for unit in own if unit in stay)
        return sum(self._largest(packs.tasks_of(rank), stay)) + kept + working

    def _largest(self, tasks: Sequence[Task], stay: Set[int]) -> tuple[int, int]:
        """Weights of the largest pack, and of the largest backward pack, without what stays."""
        ends, visits = self._ends, self._visits
        packs = [
            (task, sum([visits[unit] for unit in task.units if unit not in stay]) if stay
             else ends[task.units.stop] - ends[task.units.start])
            for task in tasks
        ]  # fmt: skip
        backward = [nbytes for task, nbytes in packs if not task.forward]
        return max((nbytes for _, nbytes in packs), default=0), max(backward, default=0)

    def _working(self, packs: Packs, rank: int) -> int:
        """About what a rank needs beside weights and gradients: the micro-batch in work, what
        waits between tasks, and what lies there all the time."""
        if self._asked is not packs.tasks:
            self._asked, self._known = packs.tasks, {}
        if rank not in self._known:
            self._known[rank] = self._worked_in(packs, rank)
        return self._known[rank]

    def _worked_in(self, packs: Packs, rank: int) -> int:
        recorded = self._recordings.made(packs)
        share = len(range(*packs.share(rank if packs.mode == DP else None)))
        ends, tops = self._of(min(packs.backward_size, share), recorded)
        passing = self._forward_of(min(packs.forward_size, share), recorded)
        waits = _Waits(packs, self._sizes, rank)
        most = 0
        for before, task in waits.pairs():
            first, stop = task.units.start, task.units.stop
            inside = waits.between(before, task)
            leaving = self._leaving(packs, before) if before.forward else 0
            if task.forward:
                inside += max(passing[first:stop]) + max(leaving, self._leaving(packs, task))
            else:
                inside += _highest(tops, first, stop) - ends[first] + leaving + waits.fetched(task)
            most = max(most, inside)
        always = self._sizes.library_bytes + self._sizes.token_bytes(packs.minibatch)
        return most + always + self._recordings.nbytes(packs, rank)

    def _costs(self, samples: int, recorded: bool) -> list[UnitCost]:
        """Recorded blocks keep nothing and need nothing beside, but in their recordings."""
        costs = [self._sizes.cost(unit, samples) for unit in range(self._units)]
        if recorded:
            costs[1:-1] = [
                replace(
                    cost,
                    kept_bytes=0,
                    forward_scratch_bytes=0,
                    recompute_scratch_bytes=0,
                    backward_scratch_bytes=0,
                )
                for cost in costs[1:-1]
            ]
        return costs

    def _of(self, samples: int, recorded: bool) -> tuple[list[int], list[_Top]]:
        of = samples, recorded
        if of not in self._inside:
            costs = self._costs(*of)
            ends = [0, *accumulate(cost.kept_bytes + cost.input_bytes for cost in costs)]
            fresh = [*map(self._sizes.fresh_bytes, range(self._units))]
            made = [cost.input_bytes for cost in costs]
            taken = [cost.output_bytes for cost in costs]
            if recorded:  # their gradients are in the making there, too
                for column in (fresh, made, taken):
                    column[1:-1] = [0] * len(column[1:-1])
            # A pass there and back: what later layers kept is gone when an earlier one needs most.
            tops = [
                (end + cost.recompute_scratch_bytes,
                 end + max(0, cost.backward_scratch_bytes + new), above, below)
                for end, cost, new, above, below in
                zip(ends[1:], costs, fresh, taken, made, strict=True)
            ]  # fmt: skip
            self._inside[of] = ends, tops
        return self._inside[of]

    def _leaving(self, packs: Packs, task: Task) -> int:
        """Inputs of later backward packs that a forward task made and that are on their way to the
        host."""
        starts = packs.stashed
        starts = starts[
            bisect_right(starts, task.units.start) : bisect_left(starts, task.units.stop)
        ]
        largest = max((self._sizes.input_bytes(u, _largest(task)) for u in starts), default=0)
        return AHEAD * largest

    def _forward_of(self, samples: int, recorded: bool) -> list[int]:
        """Bytes of a forward pass of each layer: its output, its input, and tensors made between
        them."""
        of = samples, recorded
        if of not in self._passing:
            self._passing[of] = [
                cost.forward_scratch_bytes + 2 * cost.output_bytes for cost in self._costs(*of)
            ]
        return self._passing[of]


def _highest(tops: list[_Top], first: int, stop: int) -> int:
    """The most that any layer's passes need; gradients at the ends of a pack lie between tasks."""
    return max(
        max(forth, back + above * (unit + 1 < stop) + below * (unit > first))
        for unit, (forth, back, above, below) in enumerate(tops[first:stop], first)
    )


class _Waits:
    """Bytes between the tasks of one rank: activations and their gradients."""

    def __init__(self, packs: Packs, sizes: Sizes, rank: int) -> None:
        self._packs, self._sizes, self._tasks = packs, sizes, packs.tasks_of(rank)
        self._apart = packs.mode == PP and packs.ranks > 1
        fetching = [task for task in self._tasks if not (task.forward or task.fused)]
        self._stash = max((self._bytes(t.units.start, _largest(t)) for t in fetching), default=0)
        received = [self._bytes(_into(task), _largest(task)) for task in self._tasks]
        messages = sum(len(task.micros) for task in self._tasks if self._bytes(_into(task), 1))
        self._inbox = min(PLACES, messages) * max(received, default=0) if self._apart else 0

    def pairs(self) -> Iterable[tuple[Task, Task]]:
        """Each task behind the one that the rank does before it."""
        return zip(self._tasks[-1:] + self._tasks, self._tasks, strict=False)

    def between(self, before: Task, task: Task) -> int:
        """Bytes of all samples where the neighbour is on the same rank. Otherwise of what was made
        for it, or for that of the task before, which may not have left yet; of the inbox; and of
        what came in it."""
        sizes, whole = self._sizes, self._whole(task)
        if self._apart:
            return self._inbox + self._came(task) + max(self._made(before), self._made(task))
        total = sum(self._bytes(unit, whole) for unit in (task.units.start, task.units.stop))
        if task.fused and task.units.start:  # inputs, and the gradients made of them
            total += sizes.input_bytes(task.units.start, whole)
        return total

    def fetched(self, task: Task) -> int:
        """Stashed inputs that came ahead, beside the one in work."""
        return (AHEAD if task.fused else AHEAD - 1) * self._stash

    def _came(self, task: Task) -> int:
        return self._bytes(_into(task), min(AHEAD * _largest(task), self._whole(task)))

    def _made(self, task: Task) -> int:
        return self._bytes(_out(task), self._whole(task))

    def _whole(self, task: Task) -> int:
        return task.micros[-1][1] - task.micros[0][0]

    def _bytes(self, unit: int, samples: int) -> int:
        """Bytes of the tensors that flow into a unit; tokens come another way."""
        return self._sizes.input_bytes(unit, samples) if 0 < unit < self._packs.num_units else 0


def _largest(task: Task) -> int:
    """Samples of its largest micro-batch."""
    first, end = task.micros[0]
    return end - first


def _into(task: Task) -> int:
    """The unit whose input, or whose gradient of it, a task begins with."""
    return task.units.start if task.forward else task.units.stop


def _out(task: Task) -> int:
    """Unit whose input, or whose gradient of it, a task ends with."""
    return task.units.stop if task.forward else task.units.start
