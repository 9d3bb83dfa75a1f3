"""The best cut of the topological order into one stage a device.

The recurrence is PipeDream's (Narayanan et al., SOSP 2019) without replicas, with the transfers of
both ends of a stage: ``best[i][m] = min over j of max(best[j][m - 1], cost(j, i))``, where a stage
that does not fit in memory costs infinity. What a stage receives depends on its own two ends. What
it sends depends on later cuts, since a tensor travels once to each stage that reads it: the
recurrence counts it once, which no cut can beat. A search from the last stage to the first one,
which knows all later cuts, then finds the best cut by true costs; the recurrence bounds what lies
before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from workbench.core.bytesize import format_bytes
from workbench.partition.placement import Placement
from workbench.partition.problem import SAME, Problem, Tensor

TRIES = 300_000
"""Items that the search looks at before it takes the best cut so far."""


def contiguous(problem: Problem) -> Placement:
    """Cut the order of the items into exactly as many stages as there are devices, with the least
    objective. Raises ValueError where no cut fits in memory."""
    return _Cuts(problem).best()


class _Cuts:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        items, stages = len(problem.work), problem.devices
        self.least = np.full((items + 1, stages + 1), np.inf)
        """[items, stages] -> milliseconds that the slowest stage of their best cut takes at
        least."""
        self.start = np.zeros((items + 1, stages + 1), dtype=int)
        """[items, stages] -> where the last of these stages begins."""
        self.least[0, 0] = 0.0
        work = np.concatenate([[0.0], np.cumsum(problem.work)])
        held = np.concatenate([[0.0], np.cumsum(problem.needs)])
        weights = np.concatenate([[0.0], np.cumsum(problem.weights)])
        behind = range(stages - 1, -1, -1)
        in_flight, versions = map(np.array, zip(*map(self._kept, behind), strict=True))
        for end, sent, received, inputs in self._messages():
            own = work[end] - work[:end]
            cost = np.maximum(own, sent) + np.maximum(own, received) - own
            needs = (held[end] - held[:end])[:, None] + inputs[:, None] * in_flight
            needs += (weights[end] - weights[:end])[:, None] * versions
            costs = np.where(needs > problem.limit, np.inf, cost[:, None])
            slowest = np.maximum(self.least[:end, :-1], costs)
            self.start[end, 1:] = slowest.argmin(axis=0)
            self.least[end, 1:] = slowest.min(axis=0)

    def best(self) -> Placement:
        """Search the best cut by true costs, the most promising last stages first."""
        items, stages = len(self.problem.work), self.problem.devices
        if not np.isfinite(self.least[items, stages]):
            raise ValueError(
                f"no cut of the order into {stages} stages fits in "
                f"{format_bytes(self.problem.memory or 0)} a device"
            )
        found = self._cut(self._by_recurrence())
        most, left = found.objective(), TRIES
        waiting = [(self.least[items, stages], ())]
        while waiting and left > 0 and waiting[0][0] < most * (1 - SAME):
            bound, starts = heappop(waiting)
            before = stages - len(starts) - 1
            for start, cost in self._last_stages(starts, most):
                left -= 1
                slowest = max(bound, cost, self.least[start, before])
                if slowest >= most * (1 - SAME):
                    continue
                if before:
                    heappush(waiting, (slowest, (start, *starts)))
                else:
                    found, most = self._cut((start, *starts)), slowest
        return found

    def _by_recurrence(self) -> tuple[int, ...]:
        starts = [len(self.problem.work)]
        for stages in range(self.problem.devices, 0, -1):
            starts.append(int(self.start[starts[-1], stages]))
        return tuple(reversed(starts[1:]))

    def _cut(self, starts: tuple[int, ...]) -> Placement:
        stage_of = [bisect_right(starts, item) - 1 for item in range(len(self.problem.work))]
        return Placement(self.problem, stage_of, range(len(starts)))

    def _kept(self, behind: int) -> tuple[int, int]:
        """Inputs and older versions of weights that a stage holds."""
        return self.problem.in_flight(behind), self.problem.versions(behind)

    def _milliseconds(self, nbytes: float) -> float:
        return self.problem.milliseconds(nbytes, same_device=False)

    def _messages(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """For each end: the milliseconds that a stage up to it sends and receives, and the bytes of
        its inputs, by its start."""
        items = len(self.problem.work)
        sends, received, inputs = np.zeros(items), np.zeros(items), np.zeros(items)
        read: list[list[Tensor]] = [[] for _ in range(items)]
        for tensor in self.problem.tensors:
            sends[tensor.source] += self._milliseconds(max(use[1] for use in tensor.uses))
            for reader, _, _ in tensor.uses:
                read[reader].append(tensor)
        for item in range(items):
            for tensor in read[item]:
                uses = tensor.uses
                own = next(use for use in uses if use[0] == item)
                later = max((use[1] for use in uses if use[0] > item), default=0.0)
                most = max(own[1], later)
                sends[tensor.source] -= self._milliseconds(most - later)
                # A stage that begins after an earlier reader does not hold that reader.
                earlier = sorted((use for use in uses if use[0] < item), reverse=True)
                for sums, way, scaled in ((received, 2, self._milliseconds), (inputs, 1, float)):
                    end, most = item + 1, 0.0
                    for use in [*earlier, (tensor.source, 0.0, 0.0)]:
                        sums[use[0] + 1 : end] += scaled(max(0.0, own[way] - most))
                        end, most = use[0] + 1, max(most, use[way])
            sent = np.cumsum(sends[item::-1])[::-1]
            yield item + 1, sent, received[: item + 1], inputs[: item + 1]

    def _last_stages(self, starts: tuple[int, ...], most: float) -> Iterator[tuple[int, float]]:
        """(start, milliseconds) of each stage that may lie before the given ones."""
        problem = self.problem
        end = starts[0] if starts else len(problem.work)
        in_flight, versions = self._kept(len(starts))
        work = held = sent = received = inputs = 0.0
        # Milliseconds and bytes by identity of a tensor that is made before the stage.
        incoming: dict[int, tuple[float, float]] = {}
        for start in range(end - 1, problem.devices - len(starts) - 2, -1):
            work += problem.work[start]
            held += problem.needs[start] + versions * problem.weights[start]
            if held > problem.limit or work >= most:
                return
            for tensor in problem.touching[start]:
                had = incoming.pop(id(tensor), (0.0, 0.0))
                if tensor.source == start:
                    stages: dict[int, float] = {}
                    for reader, forward, _ in tensor.uses:
                        if reader >= end:
                            stage = bisect_right(starts, reader)
                            stages[stage] = max(stages.get(stage, 0.0), forward)
                    sent += sum(map(self._milliseconds, stages.values()))
                    received, inputs = received - had[0], inputs - had[1]
                else:
                    own = next(use for use in tensor.uses if use[0] == start)
                    most_ms = max(had[0], self._milliseconds(own[2]))
                    incoming[id(tensor)] = most_ms, max(had[1], own[1])
                    received += most_ms - had[0]
                    inputs += max(had[1], own[1]) - had[1]
            if held + in_flight * inputs <= problem.limit:
                yield start, max(work, sent) + max(work, received) - work
