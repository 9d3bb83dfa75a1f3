"""Plans that a search may make: micro-batches, devices of stages, memory; and its first plans.

The rules are those of Aceso's artifact (EuroSys'24): a stage has a power of two of devices, no
stage lies across nodes, and every device's samples of a micro-batch are among those profiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from workbench.methods.aceso.costs import Costs, PlanCost
from workbench.methods.aceso.plan import Plan, Stage, Subject
from workbench.methods.aceso.recompute import Chooser

MOST_STAGES = 16
SIZES = (1, 2, 4, 8)
"""Devices that a stage may have."""
MOST_OF_STAGE = SIZES[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Devices that are there."""

    nodes: int
    per_node: int
    memory: float
    """MB of a device."""

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.nodes * self.per_node


class Rated(NamedTuple):
    """A plan and its cost."""

    plan: Plan
    cost: PlanCost


class Space:
    """Plans of one model on one cluster, and their costs."""

    def __init__(
        self, subject: Subject, cluster: Cluster, costs: Costs, *, micros: tuple[int, ...],
        most_tp: int, margin: float = 0.0,
    ) -> None:  # fmt: skip
        self.subject, self.cluster, self.costs = subject, cluster, costs
        self.micros, self.most_tp = tuple(sorted(micros)), most_tp
        self.choose = Chooser(costs, cluster.memory - margin)

    def fits(self, cost: PlanCost) -> bool:
        """Whether every stage fits."""
        return cost.memory <= self.cluster.memory

    def rank(self, rated: Rated) -> tuple[bool, float]:
        """Less is better: a plan that fits by its time, before others by their memory."""
        fits = self.fits(rated.cost)
        return not fits, rated.cost.time if fits else rated.cost.memory

    def rated(self, micro: int, stages: tuple[Stage, ...]) -> Rated:
        """A plan of these stages with its cost."""
        plan = Plan(self.subject, micro, stages)
        return Rated(plan, self.costs.plan(plan))

    def may_have(self, used: int, size: int, behind: int) -> bool:
        """Whether a stage may have `size` devices after `used` ones: all of one node, and the
        `behind` stages after it can have the others."""
        per_node, left = self.cluster.per_node, self.cluster.gpus - used - size
        whole = used // per_node == (used + size - 1) // per_node
        return whole and behind <= left <= behind * MOST_OF_STAGE

    def legal(self, micro: int, stages: tuple[Stage, ...]) -> bool:
        """Whether the rules allow it."""
        total, per_node = 0, self.cluster.per_node
        edges = {0}
        for stage in stages:
            if not 1 <= stage.gpus <= MOST_OF_STAGE or max(stage.tp) > self.most_tp:
                return False
            if any(micro % dp or micro // dp not in self.micros for dp in set(stage.dp)):
                return False
            total += stage.gpus
            edges.add(total)
        nodes = range(0, total + 1, per_node)
        return total == self.cluster.gpus and micro in self.micros and edges.issuperset(nodes)

    def choose_all(self, micro: int, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """The stages with recomputation chosen anew."""
        first, found = 0, []
        for index, stage in enumerate(stages):
            found.append(self.choose(stage, first, micro, len(stages) - 1 - index))
            first += len(stage.tp)
        return tuple(found)

    def first(self, count: int, *, wide: str = "tp", start: str = "balance") -> Rated | None:
        """The plan that a search of `count` stages starts from: devices dealt in turn, operators
        in equal parts, the smallest micro-batch; None where devices cannot be dealt. `wide` (tp or
        dp) is what a stage's devices are used for. `start` may be ``imbalance_gpu``, which deals
        from the last stage, or ``imbalance_op``, which gives nearly all operators to the first."""
        gpus = self.deal(count, from_last=start == "imbalance_gpu")
        total = len(self.costs.operators)
        if gpus is None or count > total:
            return None
        each = total // count if start != "imbalance_op" else 1
        sizes = [each] * count
        sizes[0 if start == "imbalance_op" else -1] += total - each * count
        most_dp = max(gpus) if wide == "dp" else 1
        micro = next((m for m in self.micros if m % most_dp == 0), self.micros[-1])
        stages = []
        for size, number in zip(sizes, gpus, strict=True):
            tp, dp = (number, 1) if wide == "tp" else (1, number)
            stages.append(uniform(size, tp, dp))
        made = tuple(stages)
        if not self.legal(micro, made):
            return None
        return self.rated(micro, self.choose_all(micro, made))

    def deal(self, count: int, *, from_last: bool = False) -> list[int] | None:
        """Devices of `count` stages: one each, then doubled in turn as long as there are more."""
        gpus, total = [1] * count, self.cluster.gpus
        order = list(range(count))[:: -1 if from_last else 1]
        while sum(gpus) < total:
            before = sum(gpus)
            for index in order:
                most = min(self.most_tp, MOST_OF_STAGE)
                if gpus[index] * 2 <= most and sum(gpus) + gpus[index] <= total:
                    gpus[index] *= 2
            if sum(gpus) == before:
                return None
        return gpus if sum(gpus) == total else None


def uniform(count: int, tp: int, dp: int, algo: int = 0, recompute: int = 0) -> Stage:
    """A stage of `count` operators that are run alike."""
    lists = (bytes([each]) * count for each in (tp, dp, algo, recompute))
    return Stage(tp * dp, *lists)
