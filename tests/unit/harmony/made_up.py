"""Invented layers and machines for Harmony's schedules."""

from __future__ import annotations

import random
from dataclasses import replace

from workbench.core.division import packs_of
from workbench.methods.harmony.packs import Packs
from workbench.profile.profile import UnitCost
from workbench.schedule.action import Action, Kind
from workbench.schedule.build.ring import aligned

BYTES_PER_S = 1e7


class Layers:
    """Layers of so many parameters, in fp32."""

    library_bytes = 0

    def __init__(self, parameters: list[int], tied: dict[int, int] | None = None) -> None:
        self.parameters, self.tied = parameters, tied or {}

    def cost(self, unit: int, samples: int) -> UnitCost:
        return UnitCost(
            kind="block",
            parameters=self.parameters[unit],
            forward_s=1e-3 * samples,
            recompute_s=1e-3 * samples,
            backward_s=2e-3 * samples,
            input_bytes=self.input_bytes(unit, samples),
            kept_bytes=5000 * samples,
            forward_scratch_bytes=100 * samples,
            recompute_scratch_bytes=200 * samples,
            backward_scratch_bytes=300 * samples,
        )

    def input_bytes(self, unit: int, samples: int) -> int:
        return 1000 * samples if unit else 0

    def weight_bytes(self, unit: int) -> int:
        return 4 * self.parameters[unit]

    def visit_bytes(self, unit: int) -> int:
        return self.weight_bytes(unit) + (
            self.weight_bytes(self.tied[unit]) if unit in self.tied else 0
        )

    def fresh_bytes(self, unit: int) -> int:
        return self.visit_bytes(unit)

    def owner(self, unit: int) -> int:
        return self.tied.get(unit, unit)

    def state_bytes(self, unit: int) -> int:
        return 8 * self.parameters[unit]

    def token_bytes(self, samples: int) -> int:
        return 16 * samples


class Seconds:
    """A cost model in which a sample's forward pass takes a millisecond."""

    def seconds(self, action: Action) -> float:
        first, end = action.span
        match action.kind:
            case Kind.FORWARD | Kind.RECOMPUTE:
                return 1e-3 * (end - first)
            case Kind.BACKWARD:
                return 2e-3 * (end - first)
            case Kind.UPDATE | Kind.NORM:
                return 1e-4
        return action.nbytes / BYTES_PER_S

    def slowdown(self, lane: str, busy: object) -> float:
        return 1.0


def cut(units: int, rng: random.Random) -> tuple[range, ...]:
    """Random packs of so many units."""
    inner = sorted(rng.sample(range(1, units), rng.randint(0, units - 1)))
    ends = [0, *inner, units]
    return packs_of([b - a for a, b in zip(ends, ends[1:], strict=False)])


def drawn(rng: random.Random, **fixed) -> Packs:
    """Random packs, sizes, mode and ranks."""
    units, ranks = rng.randint(2, 9), rng.randint(1, 4)
    minibatch = rng.randint(ranks, 12)
    backward = cut(units, rng)
    first = backward[-1].start
    chosen = {
        "mode": rng.choice(["pp", "dp"]),
        "ranks": ranks,
        "minibatch": minibatch,
        "forward_size": rng.randint(1, minibatch),
        "backward_size": rng.randint(1, minibatch),
        "forward": cut(first, rng) if first else (),
        "backward": backward,
    }
    return Packs(**{**chosen, **fixed})


def mirrored(packs: Packs, rng: random.Random, *, tied: set[int] = frozenset()) -> Packs:
    """The backward packs, each on one rank forward and backward, some of their units resident; of
    `tied` ones, where one rank has them, all or none."""
    units = [unit for unit in range(packs.num_units) if unit not in tied]
    resident = {*rng.sample(units, rng.randint(0, len(units)))}
    packs = replace(packs, mode="pp", forward=packs.backward[:-1], mirrored=True)
    if any(tied.issubset(packs.backward_units(rank)) for rank in range(packs.ranks)):
        resident |= tied if rng.random() < 0.7 else set()
    return replace(packs, resident=frozenset(resident))


def largest_pack(packs: Packs, layers: Layers) -> int:
    """Bytes of the weights of the largest pack in a ring."""
    return max(
        sum(aligned(layers.visit_bytes(unit)) for unit in pack)
        for pack in (*packs.forward, *packs.backward)
    )
