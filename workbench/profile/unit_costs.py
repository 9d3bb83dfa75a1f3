"""Times and bytes of a model's units for any number of samples, from profiles of a few sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.profile.units import CostsBySize, UnitCost
from workbench.schedule import buffers

if TYPE_CHECKING:
    from workbench.model.base import LayeredModel

SORTED_ABOVE, SORTED = 3072, 1.1
"""Tokens above which a GPU sorts them to add up an embedding's gradient, and the fp32 tensors of
[tokens, hidden] that it works in then. Seen on an H200: 1.09 to 1.11."""
TOKEN_BYTES = 16
"""Two 64-bit integers per position: the token and its target."""


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
        self._any, self._tied, self.doubled = profiles[min(profiles)], dict(tied), ()
        self._fresh, self._constant = dict(fresh or {}), dict(constant or {})
        self.library_bytes = max(p.library_bytes for p in profiles.values())
        costs = CostsBySize({size: profile.units for size, profile in profiles.items()})
        self.cost = lru_cache(maxsize=None)(costs.of)

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
        return samples * max(first, sample_bytes(self._any))


def sample_bytes(profile: Profile) -> int:
    """Bytes of a sample's tokens, their targets and, of documents, their positions."""
    first, own = profile.units[0], profile.seq * TOKEN_BYTES // 2
    placed = first.kind == "embedding" and first.input_bytes == 2 * own * profile.microbatch
    return (3 if placed else 2) * own


def profiled_sizes(
    model: LayeredModel, spec: RunSpec, profiles: Mapping[int, Profile]
) -> ProfiledSizes:
    """Sizes of the layers of the spec's model. Raises ValueError as `borrowed` does.

    Where a decoder was measured, its first unit and its head were run as the engine of a single
    device runs them (profile/alone.py): gradients go to slabs one by one, and the largest is in
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
