"""Sizes of stages, as units of a schedule, from those of a model's units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from workbench.profile.profile import Profile
from workbench.profile.unit_costs import ProfiledSizes, Sizes
from workbench.profile.units import UnitCost

SUMS = ("parameters", "forward_s", "recompute_s", "backward_s", "gradient_s", "flops")
PEAKS = ("forward_scratch_bytes", "recompute_scratch_bytes", "backward_scratch_bytes")
ADAM, FP32 = 2.0, 4
"""Numbers that Adam keeps of each parameter; bytes of one."""
PIECE = 1 << 20
"""Elements of a parameter that are predicted at a time: their intermediate values are small."""
FUSED = ("adamw", "adam")
"""Optimizers whose update is one kernel on a GPU."""


def sizes_of(profile: Profile) -> ProfiledSizes:
    """Sizes of units with fp32 weights, whatever they were profiled in. Passes in 16 bits cast
    those that matrix products read, and keep the casts as long as what the backward pass needs."""
    units = profile.units
    if profile.weight_bytes < FP32:
        units = tuple(
            replace(unit, kept_bytes=unit.kept_bytes + profile.weight_bytes * unit.parameters)
            if unit.flops >= unit.parameters  # an embedding's are looked up
            else unit
            for unit in units
        )
    profile = replace(profile, weight_bytes=FP32, units=units)
    return ProfiledSizes({profile.microbatch: profile}, tied={})


class StageSizes:
    """`Sizes` (profile/unit_costs.py) of consecutive units as one."""

    doubled = ()

    def __init__(self, sizes: Sizes, stages: Sequence[range], values: float = ADAM) -> None:
        """`values`: fp32 numbers that the optimizer keeps of each parameter; `sizes` are Adam's."""
        self._sizes, self._stages, self._saved = sizes, stages, FP32 * (ADAM - values)
        self.library_bytes = sizes.library_bytes
        self.cost = lru_cache(maxsize=None)(self._cost)

    def _cost(self, unit: int, samples: int) -> UnitCost:
        own = self._stages[unit]
        costs = [self._sizes.cost(each, samples) for each in own]
        inner = sum(self._sizes.input_bytes(each, samples) for each in own[1:])
        return UnitCost(
            kind="stage",
            input_bytes=costs[0].input_bytes,
            output_bytes=costs[-1].output_bytes,
            kept_bytes=sum(cost.kept_bytes for cost in costs) + inner,
            **{name: sum(getattr(cost, name) for cost in costs) for name in SUMS},
            **{name: max(getattr(cost, name) for cost in costs) for name in PEAKS},
        )

    def input_bytes(self, unit: int, samples: int) -> int:
        first = self._stages[unit].start
        return self._sizes.input_bytes(first, samples) if first else 0

    def _sum(self, unit: int, of: str) -> int:
        return sum(getattr(self._sizes, of)(each) for each in self._stages[unit])

    def weight_bytes(self, unit: int) -> int:
        return self._sum(unit, "weight_bytes")

    visit_bytes = weight_bytes

    def fresh_bytes(self, unit: int) -> int:
        return 0  # each gradient is added up as soon as it is made

    def state_bytes(self, unit: int) -> int:
        fewer = self._saved and round(self._saved * self.cost(unit, 1).parameters)
        return max(0, round(self._sum(unit, "state_bytes")) - fewer)

    def update_bytes(self, unit: int, *, optimizer: str, device: str) -> int:
        """Memory that an optimizer of torch's works in. On a processor one weight comes after the
        other, which takes two values for each of its parameters; no weight is larger than its
        unit. On a GPU it takes one for each parameter of the stage, or none where it is fused."""
        each = [self._sizes.cost(own, 1).parameters for own in self._stages[unit]]
        if device != "cuda":
            return 2 * FP32 * max(each)
        return 0 if optimizer in FUSED else FP32 * sum(each)

    def predict_bytes(self, unit: int) -> int:
        """Memory that a prediction works in: four values for each parameter of a piece."""
        each = [self._sizes.cost(own, 1).parameters for own in self._stages[unit]]
        return 4 * FP32 * min(PIECE, max(each))

    def owner(self, unit: int) -> int:
        return unit

    def token_bytes(self, samples: int) -> int:
        return self._sizes.token_bytes(samples)
