"""About how long a step takes, in milliseconds of our own time: for those who compare thousands.

Task by task and micro-batch by micro-batch, each rank's compute, its links and its share of the
host are busy until some time; what comes next begins when they and its inputs are there. The
simulator does the same action by action. Left out here is what overlaps the next step, but for
updates that wait for the norm of all gradients: their layers come after them, so a step begins with
those of the step before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate

from workbench.core.division import DP, PP, Samples
from workbench.methods.harmony.packs import Packs, Task
from workbench.profile.server import Server
from workbench.profile.unit_costs import Sizes, pass_costs
from workbench.schedule.build.inbox import AHEAD

_Made = tuple[list[Samples], list[float]]


class StepTimeEstimate:
    """Estimates for one model on one server."""

    def __init__(
        self,
        sizes: Sizes,
        server: Server,
        units: int,
        recorded: Callable[[Packs], bool] = lambda packs: False,
    ) -> None:
        """`recorded`: whether the passes of some packs are."""
        self._sizes, self._server, self._units = sizes, server, units
        self.recorded = recorded
        self.parameters = [sizes.cost(unit, 1).parameters for unit in range(units)]
        self._visiting: dict[tuple[frozenset, frozenset], tuple[list[int], list[int]]] = {}
        self._sums: dict[tuple[int, bool], tuple[list[float], list[float], list[float]]] = {}
        self._wholes: dict[tuple[bool, bool, int, int, int], list[float]] = {}
        self.input_bytes = cache(sizes.input_bytes)

    def _seconds(
        self, samples: int, recorded: bool
    ) -> tuple[list[float], list[float], list[float]]:
        """Running sums over the units: forward, repeated forward, backward."""
        of = samples, recorded
        if of not in self._sums:
            costs = pass_costs(self._sizes, self._units, samples, recorded)
            self._sums[of] = tuple(
                [0.0, *accumulate(map(self._server.pass_seconds, values))]
                for values in (
                    (c.forward_s for c in costs),
                    (c.recompute_s for c in costs),
                    (c.backward_s + c.gradient_copy_s for c in costs),
                )
            )
        return self._sums[of]

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
        """Seconds that the busiest rank computes, which a step takes at least."""
        work, recorded = [0.0] * packs.ranks, self.recorded(packs)
        for task in packs.tasks if packs.mode == PP else packs.tasks_of(0):
            sums = self._in_all(task, recorded)
            work[task.rank] += sums[task.units.stop] - sums[task.units.start]
        return max(work)

    def _in_all(self, task: Task, recorded: bool) -> list[float]:
        """Running sums over the units, of what all micro-batches of such a task compute."""
        (first, end), (last, stop) = task.micros[0], task.micros[-1]
        of = task.forward, recorded, end - first, stop - last, len(task.micros)
        if of not in self._wholes:
            total = [0.0] * (self._units + 1)
            for samples, count in ((end - first, len(task.micros) - 1), (stop - last, 1)):
                forward, again, backward = self._seconds(samples, recorded)
                for sums in (forward,) if task.forward else (again, backward):
                    total = [all_s + count * s for all_s, s in zip(total, sums, strict=True)]
            self._wholes[of] = total
        return self._wholes[of]

    def step_seconds(
        self,
        packs: Packs,
        spare: Sequence[int] | None = None,
        late: frozenset[int] = frozenset(),
    ) -> float:
        """Seconds of a step. `spare`: what each rank has left beside one pack of weights
        (memory_estimate.py), into which the next pack is loaded; without it there is room for all
        of that. `late`: units whose updates on the host wait for the norm; others are updated as
        gradients arrive."""
        tasks = packs.tasks
        if packs.mode == DP:  # all ranks do the same, none much more than the first
            tasks = tuple(packs.tasks_of(0))
        return _Walk(self, packs, spare, late - packs.resident).run(tasks)


class _Walk:
    """One walk through the tasks of a step."""

    def __init__(
        self,
        step_time: StepTimeEstimate,
        packs: Packs,
        spare: Sequence[int] | None,
        late: frozenset[int],
    ) -> None:
        self.step_time, self.packs, self.server = step_time, packs, step_time._server
        self.spare, self.late = spare, late
        self.recorded = step_time.recorded(packs)
        self.bytes, self.parameters = step_time.visiting(packs.resident, late)
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
        self.gone: dict[int, list[float]] = defaultdict(lambda: [0.0] * AHEAD)
        """Rank -> when each stash was on the host: no more than `AHEAD` wait on the device."""
        self.freed: dict[int, list[float]] = defaultdict(lambda: [0.0] * AHEAD)
        """Rank -> when what was fetched was of no more use; no more than `AHEAD` are there."""
        self.left: _Made = [], []
        """Micro-batches of the task before, and when the outputs of each were there."""
        self.returned: _Made = [], []
        """Micro-batches of the task before, and when the gradients of the inputs of each were
        there."""

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
                    self.host[task.rank] += self._update_seconds(self.step_time.parameters[unit])
                    self.updated[unit] = self.host[task.rank]

    def _task(self, task: Task) -> None:
        ready, whole = self._load(task)
        passes = self._forward if task.forward else self._backward
        passes(task, ready, whole)
        self.ends[task.rank].append(self.compute[task.rank])
        if not task.forward:
            self._finish(task)

    def _forward(self, task: Task, ready: float, whole: float) -> None:
        """The passes of a task; `ready`: when its first unit is there, `whole`: when all are."""
        rank, units = task.rank, task.units
        message = self._message(units.stop)
        stashed = sorted(self.stashed.intersection(units))
        gone, store = self.gone[rank], self.store[rank]
        first_stashed = units.start in stashed
        compute, net, left, samples = self.compute[rank], self.net[rank], [], 0
        for (first, end), came in zip(task.micros, _arrivals(self.left, task), strict=True):
            if end - first != samples:
                samples = end - first
                all_s, last_s = self._took(units, samples)[:2]
                message_s = message(samples)
                rate = self.server.store_bytes_per_s
                puts = [(unit, self._bytes(unit, samples) / rate) for unit in stashed]
                least = whole + last_s
            start = came if came > compute else compute  # max() takes twice as long
            start = ready if ready > start else start
            if first_stashed:
                start = max(start, gone[-AHEAD])
            compute = start + all_s
            compute = least if least > compute else compute
            for unit, put_s in puts:
                if unit > units.start:
                    compute = max(compute, gone[-AHEAD])
                store = max(store, start if unit == units.start else compute) + put_s
                gone.append(store)
            if message_s:
                net = (net if net > compute else compute) + message_s
            left.append(net if message_s else compute)
        self.compute[rank], self.net[rank], self.store[rank] = compute, net, store
        self.left = task.micros, left

    def _backward(self, task: Task, ready: float, whole: float) -> None:
        """Walk through a backward task: the repeated forward passes and the backward ones."""
        rank, units = task.rank, task.units
        message = self._message(units.start)
        inputs = _arrivals(self.left if task.fused else ([], []), task)
        gradients = _arrivals(([], []) if task.fused else self.returned, task)
        fetched = not task.fused and units.start > 0
        freed, fetch = self.freed[rank], self.fetch[rank]
        compute, net, back, samples = self.compute[rank], self.net[rank], [], 0
        for (first, end), came, returned in zip(task.micros, inputs, gradients, strict=True):
            if end - first != samples:
                samples = end - first
                all_s, last_s, backward_s = self._took(units, samples)[2:]
                message_s = message(samples)
                fetch_s = self._bytes(units.start, samples) / self.server.load_bytes_per_s
                least = whole + last_s
            start = came if came > compute else compute
            start = ready if ready > start else start
            if fetched:
                fetch = max(fetch, freed[-AHEAD]) + fetch_s
                start = max(start, fetch)
            again = start + all_s if start + all_s > least else least
            compute = (returned if returned > again else again) + backward_s
            if fetched:
                freed.append(compute)
            if message_s:
                net = (net if net > compute else compute) + message_s
            back.append(net if message_s else compute)
        self.compute[rank], self.net[rank], self.fetch[rank] = compute, net, fetch
        self.returned = task.micros, back

    def _message(self, unit: int) -> Callable[[int], float]:
        """Seconds of a message of what flows between a unit and the one before, by its samples; 0
        where that stays on its rank."""
        if self.packs.mode == DP or self.packs.ranks == 1 or unit in (0, self.packs.num_units):
            return lambda samples: 0.0
        return lambda samples: self.server.message_seconds(self._bytes(unit, samples))

    def _took(self, units: range, samples: int) -> tuple[float, float, float, float, float]:
        """Seconds of passes: forward, and of the last unit; the same repeated; backward."""
        forward, again, backward = self.step_time._seconds(samples, self.recorded)
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

    def _bytes(self, unit: int, samples: int) -> int:
        return self.step_time.input_bytes(unit, samples)

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
        """Seconds of an update on the host by one rank, in DP mode of its share."""
        share = parameters / (self.packs.ranks if self.packs.mode == DP else 1)
        return share * self.server.ranks / self.server.host_adam_params_per_s


def _sums(values: Iterable[int], *, without: frozenset[int]) -> list[int]:
    """Running sums over units, of which some count nothing."""
    return [0, *accumulate(0 if unit in without else value for unit, value in enumerate(values))]


def _arrivals(made: _Made, task: Task) -> Sequence[float]:
    """When all samples of each micro-batch of a task are there."""
    micros, times = made
    if micros is task.micros:
        return times
    if not times:
        return [0.0] * len(task.micros)
    found, at, last = [], 0, len(times) - 1
    for _, end in task.micros:
        while at < last and micros[at][1] < end:
            at += 1
        found.append(times[at])
    return found
