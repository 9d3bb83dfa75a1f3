"""Bytes in which the recorded passes of a rank's packs work, from running sums.

The builder of a step asks `replay_bytes` once, block by block; here thousands of packs are asked,
so that nothing is added up twice. Both must be the same to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate

from workbench.methods.harmony.packs import Packs, Task
from workbench.profile.unit_costs import Sizes, longest_forward_s


@dataclass(frozen=True)
class _Chains:
    """Bytes in the chains of one micro-batch size, by unit."""

    before: list[int]
    """Bytes that all blocks before keep."""
    inside: list[int]
    """The most that is there in a chain at this block, plus `before` of the chain's first."""
    last: list[int]
    """Bytes inside the block where the chain ends with it."""
    ends: list[tuple[int, int]]
    """Its input and its output."""
    fragments: list[int]
    """Bytes between the tensors of its recordings."""


class Recordings:
    """Whether passes of packs are recorded, and the memory of that."""

    def __init__(self, sizes: Sizes, units: int, below_s: float) -> None:
        """Blocks are recorded where the longest forward pass takes less than `below_s`."""
        self._sizes, self._units, self._below_s = sizes, units, below_s
        self._chains = lru_cache(maxsize=None)(self._chains_of)
        self._longest = lru_cache(maxsize=None)(partial(longest_forward_s, sizes, units))

    def made(self, packs: Packs) -> bool:
        """Whether there are any."""
        return self._longest(max(packs.forward_size, packs.backward_size)) < self._below_s

    def nbytes(self, packs: Packs, rank: int) -> int:
        """The memory that they work in on a rank's device."""
        if not self.made(packs):
            return 0
        tasks = [(task, self._blocks(task)) for task in packs.tasks_of(rank)]
        there = [self._of(task, blocks) for task, blocks in tasks if blocks]
        if not there:
            return 0
        ends, inside = (max(column) for column in zip(*there, strict=True))
        return ends + inside

    def _blocks(self, task: Task) -> range:
        return range(max(task.units.start, 1), min(task.units.stop, self._units - 1))

    def _of(self, task: Task, blocks: range) -> tuple[int, int]:
        """(bytes of inputs and outputs, bytes between them) of a task's largest recording."""
        first, end = task.micros[0]
        if task.forward:
            costs = [self._sizes.cost(unit, end - first) for unit in blocks]
            return (
                max(cost.input_bytes + cost.output_bytes for cost in costs),
                max(cost.output_bytes + cost.forward_scratch_bytes for cost in costs),
            )
        chains, last = self._chains(end - first), blocks[-1]
        most = max([*chains.inside[blocks.start : last], chains.last[last]])
        ends = chains.ends[blocks.start][0] + chains.ends[last][1]
        fragments = max(chains.fragments[unit] for unit in blocks)
        return ends, most - chains.before[blocks.start] + fragments

    def _chains_of(self, samples: int) -> _Chains:
        costs = [self._sizes.cost(unit, samples) for unit in range(self._units)]
        before = [0, *accumulate(cost.output_bytes + cost.kept_bytes for cost in costs)]
        inside, last = [], []
        for unit, cost in enumerate(costs):
            backward = cost.input_bytes + self._sizes.visit_bytes(unit)
            backward += cost.backward_scratch_bytes - cost.output_bytes
            above = costs[unit + 1].input_bytes if unit + 1 < self._units else 0
            here = before[unit + 1]
            inside.append(here + max(cost.recompute_scratch_bytes, backward + above))
            last.append(here + max(cost.recompute_scratch_bytes, backward))
        ends = [(cost.input_bytes, cost.output_bytes) for cost in costs]
        fragments = [
            max(0, cost.recorded_bytes - most + below)
            for cost, most, below in zip(costs, last, before, strict=False)
        ]
        return _Chains(before=before, inside=inside, last=last, ends=ends, fragments=fragments)
