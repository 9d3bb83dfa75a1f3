"""An ordinary module's layers, as planners of decoders count them: all but the first and the last,
which stay on the device."""

from __future__ import annotations

from dataclasses import replace

from workbench.core.model_spec import ENGINE
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile


def in_layers(spec: RunSpec, profile: Profile) -> tuple[RunSpec, Profile]:
    """The spec with as many layers as its module was cut into, and the profile with the memory that
    gradients of the first and last layer take beside those of the micro-batches before; a decoder's
    as they are. Raises ValueError for a module without layers between these two."""
    if not spec.model.decomposed:
        return spec, profile
    last = len(profile.units) - 1
    if last < 2:
        raise ValueError(
            f"{spec.model.family.removeprefix(ENGINE)} is cut into {last + 1} layers; "
            f"{spec.method} needs one between the first and the last"
        )
    model = replace(spec.model, layers=last - 1)
    return spec.with_(model=model), with_sums(spec, profile)


def with_sums(spec: RunSpec, profile: Profile) -> Profile:
    """The profile with the memory that gradients of an ordinary module's first and last layer take
    before they are added to those that are there; a decoder's as it is."""
    if not spec.model.decomposed:
        return profile
    units = list(profile.units)
    for end in {0, len(units) - 1}:
        more = units[end].parameters * profile.weight_bytes
        scratch = units[end].backward_scratch_bytes
        units[end] = replace(units[end], backward_scratch_bytes=scratch + more)
    return replace(profile, units=tuple(units))
