"""Mixed stages: blocks of the graph share devices wherever they lie (Mixed-pipe, Eliad et al., ATC
2021).

For each number of blocks L: coarsen, give blocks to devices, make stages of each device's blocks, move
single items over the borders, and keep the best L. Ours differs from the published rules in what it
packs and how. Coarsening goes on from L blocks down to one a device, and every number on the way is
packed, so that a larger L never does worse; classes of blocks spread over the devices are one more
start, and so is the best contiguous cut, which the result can therefore never be slower than.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Literal

from workbench.partition.bins import bins
from workbench.partition.coarsen import Blocks, named_blocks
from workbench.partition.pack import pack, shortest_first, together
from workbench.partition.pipedream import contiguous
from workbench.partition.placement import Placement, better, placed
from workbench.partition.problem import Problem
from workbench.partition.refine import published, refine

REFINED = 3
"""Placements that are refined, of those that blocks give."""
STARTED = 128
"""Most blocks of which each number on the way down is packed; above, each doubling."""
SMALL = 1 / 16
"""Share of the largest block's work up to which a block goes with a neighbour when classes spread."""
APART = 1.05
"""Times the slowest stage may be slower for users of a shared weight to be together."""


@dataclass(frozen=True, kw_only=True)
class Mpipe:
    """Settings of the method."""

    L: tuple[int, ...] = ()
    """Numbers of blocks; none: twice the devices."""
    special_blocks: tuple[str, ...] = ()
    """Classes whose modules are one block each."""
    packing: Literal["best", "faithful"] = "best"
    """faithful: the published rules, the lightest block first."""
    seed: int = 0


def mixed(problem: Problem, settings: Mpipe) -> Placement:
    """The best placement found. Raises ValueError where none fits in memory."""
    counts = settings.L or (2 * problem.devices,)
    if min(counts) < problem.devices:
        raise ValueError(
            f"L is {min(counts)}; {problem.devices} devices need as many blocks at the least"
        )
    search = _faithful if settings.packing == "faithful" else _best
    return search(problem, settings, sorted(counts))


def _faithful(problem: Problem, settings: Mpipe, counts: Sequence[int]) -> Placement:
    found: list[Placement] = []
    named, named_of, kinds = named_blocks(problem, settings.special_blocks)
    refusal = None
    for count in counts:
        blocks = Blocks(named)
        blocks.without_idle(count)
        blocks.hiding_messages(count)
        blocks.around_centres(count, kinds, Random(settings.seed))
        for _ in blocks.lightest_first(count):
            pass
        block_of = blocks.block_of()
        coarse = named.coarse(block_of)
        try:
            start = placed(coarse, shortest_first(coarse))
        except ValueError as error:
            refusal = error
            continue
        fine = _fine(problem, start, [block_of[each] for each in named_of])
        found.append(refine(fine, published).numbered())
    if not found:
        raise ValueError(f"no number of blocks gives a placement: {refusal}")
    return min(found, key=published)


def _best(problem: Problem, settings: Mpipe, counts: Sequence[int]) -> Placement:
    fixed = [item for item, names in enumerate(problem.shared) if names]
    starts = sorted(
        _starts(problem, settings, counts[-1]),
        key=lambda start: (*start[0].key()[:2], len(start[0].device_of)),
    )
    best: Placement | None = None
    for coarse, block_of in starts[:REFINED]:
        found = refine(_fine(problem, coarse, block_of), fixed=fixed)
        fused = placed(problem, found.devices)
        for one in (fused, found):
            if best is None or better(one.key()[:2], best.key()[:2]):
                best = one
    if best is None or best.over():
        raise ValueError(
            "no placement was found that fits in memory: give more --memory, or a larger --L"
        )
    return best.numbered()


def _starts(
    problem: Problem, settings: Mpipe, most: int
) -> Iterator[tuple[Placement, Sequence[int]]]:
    """Placements of blocks, and the block of each item."""
    try:
        yield contiguous(problem), range(len(problem.work))
    except ValueError:
        pass
    named, named_of, _ = named_blocks(problem, settings.special_blocks)
    small = max(named.work) * SMALL
    for clusters in range(1, most // problem.devices + 1):
        spread = placed(named, bins(named, clusters, remainder="even", threshold=small))
        if len(spread.device_of) <= most:
            yield spread, named_of
    blocks = Blocks(named)
    blocks.without_idle(most)
    blocks.hiding_messages(most)
    packed = 0
    for count in chain([len(blocks)], blocks.lightest_first(problem.devices)):
        if count == most or (count < most and (count <= STARTED or not count & (count - 1))):
            packed += 1
            yield _packed(named, named_of, blocks.block_of(), settings.seed)
    if not packed:  # blocks that nothing connects stay apart
        yield _packed(named, named_of, blocks.block_of(), settings.seed)


def _packed(
    named: Problem, named_of: Sequence[int], block_of: Sequence[int], seed: int
) -> tuple[Placement, Sequence[int]]:
    """Give blocks to devices, users of a shared weight together where that fits and costs little."""
    coarse = named.coarse(block_of)
    random = Random(f"{seed} {len(coarse.work)}")
    found = placed(coarse, pack(coarse, [[block] for block in range(len(coarse.work))], random))
    if any(coarse.shared):
        joined = placed(coarse, pack(coarse, together(coarse), random))
        if joined.over() <= found.over() and joined.objective() <= APART * found.objective():
            found = joined
    return found, [block_of[each] for each in named_of]


def _fine(problem: Problem, coarse: Placement, block_of: Sequence[int]) -> Placement:
    """The placement of items whose blocks are placed."""
    return Placement(problem, [coarse.stage_of[block] for block in block_of], coarse.device_of)
