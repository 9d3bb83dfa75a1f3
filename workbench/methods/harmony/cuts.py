"""Where packs are cut: numbers of packs, packs for each number, and cuts that are moved."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, pairwise

from workbench.methods.harmony.problem import PackingProblem
from workbench.partition.chain import min_max_partitions
from workbench.profile.profile import UnitCost
from workbench.profile.unit_costs import Sizes, longest_forward_s, pass_costs
from workbench.schedule.build.ring import aligned

ROUNDS = 6
"""Packs a direction are tried up to so many a rank one by one."""
STRIDE = 1.1
"""And beyond in whole rounds, each number by so much larger."""
EVEN = 2e-3
"""Share by which the slowest pack may be slower than it must be: cuts are moved afterwards."""
FUSED = (0.35, 0.5, 0.65, 0.8, 1.0, 1.2)
"""Time of the last pack, in shares of what each rank has to do, where it is cut off first."""


def cut_moved(
    packs: tuple[range, ...], number: int, more: bool, by: int
) -> tuple[range, ...] | None:
    """As many packs, the end of one of them moved, with or without the ends of all that follow;
    None where a pack would be empty."""
    ends = [pack.stop for pack in packs[:-1]]
    last = len(ends) if more else number + 1
    ends[number:last] = [end + by for end in ends[number:last]]
    ends = [packs[0].start, *ends, packs[-1].stop]
    if number + 1 >= len(packs) or any(a >= b for a, b in pairwise(ends)):
        return None
    return tuple(range(a, b) for a, b in pairwise(ends))


def packs_up_to(packs: tuple[range, ...], end: int) -> tuple[range, ...]:
    """Packs up to another end; packs that would be empty are left out."""
    kept = [pack for pack in packs if pack.start < end]
    return (*kept[:-1], range(kept[-1].start, end)) if kept else ()


def pack_counts(units: int, ranks: int) -> list[int]:
    """Numbers of packs to try: all small ones, and of large ones whole rounds, ever fewer."""
    found, number = list(range(1, min(units, ROUNDS * ranks) + 1)), float(ROUNDS * ranks)
    while number < units:
        number = max(number + ranks, number * STRIDE)
        found.append(min(units, round(number / ranks) * ranks))
    return sorted(set(found))


def last_starts(work: list[float], share: float) -> list[int]:
    """Where a last pack of each of these sizes begins."""
    ends = [0.0, *accumulate(reversed(work))]
    found = {len(work) - bisect_left(ends, part * share) for part in FUSED}
    return sorted(start for start in found if 0 < start < len(work))


def shared_out(work: list[float], last: float, ranks: int, count: int) -> tuple[range, ...]:
    """So many packs, dealt out in turn, that all ranks have as much to do as the one that also has
    the last pack. Every pack has a unit at least."""
    own = [len(range(rank, count, ranks)) for rank in range(ranks)]
    share = (sum(work) + last) / len([rank for rank in range(ranks) if own[rank]])
    own_share = [share - last * (rank == count % ranks) for rank in range(ranks)]
    wanted = [max(0.0, own_share[n % ranks]) / own[n % ranks] for n in range(count)]
    ends, sums = [0.0, *accumulate(work)], [*accumulate(wanted)]
    cuts = [0]
    for number, until in enumerate(sums[:-1], 1):
        at = bisect_left(ends, until / sums[-1] * ends[-1]) if sums[-1] else 0
        cuts.append(min(max(at, cuts[-1] + 1), len(work) - (count - number)))
    return tuple(range(a, b) for a, b in pairwise([*cuts, len(work)]))


def costs_of(problem: PackingProblem, sizes: Sizes, units: int, samples: int) -> list[UnitCost]:
    """Costs of all units' passes over so many samples, recorded ones where passes of that size are
    recorded."""
    recorded = longest_forward_s(sizes, units, samples) < problem.recorded_below_s
    return pass_costs(sizes, units, samples, recorded)


def backward_packs(
    problem: PackingProblem, sizes: Sizes, units: int, size: int, counts: list[int]
) -> list[tuple[range, ...]]:
    costs = costs_of(problem, sizes, units, size)
    needs = [
        2 * aligned(sizes.visit_bytes(unit)) + cost.kept_bytes + cost.input_bytes
        for unit, cost in enumerate(costs)
    ]
    scratch = [
        max(0, cost.backward_scratch_bytes + sizes.fresh_bytes(unit))
        for unit, cost in enumerate(costs)
    ]
    seconds = [cost.recompute_s + cost.backward_s for cost in costs]
    return _partitions(seconds, needs, scratch, problem.device_bytes, counts)


def forward_packs(
    problem: PackingProblem, sizes: Sizes, units: int, size: int, counts: list[int]
) -> list[tuple[range, ...]]:
    costs = costs_of(problem, sizes, units, size)
    needs = [aligned(sizes.visit_bytes(unit)) for unit in range(units)]
    scratch = [cost.forward_scratch_bytes + 2 * cost.output_bytes for cost in costs]
    seconds = [cost.forward_s for cost in costs]
    return _partitions(seconds, needs, scratch, problem.device_bytes, counts)


def _partitions(
    seconds: list[float],
    needs: list[int],
    scratch: list[int],
    room: int,
    counts: list[int],
) -> list[tuple[range, ...]]:
    """The best packs for each number of them; memory is what they add up and the most of one."""
    ends = [0, *accumulate(needs)]
    largest = [scratch]
    """[k][i]: the largest of 2 ** k from i on."""
    while len(largest[-1]) > 1 << len(largest) - 1:
        last, half = largest[-1], 1 << len(largest) - 1
        largest.append([max(last[i], last[i + half]) for i in range(len(last) - half)])

    def fits(first: int, last: int) -> bool:
        level = (last + 1 - first).bit_length() - 1
        row = largest[level]
        most = max(row[first], row[last + 1 - (1 << level)])
        return ends[last + 1] - ends[first] + most <= room

    wanted = [count for count in counts if count <= len(seconds)]
    if not seconds:
        return []
    return list(min_max_partitions(seconds, wanted, fits, tolerance=EVEN, even=True).values())
