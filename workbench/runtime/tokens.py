"""What has been issued of the steps in flight, and on CUDA the events of its end.

There is a token for every action, and a step may have tens of thousands. So they are small, and of
steps that all threads have passed they are used again: a `threading.Event` in each took ten times
the memory, through which one thread went while host updates kept the memory busy, and to make those
of a step took 0.3 s.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch


class Token:
    """The end of one action: issued on the host, and on CUDA completed by an event."""

    __slots__ = ("_waiting", "cuda", "issued")

    def __init__(self) -> None:
        self.issued = False
        self.cuda: torch.cuda.Event | None = None
        self._waiting: list[threading.Event] = []

    def set(self) -> None:
        """It is issued; whoever waits goes on."""
        self.issued = True
        for event in self._waiting:
            event.set()

    def wait(self) -> None:
        """Until it is."""
        event = threading.Event()
        self._waiting.append(event)
        if not self.issued:  # who sets it looks after that whether anybody waits
            event.wait()

    def renew(self) -> None:
        """It is not, of another step; nobody may be waiting."""
        self.issued, self.cuda = False, None
        self._waiting.clear()


class Tokens:
    """Those of the same actions in each of several steps. What changes them is for whoever has made
    sure that nobody else does."""

    def __init__(self, actions: Iterable[int]) -> None:
        self._actions = tuple(actions)
        self._steps: dict[int, dict[int, Token]] = {}
        self._recycled: list[dict[int, Token]] = []

    def __len__(self) -> int:
        """Steps in flight."""
        return len(self._steps)

    def of(self, step: int) -> dict[int, Token] | None:
        """Action -> its token; None of steps that are not in flight."""
        return self._steps.get(step)

    def begin(self, steps: Iterable[int]) -> None:
        """These are in flight, and no others."""
        self.clear()
        for step in steps:
            self.add(step)

    def add(self, step: int) -> None:
        """So is this one."""
        if step in self._steps:
            return
        if not self._recycled:
            self._steps[step] = {i: Token() for i in self._actions}
            return
        self._steps[step] = self._recycled.pop()
        for token in self._steps[step].values():
            token.renew()

    def drop_before(self, oldest: int) -> None:
        """Steps that no thread asks for any more."""
        self._recycled += [self._steps.pop(step) for step in [*self._steps] if step < oldest]

    def all(self) -> list[Token]:
        """Of all steps in flight."""
        return [token for made in self._steps.values() for token in made.values()]

    def clear(self) -> None:
        """Let go of all."""
        self._steps.clear()
        self._recycled.clear()
