"""Which stage to relieve, and by which moves: heuristics 1 and 2 of Aceso (EuroSys'24 artifact).

The bottleneck is the fullest stage where one does not fit, else the slowest. What it has most of,
against the other stages, is what moves should lower: computation, efficiency lost to splitting it,
or recomputation. Moves that raise nothing else that is scarce go first.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal

from workbench.methods.aceso.costs import NS_OF_MS, PlanCost
from workbench.methods.aceso.database import BACKWARD, FORWARD
from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.space import Rated, Space

Move = Literal["dec-op", "inc-dp", "dec-dp", "inc-tp", "dec-tp", "inc-mbs", "dec-mbs"]
TRENDS: dict[Move, tuple[int, int, int]] = {
    "dec-op": (-1, 0, -1),
    "inc-dp": (-1, 1, -1),
    "dec-dp": (1, -1, 1),
    "inc-tp": (-1, 1, -1),
    "dec-tp": (1, -1, 1),
    "inc-mbs": (-1, 0, 1),
    "dec-mbs": (1, 0, -1),
}
"""Of computation, communication and memory of the stage that a move is made for."""
ROUND = 9
"""Decimals of shares that are compared: equal ones may differ by rounding."""


Order = Callable[[Space, Rated, int], list[list[Move]]]
"""Groups of moves for a stage, which are tried one after the other."""


def worst_first(space: Space, cost: PlanCost) -> list[int]:
    """Stages, the one to relieve first."""
    memory = [stage.memory for stage in cost.stages]
    scarce = memory if max(memory) > space.cluster.memory else cost.times
    return sorted(range(len(memory)), key=lambda i: (-scarce[i], i))


def ideal(space: Space, plan: Plan, index: int) -> float:
    """Milliseconds of a stage's passes, were they split over its devices without loss."""
    _, sums = space.costs.table(plan.micro, 1, 0)
    first, last = plan.starts[index], plan.starts[index + 1]
    total = sum(int(sums[c, last] - sums[c, first]) for c in (FORWARD, BACKWARD))
    return total / NS_OF_MS / plan.stages[index].gpus


def groups(space: Space, rated: Rated, index: int) -> list[list[Move]]:
    """Moves for a stage, in groups that are tried in order."""
    if rated.cost.memory > space.cluster.memory:
        return [[move for move, (_, _, memory) in TRENDS.items() if memory < 0]]
    plan, cost = rated
    bare = [ideal(space, plan, i) for i in range(len(plan.stages))]
    lost = [stage.forward + stage.backward - bare[i] for i, stage in enumerate(cost.stages)]
    again = [stage.recompute for stage in cost.stages]
    resources = (bare, lost, again)
    shares = [round(each[index] / total, ROUND) if (total := sum(each)) > 0 else 0.0
              for each in resources]  # fmt: skip
    scarce = [each[index] > sum(each) / len(each) for each in resources[:2]]
    scarce.append(again[index] > 0)
    left, found = dict(TRENDS), []
    for resource in sorted(range(3), key=lambda r: (-shares[r], r)):
        lowering = [move for move, trend in left.items() if trend[resource] < 0]
        others = [r for r in range(3) if r != resource and scarce[r]]
        gentle = [move for move in lowering if all(TRENDS[move][r] <= 0 for r in others)]
        found += [gentle, [move for move in lowering if move not in gentle]]
        for move in lowering:
            del left[move]
    return [group for group in [*found, list(left)] if group]


class Shuffled:
    """Moves for a stage one by one, in random order."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)

    def __call__(self, space: Space, rated: Rated, index: int) -> list[list[Move]]:
        """A group a move."""
        moves = [move for group in groups(space, rated, index) for move in group]
        self._draw.shuffle(moves)
        return [[move] for move in moves]
