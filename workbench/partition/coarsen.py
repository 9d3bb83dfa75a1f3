"""Merges the items of a problem into few blocks, as Mixed-pipe does (Eliad et al., ATC 2021).

A block is merged with the first of its successors or with the last of its predecessors. No other
path can lead between such two, since it would have to pass between them in the order; so blocks
never wait for each other in a circle, and no walk over the graph is needed to know it. Blocks keep
within memory.

Passes, in their order: blocks that a user names, blocks without work, blocks whose messages would
not hide behind their work, and then either the published centres or the lightest blocks one after
the other, down to any number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from random import Random

from workbench.partition.problem import Problem, ordered_blocks

GROWN = 64
"""Most blocks that are tried to be merged so that a message hides."""


def named_blocks(problem: Problem, classes: Sequence[str]) -> tuple[Problem, list[int], list[str]]:
    """Make one item of all items under the same module of one of `classes`.

    Returns the problem of blocks, the block of each item, and the class of each block, empty for
    others. A module that something outside stands in the middle of takes that in; one that does not
    fit in a device stays in pieces.
    """
    modules = [_module(scope, classes) for scope in problem.scopes]
    needs: Counter[str] = Counter()
    for (_, module), size in zip(modules, problem.needs, strict=True):
        needs[module] += size
    labels: dict[str, int] = {}
    label_of = [
        labels.setdefault(module, item) if module and needs[module] <= problem.limit else item
        for item, (_, module) in enumerate(modules)
    ]
    pairs = [(item, other) for item, readers in enumerate(problem.successors) for other in readers]
    block_of = ordered_blocks(pairs, label_of)
    blocks = problem.coarse(block_of)
    if max(blocks.needs) > problem.limit:  # what stood in the middle was too much
        return problem, list(range(len(problem.work))), [""] * len(problem.work)
    kinds = [""] * len(blocks.work)
    for block, (kind, _) in zip(block_of, modules, strict=True):
        kinds[block] = kinds[block] or kind
    return blocks, block_of, kinds


def _module(scope: str, classes: Sequence[str]) -> tuple[str, str]:
    """(class, path up to the module) of the outermost module of one of the classes."""
    found = ""
    for part in scope.split("/"):
        found += f"/{part}"
        kind = re.sub(r"\[.*", "", part)
        if kind in classes:
            return kind, found
    return "", ""


class Blocks:
    """Blocks of items while they are merged; a block is known by its place in the order."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.work, self.needs = list(problem.work), list(problem.needs)
        self.successors: dict[int, dict[int, float]] = {item: {} for item in range(len(self.work))}
        """Block -> block that reads it -> bytes; tensors between two are added up."""
        self.predecessors: dict[int, set[int]] = {item: set() for item in range(len(self.work))}
        for tensor in problem.tensors:
            for reader, forward, _ in tensor.uses:
                sizes = self.successors[tensor.source]
                sizes[reader] = sizes.get(reader, 0.0) + forward
                self.predecessors[reader].add(tensor.source)
        self.into: dict[int, int] = {}
        """Block that is gone -> the one that took it in."""

    def __len__(self) -> int:
        return len(self.successors)

    def block_of(self) -> list[int]:
        """The block of each item, numbered in order."""
        number = {block: at for at, block in enumerate(sorted(self.successors))}
        found = []
        for item in range(len(self.work)):
            while item in self.into:
                item = self.into[item]
            found.append(number[item])
        return found

    def next(self, block: int) -> int | None:
        """The first successor, if both fit in a device."""
        return self._fitting(block, min(self.successors[block], default=None))

    def last(self, block: int) -> int | None:
        """The last predecessor, if both fit in a device."""
        return self._fitting(block, max(self.predecessors[block], default=None))

    def _fitting(self, block: int, other: int | None) -> int | None:
        fits = other is not None and self.needs[block] + self.needs[other] <= self.problem.limit
        return other if fits else None

    def merge(self, kept: int, gone: int) -> None:
        """Put block `gone` into `kept`: its first successor, or its last predecessor."""
        self.work[kept] += self.work[gone]
        self.needs[kept] += self.needs[gone]
        self.into[gone] = kept
        for reader, size in self.successors.pop(gone).items():
            self.predecessors[reader].discard(gone)
            if reader != kept:
                self.successors[kept][reader] = self.successors[kept].get(reader, 0.0) + size
                self.predecessors[reader].add(kept)
        for source in self.predecessors.pop(gone):
            size = self.successors[source].pop(gone)
            if source != kept:
                self.successors[source][kept] = self.successors[source].get(kept, 0.0) + size
                self.predecessors[kept].add(source)

    def absorb(self, block: int) -> None:
        """Merge a block into the last predecessor, or else into the first successor."""
        back = self.last(block)
        other = self.next(block) if back is None else back
        if other is not None:
            self.merge(other, block)

    def without_idle(self, count: int) -> None:
        """Merge blocks without work into others."""
        for block in sorted(self.successors):
            if len(self) <= count:
                return
            if block in self.successors and not self.work[block]:
                self.absorb(block)

    def hiding_messages(self, count: int) -> None:
        """Merge blocks whose work is less than the time of what they send with the blocks before
        them, the largest messages first, until messages hide; where they never do, nothing is
        merged."""
        hidden: set[int] = set()
        for block in sorted(self.successors, key=self._sent, reverse=True):
            if len(self) <= count:
                return
            if block not in self.successors or self._sent(block) <= self.work[block]:
                hidden.add(block)
                continue
            grown = self._grown(block, hidden)
            for gone in grown:
                if len(self) > count:
                    self.merge(gone, block)
                    block = gone
            hidden.add(block)

    def _sent(self, block: int) -> float:
        total = sum(self.successors.get(block, {}).values())
        return self.problem.milliseconds(total, same_device=False)

    def _grown(self, block: int, hidden: set[int]) -> list[int]:
        """Blocks to merge, each the last predecessor of those so far; none where nothing helps."""
        members, found = {block}, []
        work, needs = self.work[block], self.needs[block]
        before = set(self.predecessors[block])
        while before and len(found) < GROWN:
            other = max(before)
            needs += self.needs[other]
            if other in hidden or not self.predecessors[other] or needs > self.problem.limit:
                return []
            members.add(other)
            found.append(other)
            before = (before | self.predecessors[other]) - members
            work += self.work[other]
            cut = sum(
                size
                for member in members
                for reader, size in self.successors[member].items()
                if reader not in members
            )
            if self.problem.milliseconds(cut, same_device=False) <= work:
                return found
        return []

    def around_centres(self, count: int, kinds: Sequence[str], random: Random) -> None:
        """Let `count` centres take in what follows them, in turn, and then what precedes them.
        Centres are spread evenly over the blocks of each class, in proportion; others are drawn."""
        blocks = sorted(self.successors)
        if len(blocks) <= count:
            return
        centres: set[int] = set()
        for kind in sorted({kinds[block] for block in blocks} - {""}):
            own = [block for block in blocks if kinds[block] == kind]
            if quota := count * len(own) // len(blocks):
                centres.update(own[:: -(-len(own) // quota)])
        others = [block for block in blocks if block not in centres]
        centres.update(random.sample(others, max(0, count - len(centres))))
        for find in (self.next, self.last):
            merged = True
            while merged and len(self) > count:
                merged = False
                for centre in sorted(centres):
                    other = find(centre)
                    if other is not None and other not in centres and len(self) > count:
                        # A merger lies where the other lay: only there is it in order.
                        self.merge(other, centre)
                        centres.remove(centre)
                        centres.add(other)
                        merged = True

    def lightest_first(self, count: int) -> Iterator[int]:
        """Merge the lightest block with its lighter neighbour, down to `count` blocks or as far as
        it goes; yields the number of blocks after each merger."""
        heap = [(self.work[block], block) for block in self.successors]
        heapify(heap)
        while heap and len(self) > count:
            work, block = heappop(heap)
            if block not in self.successors or work != self.work[block]:
                continue
            near = [other for other in (self.next(block), self.last(block)) if other is not None]
            if near:
                kept = min(near, key=lambda other: (self.work[other], other))
                self.merge(kept, block)
                heappush(heap, (self.work[kept], kept))
                yield len(self)
