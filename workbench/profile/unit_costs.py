"""Times and bytes of a model's units for any number of samples, from profiles of a few sizes.

Piecewise linear, as published; beyond the largest profiled size the last piece goes on, and below
the smallest everything shrinks in proportion. A pass of fewer samples takes no longer than one of
more: where it was measured so, something else was at work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile, UnitCost, Variant
from workbench.schedule import buffers

if TYPE_CHECKING:
    from workbench.model.base import LayeredModel

CONSTANT = ("kind", "parameters", "gradient_s", "spread", "variants")
PER_SAMPLE = tuple(f.name for f in fields(UnitCost) if f.name not in CONSTANT)
"""Fields of UnitCost that grow with the micro-batch, as all numbers of its variants do."""
SORTED_ABOVE, SORTED = 3072, 1.1
"""Tokens above which a GPU sorts them to add up an embedding's gradient, and the fp32 tensors of
[tokens, hidden] that it works in then. Seen on an H200: 1.09 to 1.11."""
TOKEN_BYTES = 16
"""Two 64-bit integers per position: the token and its target."""
Pair = Callable[[float, float], float]


class Sizes(Protocol):
    """Bytes and seconds of the layers, for any number of samples."""

    library_bytes: int
    doubled: Sequence[tuple[int, int, int]]
    """Two units, and bytes that both count and a stage of both has once."""

    def cost(self, unit: int, samples: int) -> UnitCost: ...

    def input_bytes(self, unit: int, samples: int) -> int:
        """Bytes of a unit's input; 0 for tokens."""

    def weight_bytes(self, unit: int) -> int:
        """Bytes of the weights the unit owns."""

    def visit_bytes(self, unit: int) -> int:
        """Bytes of the weights that a device needs for the unit, those that it borrows of another
        one (a tied embedding) among them; of its gradients, too."""

    def fresh_bytes(self, unit: int) -> int:
        """Bytes that autograd returns for the unit's weights beside `cost`, before they are added
        to the pack's gradients."""

    def owner(self, unit: int) -> int:
        """The unit whose weights it borrows; itself where it borrows none."""

    def state_bytes(self, unit: int) -> int: ...

    def token_bytes(self, samples: int) -> int: ...


def borrowed_bytes(sizes: Sizes, units: Iterable[int]) -> int:
    """Bytes of all weights that some units borrow: of gradients that are added to their owners'."""
    return sum(sizes.visit_bytes(unit) - sizes.weight_bytes(unit) for unit in units)


def host_weights(sizes: Sizes, unit: int) -> list[str]:
    """Host buffers that a unit's weights come from, borrowed weights too."""
    return [buffers.host_weights(owner) for owner in sorted({unit, sizes.owner(unit)})]


def longest_forward_s(sizes: Sizes, units: int, samples: int) -> float:
    """Seconds of the longest forward pass of a block over so many samples."""
    return max((sizes.cost(unit, samples).forward_s for unit in range(1, units - 1)), default=0.0)


def pass_costs(sizes: Sizes, units: int, samples: int, recorded: bool) -> list[UnitCost]:
    """Costs of all units over so many samples, of passes that are recorded or launched."""
    costs = [sizes.cost(unit, samples) for unit in range(units)]
    return [cost.as_recorded() for cost in costs] if recorded else costs


class ProfiledSizes:
    """`Sizes` from profiles of one model at several micro-batch sizes."""

    def __init__(
        self,
        profiles: Mapping[int, Profile],
        *,
        tied: Mapping[int, tuple[int, int]],
        fresh: Mapping[int, int] | None = None,
        constant: Mapping[int, int] | None = None,
    ) -> None:
        """`profiles` by samples in a micro-batch; `tied`: unit -> (owner, parameters) it borrows;
        `fresh`: unit -> `fresh_bytes`, where the profile counts some of its gradients; `constant`:
        unit -> bytes of its input that do not grow with the samples.

        Raises ValueError without a profile.
        """
        if not profiles:
            raise ValueError("sizes need a profile of at least one micro-batch size")
        self._points, self.doubled = sorted(profiles), ()
        self._any, self._tied = profiles[self._points[0]], dict(tied)
        self._fresh, self._constant = dict(fresh or {}), dict(constant or {})
        self._units = {size: profiles[size].units for size in self._points}
        for size, larger in zip(self._points[-2::-1], self._points[:0:-1], strict=True):
            pairs = zip(self._units[size], self._units[larger], strict=True)
            self._units[size] = tuple(
                paired(cost, above, min, lambda own, _: own) for cost, above in pairs
            )
        self.library_bytes = max(p.library_bytes for p in profiles.values())
        self.cost = lru_cache(maxsize=None)(self._cost)

    def _cost(self, unit: int, samples: int) -> UnitCost:
        at = bisect_right(self._points, samples)
        low = self._points[max(0, min(at, len(self._points) - 1) - 1)]
        high = self._points[min(max(at, 1), len(self._points) - 1)]
        below, above = self._units[low][unit], self._units[high][unit]
        if low == high or samples < low:
            return combined(below, below, samples / low, 0.0)
        share = (samples - low) / (high - low)
        found = combined(below, above, 1 - share, share)
        if samples <= high:
            return found
        # More samples never take less than the most that were measured, whatever two noisy points
        # promise further on.
        return paired(found, above, max, max)

    def input_bytes(self, unit: int, samples: int) -> int:
        """Bytes of a unit's input."""
        constant, profile = self._constant.get(unit, 0), self._any
        grows = profile.units[unit].input_bytes - constant
        return constant + samples * grows // profile.microbatch

    def weight_bytes(self, unit: int) -> int:
        """Bytes of the weights the unit owns."""
        return self._any.units[unit].parameters * self._any.weight_bytes

    def visit_bytes(self, unit: int) -> int:
        """With those it borrows."""
        borrowed = self._tied[unit][1] if unit in self._tied else 0
        return self.weight_bytes(unit) + borrowed * self._any.weight_bytes

    def fresh_bytes(self, unit: int) -> int:
        """Bytes that autograd returns for the unit's weights beside `cost`."""
        return self._fresh.get(unit, self.visit_bytes(unit))

    def owner(self, unit: int) -> int:
        """The unit whose weights it borrows, or itself."""
        return self._tied[unit][0] if unit in self._tied else unit

    def state_bytes(self, unit: int) -> int:
        """Bytes of the optimizer's states."""
        return self._any.units[unit].parameters * self._any.state_bytes

    def token_bytes(self, samples: int) -> int:
        """Bytes of tokens and their targets, or of other inputs of the first unit."""
        first = self._any.units[0].input_bytes // self._any.microbatch
        return samples * max(first, self._any.seq * TOKEN_BYTES)


