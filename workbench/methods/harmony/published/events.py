"""Events with durations in first-in-first-out streams, and when they start.

An event starts when all its inputs have ended and the event before it in its stream has. A transfer
between two GPUs is one event in two streams: neither side starts alone. Start times follow in one
pass over the events in an order that respects all this; where there is no such order, the schedule
deadlocks, and the events that can never start are named. (The published estimator polls the heads
of the streams instead and calls it a deadlock when two rounds start nothing; the times are equal.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

Stream = Hashable


class Deadlock(ValueError):
    """Some events wait for each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    start: list[float]
    end: list[float]


class EventGraph:
    """Events are numbered from 0 on. Those reserved may be waited for before they are added."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.inputs: list[list[int]] = []
        self.labels: list[object] = []
        self._tails: dict[Stream, int] = {}

    def reserve(self, count: int) -> range:
        """Numbers for events that are added later."""
        first = len(self.seconds)
        self.seconds += [0.0] * count
        self.inputs += [[] for _ in range(count)]
        self.labels += [None] * count
        return range(first, first + count)

    def add(
        self,
        stream: Stream,
        seconds: float,
        inputs: Iterable[int],
        label: object,
        event: int | None = None,
    ) -> int:
        """The event's number: `event` where that was reserved, else a new one."""
        if event is None:
            event = len(self.seconds)
            self.seconds.append(seconds)
            self.inputs.append([])
            self.labels.append(label)
        else:
            self.seconds[event] = seconds
            self.labels[event] = label
        self.join(event, stream, inputs)
        return event

    def join(self, event: int, stream: Stream, inputs: Iterable[int]) -> None:
        """The event is next in this stream too, and waits for these inputs as well."""
        waits = self.inputs[event]
        waits.extend(inputs)
        if stream in self._tails:
            waits.append(self._tails[stream])
        self._tails[stream] = event

    def run(self, describe: Callable[[object], str] = str) -> Times:
        """When everything starts and ends, from 0 s on; Deadlock where something never does."""
        number = len(self.seconds)
        followers: list[list[int]] = [[] for _ in range(number)]
        missing = [len(waits) for waits in self.inputs]
        for event, waits in enumerate(self.inputs):
            for other in waits:
                followers[other].append(event)
        start, end = [0.0] * number, [0.0] * number
        ready = [event for event in range(number) if not missing[event]]
        done = 0
        while ready:
            event = ready.pop()
            done += 1
            finish = end[event] = start[event] + self.seconds[event]
            for follower in followers[event]:
                if finish > start[follower]:
                    start[follower] = finish
                missing[follower] -= 1
                if not missing[follower]:
                    ready.append(follower)
        if done < number:
            raise Deadlock(self._deadlocked(missing, describe))
        return Times(start=start, end=end)

    def _deadlocked(self, missing: list[int], describe: Callable[[object], str]) -> str:
        """One circle of waiting: every event that cannot start waits for one that cannot either."""
        event = next(event for event, count in enumerate(missing) if count)
        path: list[int] = []
        while event not in path:
            path.append(event)
            event = next(other for other in self.inputs[event] if missing[other])
        circle = [describe(self.labels[other]) for other in path[path.index(event) :]]
        return f"the schedule deadlocks: {' waits for '.join([*circle, circle[0]])}"
