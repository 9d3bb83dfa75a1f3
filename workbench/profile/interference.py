"""How much each lane slows while another is at work beside it.

Copies, updates and compute meet at the host's memory, and without a GPU at its cores. Each pair of
lanes is measured with both at their real work in threads of their own, against each alone a moment
before. What a third lane adds follows from the cores (profile.py), but for the three that meet at
the host's memory beside a GPU, which are measured all at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from workbench.profile.loads import Load
from workbench.profile.profile import all_at_once
from workbench.profile.table import Table
from workbench.profile.timing import Sample, quietest, repeat_together, summarize


def interference(
    lanes: Mapping[str, Load],
    table: Table,
    *,
    twins: Mapping[str, str],
    known: Collection[str] = (),
) -> dict[str, float]:
    """``"a|b"``: by which factor, at least 1, lane a is slower while lane b is at work.

    `twins` maps a lane to one that does the same work, which is then measured beside it only. Pairs
    that are `known` are not measured.
    """
    slowdowns: dict[str, float] = {}
    names = [lane for lane in lanes if lane not in twins.values()]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]] + list(twins.items())
    for a, b in pairs:
        if f"{a}|{b}" in known:
            continue
        for (first, second), factor in zip(
            ((a, b), (b, a)), _beside(a, lanes[a], b, lanes[b], table), strict=True
        ):
            slowdowns[f"{first}|{second}"] = factor
            if (a, b) in twins.items():
                continue
            if first in twins:
                slowdowns[f"{twins[first]}|{second}"] = factor
            if second in twins:
                slowdowns[f"{first}|{twins[second]}"] = factor
    return slowdowns


def sharing(one: Load, first: Load, second: Load, table: Table) -> float:
    """Factor by which a host worker slows when a second one takes half of the threads of `one`."""
    (alone, left, right), others = quietest(
        lambda: _alone([one], table) + _together([first, second], table)
    )
    return _enter("host", "a second host worker", alone, [*left, *right], others, table)


def crowd(lanes: Mapping[str, Load], table: Table) -> dict[str, float]:
    """How much each of the lanes that meet at the host's memory slows while all are at work, by
    `all_at_once`; also enters what the memory gives them together."""
    loads = list(lanes.values())
    found, others = quietest(lambda: _alone(loads, table) + _together(loads, table))
    alone, beside = found[: len(loads)], found[len(loads) :]
    seconds = [summarize(samples, others).seconds for samples in beside]
    rate = sum(load.amount * load.bytes_each / s for load, s in zip(loads, seconds, strict=True))
    table.add("host memory, all at once", rate, "B/s", others=others)
    return {
        all_at_once(lane): _enter(lane, "all at once", one, all_, others, table)
        for lane, one, all_ in zip(lanes, alone, beside, strict=True)
    }


def _beside(a: str, load_a: Load, b: str, load_b: Load, table: Table) -> tuple[float, float]:
    """Slowdown of a beside b, and of b beside a."""
    loads = [load_a, load_b]
    (alone_a, alone_b, beside_a, beside_b), others = quietest(
        lambda: _alone(loads, table) + _together(loads, table)
    )
    return (
        _enter(a, b, alone_a, beside_a, others, table),
        _enter(b, a, alone_b, beside_b, others, table),
    )


def _alone(loads: list[Load], table: Table) -> list[list[Sample]]:
    """Samples of each by itself, in a thread like the ones they have together."""
    return [repeat_together(load.once, seconds=table.seconds / 4)[0] for load in loads]


def _together(loads: list[Load], table: Table) -> list[list[Sample]]:
    return repeat_together(*(load.once for load in loads), seconds=table.seconds)


def _enter(
    lane: str, other: str, alone: list[Sample], beside: list[Sample], others: float, table: Table
) -> float:
    """Enter the figure; the slowdown is at least 1, for no work gets faster beside other work."""
    slow = summarize(beside, others)
    factor = slow.seconds / summarize(alone, others).seconds
    table.add(f"{lane} beside {other}", factor, "x", spread=slow.spread, others=others)
    return max(1.0, factor)
