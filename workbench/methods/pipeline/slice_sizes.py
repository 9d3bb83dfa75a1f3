"""Slices of a profiled module as units of a schedule, and the best cut of them into stages."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from workbench.core.division import packs_of
from workbench.methods.pipeline.balance import Balance, Stages
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.orders import ORDERS, lists
from workbench.methods.pipeline.prediction import CHUNKS
from workbench.profile.slices import SliceProfile, Tied
from workbench.profile.units import CostsBySize, UnitCost

SCRATCH = ("forward_scratch_bytes", "recompute_scratch_bytes", "backward_scratch_bytes")


class SliceSizes:
    """`Sizes` (profile/unit_costs.py) of slices as units, or of the stages of a cut."""

    def __init__(self, profile: SliceProfile, stages: Stages | None = None) -> None:
        self._profile, self.library_bytes = profile, profile.library_bytes
        self._parts = stages or packs_of([1] * len(profile.slices))
        self._costs = CostsBySize(
            {n: [s.costs[i] for s in profile.slices] for i, n in enumerate(profile.samples)}
        )
        self.cost = lru_cache(maxsize=None)(self._cost)

    def _sum(self, unit: int, name: str) -> int:
        """Of all its weights, one that two slices hold counted once."""
        part, slices, tied = self._parts[unit], self._profile.slices, self._profile.tied
        twice = (one for one in tied if one.first in part and one.second in part)
        every = sum(getattr(slices[each], name) for each in part)
        return every - sum(self._of(one, name) for one in twice)

    def _of(self, tied: Tied, name: str) -> int:
        """A weight's part of what a slice has."""
        slice_ = self._profile.slices[tied.second]
        return getattr(slice_, name) * tied.nbytes // slice_.weight_bytes

    @property
    def doubled(self) -> list[tuple[int, int, int]]:
        """Weights of two slices, with their gradients and states."""
        each = ((one, 2 * one.nbytes + self._of(one, "state_bytes")) for one in self._profile.tied)
        return [(one.first, one.second, nbytes) for one, nbytes in each]

    def _cost(self, unit: int, samples: int) -> UnitCost:
        """Between two measured sizes in proportion; fewer than all of them take no less."""
        part, sizes = self._parts[unit], self._profile.samples
        within = min(max(samples, sizes[0]), sizes[-1])
        costs = [self._costs.of(each, within) for each in part]
        inner = [self._profile.slices[each].boundary_bytes for each in part[1:]]
        forward = sum(cost.forward_s for cost in costs)
        scratch = max(getattr(cost, name) for cost in costs for name in SCRATCH)
        return UnitCost(
            kind="block", parameters=self._sum(unit, "parameters"), forward_s=forward,
            recompute_s=forward, backward_s=sum(cost.backward_s for cost in costs),
            kept_bytes=sum(cost.kept_bytes for cost in costs) + samples * sum(inner),
            **dict.fromkeys(SCRATCH, scratch),
        )  # fmt: skip

    def input_bytes(self, unit: int, samples: int) -> int:
        first = self._parts[unit].start
        return samples * self._profile.slices[first].boundary_bytes if first else 0

    def weight_bytes(self, unit: int) -> int:
        return self._sum(unit, "weight_bytes")

    visit_bytes = weight_bytes

    def fresh_bytes(self, unit: int) -> int:
        return 0  # each gradient is added up as soon as it is made: a slice's scratch has it

    def state_bytes(self, unit: int) -> int:
        return self._sum(unit, "state_bytes")

    def owner(self, unit: int) -> int:
        return unit

    def token_bytes(self, samples: int) -> int:
        return samples * self._profile.slices[0].boundary_bytes


def stages_of(
    profile: SliceProfile, order: str, stages: int, replicas: int, micro_size: int, batch: int
) -> Stages:
    """Slices of a shape's stages, the slowest as fast as can be: of cuts that fit, if any does."""
    chunks = CHUNKS if ORDERS[order].chunked else 1
    micros = ceil(ceil(batch / replicas) / micro_size)
    line = Pipeline(
        method=order, passes=lists(order, stages, micros, chunks), stages=(),
        micro_size=micro_size, replicas=replicas,
        activations="recompute" if ORDERS[order].recomputes and stages > 1 else "keep",
    )  # fmt: skip
    balance = Balance(line, SliceSizes(profile), len(profile.slices))
    return next(iter(balance.cuts(profile.device_bytes)), balance.fastest())


def cut_of(stages: Stages) -> str:
    """Slices of each stage, as `Varuna` and its launcher write them: ``5 4 4 3``."""
    return " ".join(str(len(part)) for part in stages)
