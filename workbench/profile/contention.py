"""Rates of a rank's lanes at the host's memory, alone and beside each other, on all ranks at once.

A GPU that is measured alone (interference.py) says too little of one of several: four of them meet
at the host's memory with four times the copies, and their updates are those of four processes with
a part of the cores each, which got up to a quarter more out of that memory than one process with
all cores (four H100s, 64 cores). So each lane that works there, each pair, and all three are timed
while they are at work on all ranks. Passes work on a GPU of their own; what they lose to lanes
beside them is that of a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

from workbench.profile.loads import Load
from workbench.profile.profile import all_at_once
from workbench.profile.timing import repeat_together, summarize


def measure_contention(
    lanes: Mapping[str, Load], meet: Callable[[], None], *, seconds: float = 0.25
) -> tuple[dict[str, float], dict[str, float]]:
    """One rank's part: what each of its lanes does a second (bytes, parameters), and the factors by
    which they slow each other, as `Hardware.slowdowns` has them. `meet` returns when all ranks have
    called it. `lanes` are those of MEMORY_LANES."""

    def at_once(those: tuple[str, ...]) -> dict[str, float]:
        meet()
        found = repeat_together(*(lanes[lane].once for lane in those), seconds=seconds)
        return {lane: summarize(taken).seconds for lane, taken in zip(those, found, strict=True)}

    alone = {lane: at_once((lane,))[lane] for lane in lanes}
    factors: dict[str, float] = {}
    for a, b in combinations(lanes, 2):
        both = at_once((a, b))
        factors |= {f"{a}|{b}": both[a] / alone[a], f"{b}|{a}": both[b] / alone[b]}
    crowd = at_once(tuple(lanes))
    factors |= {all_at_once(lane): crowd[lane] / alone[lane] for lane in crowd}
    rates = {lane: lanes[lane].amount / taken for lane, taken in alone.items()}
    return rates, {pair: max(1.0, factor) for pair, factor in factors.items()}
