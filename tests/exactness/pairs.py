"""All pairs instead of all combinations: few settings that hold each pair of values of two axes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

CANDIDATES, TRIES = 100, 1000
"""Settings of which the best is chosen, and random ones that are looked at to find them."""
Axes = Mapping[str, Sequence[Any]]
Setting = dict[str, Any]


def covering(
    grids: Sequence[Axes], allowed: Callable[[Setting], bool], cost: Callable[[Setting], float],
    *, seed: int,
) -> list[Setting]:  # fmt: skip
    """Allowed settings of some grids over the same axes: every pair of values of two axes that one
    of the grids has is in a setting, unless none of `TRIES` with it was allowed. A setting that
    costs little for its new pairs goes first; in the end those are left out whose pairs others
    have, the dearest first. The answer is the same every time; of some hundred seeds a caller gives
    one whose settings cost little."""
    draw, chosen = random.Random(seed), []
    lacking = {pair: None for axes in grids for pair in _pairs(axes)}  # a dict, which has an order
    while lacking:
        pair = dict(next(iter(lacking)))
        having = [axes for axes in grids if all(value in axes[at] for at, value in pair.items())]
        drawn = (_drawn(draw.choice(having), pair, draw) for _ in range(TRIES))
        found = [one for one, _ in zip(filter(allowed, drawn), range(CANDIDATES), strict=False)]
        if not found:
            del lacking[next(iter(lacking))]
            continue
        best = max(found, key=lambda one: _new(one, lacking) / cost(one))
        chosen.append(best)
        for known in combinations(best.items(), 2):
            lacking.pop(known, None)
    return _needed(chosen, cost)


def _needed(chosen: list[Setting], cost: Callable[[Setting], float]) -> list[Setting]:
    held = Counter(pair for one in chosen for pair in combinations(one.items(), 2))
    needed = list(chosen)
    for one in sorted(chosen, key=cost, reverse=True):
        if all(held[pair] > 1 for pair in combinations(one.items(), 2)):
            held.subtract(combinations(one.items(), 2))
            needed.remove(one)
    return needed


def _pairs(axes: Axes) -> list[tuple]:
    return [
        ((one, first), (other, second))
        for one, other in combinations(axes, 2)
        for first, second in product(axes[one], axes[other])
    ]


def _drawn(axes: Axes, pair: Setting, draw: random.Random) -> Setting:
    return {name: pair[name] if name in pair else draw.choice(axes[name]) for name in axes}


def _new(setting: Setting, lacking: Mapping) -> int:
    return sum(pair in lacking for pair in combinations(setting.items(), 2))
