"""Slices of a profiled module as units of a schedule, and the best cut of them into stages."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

import numpy as np

from workbench.core.division import packs_of
from workbench.methods.pipeline.balance import Balance, Stages
from workbench.methods.pipeline.draft import Pipeline
from workbench.methods.pipeline.orders import ORDERS, lists
from workbench.methods.pipeline.outlook import CHUNKS
from workbench.profile.profile import UnitCost
from workbench.profile.slices import ModelProfile, Slice, Tied

MEASURED = ("forward_s", "backward_s", "kept_bytes", "scratch_bytes")


class SliceSizes:
    """`Sizes` (profile/unit_costs.py) of slices as units, or of the stages of a cut."""

    def __init__(self, profile: ModelProfile, stages: Stages | None = None) -> None:
        self._profile, self.library_bytes = profile, profile.library_bytes
        self._parts = stages or packs_of([1] * len(profile.slices))
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
        """Between two measured sizes in proportion; more samples take no less."""
        part = [self._profile.slices[number] for number in self._parts[unit]]

        def at(slice_: Slice, name: str) -> float:
            values = [getattr(one, name) for one in slice_.passes]
            least = np.minimum.accumulate(values[::-1])[::-1]
            return float(np.interp(samples, self._profile.samples, least))

        each = [[at(slice_, name) for name in MEASURED] for slice_ in part]
        forward, backward, kept, _ = (sum(column) for column in zip(*each, strict=True))
        scratch = max(row[-1] for row in each)
        inner = [slice_.boundary_bytes for slice_ in part[1:]]
        return UnitCost(
            kind="block", parameters=self._sum(unit, "parameters"), forward_s=forward,
            recompute_s=forward, backward_s=backward, kept_bytes=round(kept) + samples * sum(inner),
            forward_scratch_bytes=round(scratch), recompute_scratch_bytes=round(scratch),
            backward_scratch_bytes=round(scratch),
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
    profile: ModelProfile, order: str, stages: int, replicas: int, micro: int, batch: int
) -> Stages:
    """Slices of a shape's stages, the slowest as fast as can be: of cuts that fit, if any does."""
    chunks = CHUNKS if ORDERS[order].chunked else 1
    line = Pipeline(
        method=order, passes=lists(order, stages, ceil(ceil(batch / replicas) / micro), chunks),
        stages=(), micro=micro, replicas=replicas,
        activations="recompute" if ORDERS[order].recomputes and stages > 1 else "keep",
    )  # fmt: skip
    balance = Balance(line, SliceSizes(profile), len(profile.slices))
    return next(iter(balance.cuts(profile.device_bytes)), balance.best())


def cut_of(stages: Stages) -> str:
    """Slices of each stage, as `Varuna` and its launcher write them: ``5 4 4 3``."""
    return " ".join(str(len(part)) for part in stages)