def paired(one: UnitCost, other: UnitCost, seconds: Pair, others: Pair) -> UnitCost:
    """A cost whose numbers are made from those of two, one by one: seconds, and bytes and
    operations. It has the variants that both have."""

    def number(name: str, a: float, b: float) -> float:
        return (seconds if name.endswith(("_s", "seconds")) else others)(a, b)

    def variant(a: Variant, b: Variant) -> Variant:
        made = {
            name: tuple(map(number, repeat(name), getattr(a, name), getattr(b, name)))
            for name in ("seconds", "scratch_bytes")
        }
        return replace(a, nbytes=number("nbytes", a.nbytes, b.nbytes), **made)

    pairs = [(each, other.variant(each.name)) for each in one.variants]
    return replace(
        one, variants=tuple(variant(a, b) for a, b in pairs if b is not None),
        **{name: number(name, getattr(one, name), getattr(other, name)) for name in PER_SAMPLE},
    )  # fmt: skip


def combined(one: UnitCost, other: UnitCost, first: float, second: float) -> UnitCost:
    """So many times a cost, and so many times another one."""

    def line(a: float, b: float) -> float:
        value = first * a + second * b
        return round(value) if isinstance(a, int) else value

    return paired(one, other, line, line)


def profiled_sizes(
    model: LayeredModel, spec: RunSpec, profiles: Mapping[int, Profile]
) -> ProfiledSizes:
    """Sizes of the layers of the spec's model. Raises ValueError as `borrowed` does.

    Where a decoder was measured, its first unit and its head were run as the engine of a single
    device runs them (profile/bench.py): gradients go to slabs one by one, and the largest is in
    their scratch, or was made by the loss. Here all are there at once.
    """
    from workbench.runtime.memory.storage import DTYPES
    from workbench.runtime.passes.bundle import Boundary

    profile, tied, fresh = profiles[min(profiles)], borrowed(model), {}
    if spec.model.decomposed:  # whose gradients of borrowed weights are in the scratch
        fresh = {unit: profile.units[unit].parameters * profile.weight_bytes for unit in tied}
    if profile.hardware.source == "measured" and not spec.model.decomposed:
        for unit in (0, model.head):
            numels = [shape.numel() for shape in model.shapes(unit).values()]
            numels += [tied[unit][1]] if unit in tied else []
            fresh[unit] = (sum(numels) - max(numels)) * profile.weight_bytes
    constant = {
        unit: Boundary(model.boundary(unit, spec.model.seq), DTYPES[spec.dtype]).nbytes(0)
        for unit in range(1, model.num_units)
    }
    return ProfiledSizes(profiles, tied=tied, fresh=fresh, constant=constant)


def borrowed(model: LayeredModel) -> dict[int, tuple[int, int]]:
    """Unit -> (owner, parameters) of what it borrows. Raises ValueError for a unit that borrows of
    several."""
    found: dict[int, tuple[int, int]] = {}
    for (unit, _), (owner, lent) in model.tied().items():
        before, parameters = found.get(unit, (owner, 0))
        if owner == unit:  # one parameter under two names of one unit
            continue
        if before != owner:
            raise ValueError(
                f"unit {unit} borrows parameters of units {before} and {owner}; one owner a unit "
                "is what can be planned"
            )
        found[unit] = (owner, parameters + model.shapes(owner)[lent].numel())
    return found
