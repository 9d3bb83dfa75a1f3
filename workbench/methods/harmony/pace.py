"""About how long a step takes, in milliseconds of our own time: for those who compare thousands.

Task by task and micro-batch by micro-batch, each rank's compute, its links and its share of the
host are busy until some time; what comes next begins when they and its inputs are there. The
simulator does the same action by action. Left out here is what overlaps the next step, but for
updates that wait for the norm of all gradients: their layers come after them, so a step begins with
those of the step before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate

from workbench.methods.harmony.draft import Sizes
from workbench.methods.harmony.packs import DP, PP, Packs, Task
from workbench.methods.harmony.server import Server
from workbench.methods.harmony.sheet import AHEAD


class Pace:
    """Estimates for one model on one server."""

    def __init__(self, sizes: Sizes, server: Server, units: int) -> None:
        self._sizes, self._server, self._units = sizes, server, units
        self.parameters = [sizes.cost(unit, 1).parameters for unit in range(units)]
        self._visiting: dict[tuple[frozenset, frozenset], tuple[list[int], list[int]]] = {}
        self._sums: dict[int, tuple[list[float], list[float], list[float]]] = {}
        self.input_bytes = cache(sizes.input_bytes)

    def _seconds(self, samples: int) -> tuple[list[float], list[float], list[float]]:
        """Running sums over the units: forward, repeated forward, backward."""
        if samples not in self._sums:
            costs = [self._sizes.cost(unit, samples) for unit in range(self._units)]
            self._sums[samples] = tuple(
                [0.0, *accumulate(values)]
                for values in (
                    (c.forward_s for c in costs),
                    (c.recompute_s for c in costs),
                    (c.backward_s for c in costs),
                )
            )
        return self._sums[samples]

    def visiting(
        self, resident: frozenset[int], late: frozenset[int]
    ) -> tuple[list[int], list[int]]:
        """Running sums over the units that are not resident: bytes of a visit, and parameters of
        those that are not updated late."""
        key = resident, late
        if key not in self._visiting:
            visits = map(self._sizes.visit_bytes, range(self._units))
            self._visiting[key] = (
                _sums(visits, without=resident),
                _sums(self.parameters, without=resident | late),
            )
        return self._visiting[key]

    def least_seconds(self, packs: Packs) -> float:
        """What the busiest rank computes, which a step takes at least."""
        work = [0.0] * packs.ranks
        for task in packs.tasks if packs.mode == PP else packs.tasks_of(0):
            units, micros = task.units, task.micros
            (first, end), (last, stop) = micros[0], micros[-1]
            for samples, count in ((end - first, len(micros) - 1), (stop - last, 1)):
                if count:
                    forward, again, backward = self._seconds(samples)
                    for sums in (forward,) if task.forward else (again, backward):
                        work[task.rank] += count * (sums[units.stop] - sums[units.start])
        return max(work)

    def step_seconds(
        self,
        packs: Packs,
        spare: Sequence[int] | None = None,
        late: frozenset[int] = frozenset(),
    ) -> float:
        """Seconds of a step. `spare`: what each rank has left beside one pack of weights (room.py),
        into which the next pack is loaded; without it there is room for all of that. `late`: units
        whose updates on the host wait for the norm; others are updated as gradients arrive."""
        tasks = packs.tasks
        if packs.mode == DP:  # all ranks do the same, none much more than the first
            tasks = tuple(packs.tasks_of(0))
        return _Walk(self, packs, spare, late - packs.resident).run(tasks)


class _Walk:
    """One estimate."""

    def __init__(
        self, pace: Pace, packs: Packs, spare: Sequence[int] | None, late: frozenset[int]
    ) -> None:
        self.pace, self.packs, self.server = pace, packs, pace._server
        self.spare, self.late = spare, late
        self.bytes, self.parameters = pace.visiting(packs.resident, late)
        self.updated = [0.0] * packs.num_units
        """Unit -> when its weights are those of this step."""
        self.compute: dict[int, float] = defaultdict(float)
        self.link: dict[int, float] = defaultdict(float)
        self.store: dict[int, float] = defaultdict(float)
        self.host: dict[int, float] = defaultdict(float)
        self.fetch: dict[int, float] = defaultdict(float)
        self.net: dict[int, float] = defaultdict(float)
        self.stashed = {pack.start for pack in packs.backward[:-1]} - {0}
        self.ends: dict[int, list[float]] = defaultdict(list)
        """Rank -> when its tasks ended."""
        self.before: dict[int, int] = defaultdict(int)
        """Rank -> bytes of the pack that lies in its ring."""
        self.ring: dict[int, int] = defaultdict(int)
        """Rank -> bytes of its ring of weights."""
        self.gone: dict[int, list[float]] = defaultdict(list)
        """Rank -> when each stash was on the host: no more than `AHEAD` wait on the device."""
        self.spent: dict[int, list[float]] = defaultdict(list)
        """Rank -> when what was fetched was of no more use; no more than `AHEAD` are there."""
        self.left: list[tuple[int, float]] = []
        """(samples up to, when) of the outputs of the task before."""
        self.returned: list[tuple[int, float]] = []
        """The same of the gradients of its inputs."""

    def run(self, tasks: tuple[Task, ...]) -> float:
        for task in tasks:
            nbytes = self.bytes[task.units.stop] - self.bytes[task.units.start]
            self.ring[task.rank] = max(self.ring[task.rank], nbytes)
        for rank, largest in self.ring.items():
            beside = largest if self.spare is None else min(largest, self.spare[rank])
            self.ring[rank] = largest + beside
        if self.late:
            self._update_late(tasks)
        for task in tasks:
            self._task(task)
        return max(*self.compute.values(), *self.store.values(), *self.host.values())

    def _update_late(self, tasks: tuple[Task, ...]) -> None:
        """By each rank in the order of the next loads."""
        for task in reversed(tasks):
            for unit in () if task.forward else task.units:
                if unit in self.late:
                    self.host[task.rank] += self._update_seconds(self.pace.parameters[unit])
                    self.updated[unit] = self.host[task.rank]

    def _task(self, task: Task) -> None:
        rank, units = task.rank, task.units
        ready, whole = self._load(task)
        came = self.left if task.forward or task.fused else []
        fetched = not task.forward and not task.fused and units.start > 0
        stashed = sorted(self.stashed & {*units}) if task.forward else []
        gone, spent = self.gone[rank], self.spent[rank]
        left, back = [], []
        took: dict[int, tuple[float, ...]] = {}
        for first, end in task.micros:
            if end - first not in took:
                took[end - first] = self._took(units, end - first)
            forward, last, again, last_again, backward = took[end - first]
            there = _when(came, end)
            if fetched:
                free = max(self.fetch[rank], _before(spent))
                there = free + self._bytes(units.start, end - first) / self.server.load_bytes_per_s
                self.fetch[rank] = there
            if units.start in stashed:
                there = max(there, _before(gone))
            start = max(self.compute[rank], ready, there)
            if task.forward:
                now = max(start + forward, whole + last)
                for unit in stashed:
                    if unit > units.start:
                        now = max(now, _before(gone))
                    when = max(self.store[rank], start if unit == units.start else now)
                    nbytes = self._bytes(unit, end - first)
                    self.store[rank] = when + nbytes / self.server.store_bytes_per_s
                    gone.append(self.store[rank])
                left.append((end, self._arrival(rank, now, units.stop, end - first)))
            else:
                now = max(start + again, whole + last_again)
                if not task.fused:
                    now = max(now, _when(self.returned, end))
                now += backward
                back.append((end, self._arrival(rank, now, units.start, end - first)))
            self.compute[rank] = now
            if fetched:
                spent.append(now)
        self.ends[rank].append(self.compute[rank])
        if task.forward:
            self.left = left
        else:
            self.returned = back
            self._finish(task)

    def _took(self, units: range, samples: int) -> tuple[float, ...]:
        """Seconds of passes: forward, and of the last unit; the same repeated; backward."""
        forward, again, backward = self.pace._seconds(samples)
        first, last, stop = units.start, units.stop - 1, units.stop
        return (
            forward[stop] - forward[first],
            forward[stop] - forward[last],
            again[stop] - again[first],
            again[stop] - again[last],
            backward[stop] - backward[first],
        )

    def _load(self, task: Task) -> tuple[float, float]:
        """When the first layer is there, and when all are: each comes when it is updated, and a
        ring holds two packs, or what there is room for. What has no room beside the pack before
        waits for its end."""
        rank, units, ends = task.rank, task.units, self.ends[task.rank]
        rate = self.server.load_bytes_per_s
        nbytes = self.bytes[units.stop] - self.bytes[units.start]
        first = self.bytes[units.start + 1] - self.bytes[units.start]
        start = max(self.link[rank], ends[-2] if len(ends) > 1 else 0.0, self.updated[units.start])
        ready, whole = start + first / rate, start + nbytes / rate
        if self.late:
            last = self.bytes[units.stop] - self.bytes[units.stop - 1]
            whole = max(whole, max(self.updated[units.start : units.stop]) + last / rate)
        free = self.ring[rank] - self.before[rank]
        if ends and free < nbytes:
            whole = max(whole, ends[-1] + (nbytes - free) / rate)
            if free < first:
                ready = max(ready, ends[-1] + first / rate)
        self.link[rank], self.before[rank] = whole, nbytes
        return ready, whole

    def _arrival(self, rank: int, now: float, unit: int, samples: int) -> float:
        """When what flows between a unit and the one before is where it is needed."""
        if self.packs.mode == DP or self.packs.ranks == 1 or unit in (0, self.packs.num_units):
            return now
        took = self.server.message_seconds(self._bytes(unit, samples))
        self.net[rank] = max(self.net[rank], now) + took
        return self.net[rank]

    def _bytes(self, unit: int, samples: int) -> int:
        return self.pace.input_bytes(unit, samples)

    def _finish(self, task: Task) -> None:
        """Gradients leave, and the layers are updated."""
        rank, units, server = task.rank, task.units, self.server
        nbytes = self.bytes[units.stop] - self.bytes[units.start]
        parameters = self.parameters[units.stop] - self.parameters[units.start]
        end = self.compute[rank]
        if self.packs.mode == DP:
            ranks = self.packs.ranks
            end += nbytes / server.reduce_bytes_per_s if ranks > 1 else 0.0
            nbytes = nbytes / ranks
        self.store[rank] = max(self.store[rank], end) + nbytes / server.store_bytes_per_s
        seconds = self._update_seconds(parameters)
        self.host[rank] = max(self.host[rank], self.store[rank]) + seconds

    def _update_seconds(self, parameters: int) -> float:
        """Of an update on the host by one rank, in DP mode of its share."""
        share = parameters / (self.packs.ranks if self.packs.mode == DP else 1)
        return share * self.server.ranks / self.server.host_adam_params_per_s


def _sums(values: Iterable[int], *, without: frozenset[int]) -> list[int]:
    """Running sums over units, of which some count nothing."""
    return [0, *accumulate(0 if unit in without else value for unit, value in enumerate(values))]


def _before(ends: list[float]) -> float:
    """When there is room for one more."""
    return ends[-AHEAD] if len(ends) >= AHEAD else 0.0


def _when(left: list[tuple[int, float]], end: int) -> float:
    """When all samples before `end` are there."""
    if not left:
        return 0.0
    return left[min(bisect_left(left, (end,)), len(left) - 1)][1]
