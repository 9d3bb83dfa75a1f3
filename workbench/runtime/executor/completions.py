"""Completions of the actions of the steps in flight: issued on the host, and on CUDA an event.

Every action has a completion, and a step may have tens of thousands. So a completion is small, and
those of steps that all threads have passed are used again: a `threading.Event` in each took ten
times the memory, through which a thread went while host updates kept the memory busy, and making
those of one step took 0.3 s.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch


class Completion:
    """The end of one action: issued on the host, and on CUDA completed by an event."""

    __slots__ = ("_waiting", "cuda", "issued")

    def __init__(self) -> None:
        self.issued = False
        self.cuda: torch.cuda.Event | None = None
        self._waiting: list[threading.Event] = []

    def set(self) -> None:
        """Mark the action as issued, and wake all threads that wait."""
        self.issued = True
        for event in self._waiting:
            event.set()

    def wait(self) -> None:
        """Wait until the action is issued."""
        event = threading.Event()
        self._waiting.append(event)
        if not self.issued:  # `set` marks first, and looks for waiting threads after that
            event.wait()

    def until(self, stream: torch.cuda.Stream | None) -> None:
        """Have a stream, or without one this thread, wait for the event."""
        if stream is not None:
            stream.wait_event(self.cuda)
        else:
            self.cuda.synchronize()

    def renew(self) -> None:
        """Mark the action of another step as not issued; no thread may be waiting."""
        self.issued, self.cuda = False, None
        self._waiting.clear()


class Completions:
    """Completions of a rank's actions, for each step in flight. A caller that changes them has made
    sure that no other thread does."""

    def __init__(self, actions: Iterable[int]) -> None:
        self._actions = tuple(actions)
        self._steps: dict[int, dict[int, Completion]] = {}
        self._recycled: list[dict[int, Completion]] = []

    def __len__(self) -> int:
        """Steps in flight."""
        return len(self._steps)

    def of(self, step: int) -> dict[int, Completion] | None:
        """Action -> its completion; None for a step that is not in flight."""
        return self._steps.get(step)

    def issued(self, step: int, action: int) -> Completion | None:
        """Wait until an action is issued; None for one of a step that is not in flight."""
        if (completions := self._steps.get(step)) is None:
            return None
        completion = completions[action]
        if not completion.issued:
            completion.wait()
        return completion

    def begin(self, steps: Iterable[int]) -> None:
        """Put these steps in flight, and no others."""
        self.clear()
        for step in steps:
            self.add(step)

    def add(self, step: int) -> None:
        """Put one more step in flight, unless it is."""
        if step in self._steps:
            return
        if not self._recycled:
            self._steps[step] = {i: Completion() for i in self._actions}
            return
        self._steps[step] = self._recycled.pop()
        for completion in self._steps[step].values():
            completion.renew()

    def drop_before(self, oldest: int) -> None:
        """Recycle the completions of earlier steps, for which no thread asks any more."""
        self._recycled += [self._steps.pop(step) for step in [*self._steps] if step < oldest]

    def since(self, step: float) -> list[Completion]:
        """Completions of the steps in flight from one on."""
        return [c for made in self._steps if made >= step for c in self._steps[made].values()]

    def clear(self) -> None:
        """Let go of all completions."""
        self._steps.clear()
        self._recycled.clear()
