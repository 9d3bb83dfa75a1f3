"""An ordinary module's layers, as planners of decoders count them: all but the first and the last,
which stay on the device."""

from __future__ import annotations

from dataclasses import replace

from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile


def in_layers(spec: RunSpec, profile: Profile) -> tuple[RunSpec, Profile]:
    """The spec with as many layers as its module was cut into, and the profile with the memory that
    gradients of the first and last layer take beside those of the micro-batches before; a decoder's
    as they are. Raises ValueError for a module without layers between these two."""
    if not spec.model.decomposed:
        return spec, profile
    units, last = list(profile.units), len(profile.units) - 1
    if last < 2:
        raise ValueError(
            f"{spec.model.family} is cut into {len(units)} layers; {spec.method} needs one between "
            "the first and the last"
        )
    for end in (0, last):
        more = units[end].parameters * profile.weight_bytes
        scratch = units[end].backward_scratch_bytes
        units[end] = replace(units[end], backward_scratch_bytes=scratch + more)
    model = replace(spec.model, layers=last - 1)
    return spec.with_(model=model), replace(profile, units=tuple(units))
