"""Whether a profile is of the model, and of the kind of numbers, that a plan is asked for.

A plan from another model's costs is wrong in ways that show late: in a traceback, or in memory that
runs out. So every planner of several ranks asks here first, and every reader of a stored profile.
Imports no torch: callers bring the model if they have one, and of GPT closed formulas say enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod
from typing import TYPE_CHECKING

from workbench.core.model_spec import GPT_FAMILY, ModelSpec
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.model import units_of
from workbench.profile.profile import Profile

if TYPE_CHECKING:
    from workbench.model.base import LayeredModel


SECONDS = ("forward_s", "recompute_s", "backward_s", "gradient_s", "gradient_copy_s")


def check_profiles(
    profiles: Mapping[int, Profile], spec: RunSpec, model: LayeredModel | None = None
) -> None:
    """`check_profile` for profiles by samples in a micro-batch, which they must be of."""
    if not profiles:
        raise ValueError("a plan needs a profile of at least one micro-batch size")
    for size, profile in profiles.items():
        if profile.microbatch != size:
            raise ValueError(
                f"{_name(profile)} is of micro-batches of {profile.microbatch} samples, and was "
                f"given for {size}"
            )
        check_profile(profile, spec, model)


def check_profile(profile: Profile, spec: RunSpec, model: LayeredModel | None = None) -> None:
    """Raise ValueError, in a sentence that names the file of a stored one, where a profile is not
    of the spec's model and dtype, or has times that are none. Of families without a formula `model`
    tells the parameters."""
    shape, name = spec.model, _name(profile)
    units = units_of(shape)
    if len(profile.units) != units:
        raise ValueError(
            f"{name} has costs of {len(profile.units)} units, the model has {units}: "
            f"{shape.layers} layers and what comes before and after them"
        )
    if profile.seq != shape.seq:
        raise ValueError(f"{name} is of sequences of {profile.seq}, the model's are of {shape.seq}")
    if profile.weight_bytes != VALUE_BYTES[spec.dtype]:
        raise ValueError(
            f"{name} is of weights of {profile.weight_bytes} bytes, {spec.dtype} has "
            f"{VALUE_BYTES[spec.dtype]}"
        )
    for unit, cost in enumerate(profile.units):
        timed = [(what, getattr(cost, what)) for what in SECONDS]
        timed += [(f"passes {each.name}", s) for each in cost.variants for s in each.seconds]
        for what, seconds in timed:
            if not (isinstance(seconds, int | float) and 0 <= seconds < inf):
                raise ValueError(
                    f"{name} cannot be planned from: unit {unit} ({cost.kind}) has {what} "
                    f"{seconds}, which must be 0 or more seconds"
                )
        parameters = _parameters(shape, unit, model)
        if parameters not in (None, cost.parameters):
            raise ValueError(
                f"{name} is of another model: unit {unit} ({cost.kind}) has "
                f"{cost.parameters:,} parameters there and {parameters:,} in this one"
            )
        entering = _input_bytes(shape, unit, profile, model)
        if entering not in (None, cost.input_bytes):
            raise ValueError(
                f"{name} is of another model, dtype or micro-batch: {cost.input_bytes:,} bytes "
                f"enter unit {unit} ({cost.kind}) there and {entering:,} here, in a micro-batch "
                f"of {profile.microbatch}"
            )


def _name(profile: Profile) -> str:
    return f"the profile {profile.origin}" if profile.origin else "the profile"


def _parameters(shape: ModelSpec, unit: int, model: LayeredModel | None) -> int | None:
    """Parameters that the unit owns; None where they are not known."""
    if model is not None:
        return model.unit_parameters(unit)
    if shape.family != GPT_FAMILY:
        return None
    if unit == 0:
        return (shape.vocab + shape.seq) * shape.hidden
    if unit < shape.units - 1:
        return shape.block_parameters
    return 2 * shape.hidden + (0 if shape.tied else shape.vocab * shape.hidden)


def _input_bytes(
    shape: ModelSpec, unit: int, profile: Profile, model: LayeredModel | None
) -> int | None:
    """Bytes that flow into the unit from the one before; None where they are not known, and for the
    first unit."""
    if unit == 0 or (model is None and shape.family != GPT_FAMILY):
        return None
    if model is None:
        return profile.microbatch * shape.seq * shape.hidden * profile.weight_bytes
    return sum(
        prod(part.full_shape(profile.microbatch))
        * (profile.weight_bytes if part.dtype is None else part.dtype.itemsize)
        for part in model.boundary(unit, shape.seq)
    )
