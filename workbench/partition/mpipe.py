"""Mixed stages: blocks of the graph share devices wherever they lie (Mixed-pipe, Eliad et al., ATC
2021).

For each number of blocks L: coarsen, give blocks to devices, make stages of each device's blocks,
move single items over the borders, and keep the best L. Ours differs from the published rules in
what it packs and how. Coarsening goes on from L blocks down to one a device, and every number on
the way is packed, so that a larger L never does worse; classes of blocks spread over the devices
are one more start, and so are the best cuts into one stage a device, than which the result is never
slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Literal

from workbench.partition.acyclic import Acyclic, acyclic
from workbench.partition.bins import Bins, bins
from workbench.partition.coarsen import Blocks, named_blocks
from workbench.partition.pack import apart, gathered, pack, polished, shortest_first
from workbench.partition.pipedream import contiguous
from workbench.partition.placement import Placement, placed
from workbench.partition.problem import SAME, Problem
from workbench.partition.refine import published, refine

REFINED = 3
"""Placements that are refined, of those that blocks give."""
STARTED = 128
"""Most blocks of which each number on the way down is packed; above, each doubling."""
NEAR = 1.001
"""Times by which a placement with fewer stages may be slower than the fastest one."""
SMALL = 1 / 16
"""Share of the largest block's work up to which a block goes with a neighbour when classes
spread."""
APART = 1.01
"""Times by which a placement with all users of shared weights together may be slower."""


@dataclass(frozen=True, kw_only=True)
class Mpipe:
    """Settings of the method."""

    L: tuple[int, ...] = ()
    """Numbers of blocks; none: twice the devices."""
    special_blocks: tuple[str, ...] = ()
    """Classes whose modules are one block each."""
    packing: Literal["best", "faithful"] = "best"
    """faithful: the published rules, the lightest block first."""


def mixed(problem: Problem, settings: Mpipe, seed: int) -> Placement:
    """The best placement found. Raises ValueError where none fits in memory."""
    counts = sorted(settings.L or (2 * problem.devices,))
    if counts[0] < problem.devices:
        raise ValueError(
            f"L is {counts[0]}; {problem.devices} devices need as many blocks at the least"
        )
    if settings.packing == "faithful":
        return _faithful(problem, settings, counts, seed)
    most = counts[-1]
    best = _best(problem, settings, most, seed)
    while best.over() and not settings.L and most < len(problem.work):
        most *= 2  # smaller blocks fill memory better
        best = _best(problem, settings, most, seed)
    if best.over():
        raise ValueError(
            "no placement was found that fits in memory: give more --memory, or a larger --L"
        )
    return best


def _faithful(problem: Problem, settings: Mpipe, counts: Sequence[int], seed: int) -> Placement:
    found: list[Placement] = []
    named, named_of, kinds = named_blocks(problem, settings.special_blocks)
    refusal = None
    for count in counts:
        blocks = Blocks(named)
        blocks.without_idle(count)
        blocks.hiding_messages(count)
        blocks.around_centres(count, kinds, Random(seed))
        for _ in blocks.lightest_first(count):
            pass
        block_of = blocks.block_of()
        coarse = named.coarse(block_of)
        try:
            start = placed(coarse, shortest_first(coarse))
        except ValueError as error:
            refusal = error
            continue
        stage_of = [start.stage_of[block_of[each]] for each in named_of]
        fine = Placement(problem, stage_of, start.device_of)
        found.append(refine(fine, published).numbered())
    if not found:
        raise ValueError(f"no number of blocks gives a placement: {refusal}")
    return min(found, key=published)


def _best(problem: Problem, settings: Mpipe, most: int, seed: int) -> Placement:
    """The best placement of at most so many blocks, fewer stages where times hardly differ."""
    starts = [*_starts(problem, settings, most, seed)]
    cuts = _cuts(problem, seed)
    starts += [(cut, range(len(problem.work))) for cut in cuts]
    starts.sort(key=lambda start: (*start[0].key()[:2], len(start[0].device_of)))
    shared = [item for item, names in enumerate(problem.shared) if names]
    found: list[Placement] = []
    for coarse, block_of in starts[:REFINED]:
        fine = Placement(problem, [coarse.stage_of[block] for block in block_of], coarse.device_of)
        refined = [refine(fine)]
        if shared:
            refined.append(refine(gathered(refined[0]), fixed=shared))
        for one in refined:
            found += [one.numbered(), placed(problem, one.devices).numbered()]
    whole = [one for one in found if not apart(one)]
    for kept, fixed in ((found, []), (whole, shared)) if shared else ((found, []),):
        if kept:
            top = min(kept, key=lambda one: one.key()[:2])
            found.append(polished(top, most, fixed).numbered())
    best = min(found, key=lambda one: one.key()[:2])
    if best.over():
        return best
    limit = min((cut.objective() for cut in cuts), default=float("inf"))

    def near(one: Placement) -> bool:
        most = best.objective() * (NEAR if apart(one) else APART if shared else NEAR)
        return not one.over() and one.objective() <= min(limit, most) * (1 + SAME)

    return min(filter(near, found), key=lambda one: (apart(one), len(one.device_of), *one.key()))


def _cuts(problem: Problem, seed: int) -> list[Placement]:
    """Placements of one stage a device, where one fits in memory."""
    cuts = []
    for cut in (contiguous, lambda problem: acyclic(problem, Acyclic(), Random(seed))):
        with suppress(ValueError):
            cuts.append(cut(problem))
    return cuts


def _starts(
    problem: Problem, settings: Mpipe, most: int, seed: int
) -> Iterator[tuple[Placement, Sequence[int]]]:
    """Placements of blocks, and the block of each item."""
    named, named_of, _ = named_blocks(problem, settings.special_blocks)
    small = max(named.work) * SMALL
    for clusters in range(1, most // problem.devices + 1):
        evenly = Bins(n_clusters=clusters, reminder_policy="even", THRESHOLD=small)
        spread = placed(named, bins(named, evenly))
        if len(spread.device_of) <= most:
            yield spread, named_of
    blocks = Blocks(named)
    blocks.without_idle(most)
    blocks.hiding_messages(most)
    packed = 0
    for count in chain([len(blocks)], blocks.lightest_first(problem.devices)):
        if count == most or (count < most and (count <= STARTED or not count & (count - 1))):
            packed += 1
            yield _packed(named, named_of, blocks.block_of(), seed)
    if not packed:  # blocks that nothing connects stay apart
        yield _packed(named, named_of, blocks.block_of(), seed)


def _packed(
    named: Problem, named_of: Sequence[int], block_of: Sequence[int], seed: int
) -> tuple[Placement, Sequence[int]]:
    coarse = named.coarse(block_of)
    found = placed(coarse, pack(coarse, Random(f"{seed} {len(coarse.work)}")))
    return found, [block_of[each] for each in named_of]
