"""Writes the first weights of all units to where a method keeps them.

One thread makes a unit at a time, for random numbers may be drawn from one generator, and files are
read best in their order. Others hand over the units that are made, to memory or a disk. A unit is
made in the memory that it is handed over from, of which there is as much as the two largest units
take, however many are on their way: so no more than that is beside what a plan counts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.model.weights.mapped import read_ahead
from workbench.runtime.memory.storage import Flat

WRITERS = 4
"""Units that are handed over at a time, at most."""


Tell = Callable[[int, int], None]
"""Hears of how many bytes of fp32 weights are made, and of how many in all."""


class Seeded(Protocol):
    """A keeper of units' first weights."""

    def seed(self, unit: int, master: Tensor) -> None:
        """Keep a unit's fp32 weights, flat; called for several units at the same time."""
        ...


def write_initial(
    model: LayeredModel,
    memory: Seeded,
    flats: Sequence[Flat],
    seed: int,
    *,
    watch: Callable[[], object] = lambda: None,
    tell: Tell = lambda done, whole: None,
) -> None:
    """Write the initial weights of all units; `watch` is called after each is made, and may
    raise."""
    buffers = _Buffers([flat.numel for flat in flats])

    def write(unit: int, buffer: Tensor) -> None:
        try:
            memory.seed(unit, buffer[: flats[unit].numel])
        finally:
            buffers.give_back(buffer)

    written: deque[Future[None]] = deque()
    made, whole = 0, 4 * sum(flat.numel for flat in flats)
    ahead = nullcontext() if model.trained is None else read_ahead(model.trained.files)
    with ahead, ThreadPoolExecutor(WRITERS) as writers:
        for unit, flat in enumerate(flats):
            buffer = buffers.take(flat.numel)  # [at least the numbers of the unit]
            model.build(unit, seed=seed, places=dict(flat.views(buffer)))
            written.append(writers.submit(write, unit, buffer))
            while written and (written[0].done() or len(written) > WRITERS):
                written.popleft().result()
            watch()
            made += 4 * flat.numel
            tell(made, whole)
        for last in written:
            last.result()


class _Buffers:
    """fp32 memory of units that are made, used again: new memory is zeroed first, page by page."""

    def __init__(self, numels: Sequence[int]) -> None:
        self._most = 2 * max(numels, default=0)
        self._all = 0
        """Numbers in all buffers, never more than `_most`."""
        self._free: list[Tensor] = []
        self._changed = threading.Condition()

    def take(self, numel: int) -> Tensor:
        """The smallest free one with room, or a new one; waits until there may be one."""
        with self._changed:
            while True:
                self._free.sort(key=len)
                at = next((i for i, held in enumerate(self._free) if len(held) >= numel), None)
                if at is not None:
                    return self._free.pop(at)
                if self._all + numel > self._most:  # those that are free are too small
                    self._all -= sum(map(len, self._free))
                    self._free.clear()
                if self._all + numel <= self._most:
                    self._all += numel
                    return torch.empty(numel)
                self._changed.wait()

    def give_back(self, buffer: Tensor) -> None:
        """Let the next unit be made in it."""
        with self._changed:
            self._free.append(buffer)
            self._changed.notify()
