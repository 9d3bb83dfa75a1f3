"""Profiles of one model at several micro-batch sizes: which a run takes, and which are stored.

A method that chooses its own micro-batches measures several before it plans
(training/ranks.py). A question before a run measures nothing: it takes of the same sizes those
that are stored, so that its answer is the run's plan where all of them are, and says so where they
are not. A method with one micro-batch that is not stored is asked with the nearest that is, in
proportion; so methods that are compared have costs of one origin. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log
from pathlib import Path

from workbench.core.spec import RunSpec
from workbench.profile.limits import stored_limits
from workbench.profile.profile import Limits, Profile
from workbench.profile.store import stored_profile
from workbench.profile.units import UnitCost, combined

MICROBATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Micro-batches whose measurements may serve, besides the one asked for."""


def pinned_sizes(spec: RunSpec) -> set[int]:
    """Micro-batches that the spec names."""
    return spec.options.micro_sizes(spec)


def sizes_of(spec: RunSpec, limits: Limits | None) -> list[int]:
    """Samples of the micro-batches that a run profiles: the pinned ones, or the ends and the middle
    of what its device has room for; where nobody looked for that, it is taken to be any number."""
    pinned = pinned_sizes(spec)
    anything = Limits(smallest=1, forward=spec.batch, backward=spec.batch)
    return sorted(pinned) or (limits or anything).sizes()


def stored_profiles(spec: RunSpec, results: Path) -> dict[int, Profile]:
    """Stored profiles of a run, by samples in a micro-batch. Where the largest is not stored, the
    first of its half, quarter, ... that is stored takes its place, as where timing has no room for
    it."""
    pinned = pinned_sizes(spec)
    limits = None if pinned else stored_limits(spec, results)
    *smaller, largest = sizes_of(spec, limits)
    parts = [largest] if pinned else [largest >> times for times in range(largest.bit_length())]
    halves = [part for part in parts if part > max(smaller, default=0)]
    found = [_stored(spec, size, results) for size in smaller]
    found.append(next(filter(None, (_stored(spec, size, results) for size in halves)), None))
    return {known.microbatch: replace(known, limits=limits) for known in found if known is not None}


def in_proportion(spec: RunSpec, profiles: Mapping[int, Profile]) -> str:
    """A sentence for readers of a plan from these profiles; empty where they are a run's."""
    limits = next(iter(profiles.values())).limits
    lacking = [size for size in sizes_of(spec, limits) if size not in profiles]
    if not lacking:
        return ""
    known, more = (", ".join(map(str, some)) for some in (sorted(profiles), lacking))
    return (
        f"known are the costs of micro-batches of {known} samples, those of other sizes are in "
        f"proportion; a run measures {more} as well, where there is room, and may plan otherwise"
    )


def nearest_profile(spec: RunSpec, results: Path) -> Profile | None:
    """The stored profile of the micro-batch nearest to the spec's, in proportion; the method's own
    costs, else those of passes without halves and checkpoints. None where nothing is stored."""
    for size in sorted(MICROBATCHES, key=lambda size: abs(log(size / spec.microbatch))):
        own = of_size(spec, size)
        for near in (own, own.with_(method="plain", compile=spec.compile)):
            if (found := stored_profile(near, results)) is not None:
                return scaled(found, spec.microbatch)
    return None


def scaled(profile: Profile, microbatch: int) -> Profile:
    """The profile at another micro-batch, were everything that depends on it in proportion."""
    factor = microbatch / profile.microbatch

    def unit(cost: UnitCost) -> UnitCost:
        found = combined(cost, cost, factor, 0.0)
        return replace(found, gradient_copy_s=cost.gradient_copy_s)  # of gradients, not samples

    made = {id(cost): unit(cost) for cost in profile.units}  # units of one kind are one object
    units = tuple(made[id(cost)] for cost in profile.units)
    note = (
        f"micro-batch {microbatch} was not measured here: times and activations are in proportion "
        f"to those of micro-batch {profile.microbatch}; a run measures it"
    )
    return replace(profile, units=units, microbatch=microbatch, note=note, origin="")


def at_depth(profile: Profile, layers: int) -> Profile | None:
    """The profile of a model with as many layers as asked for; None where layers are not alike."""
    first, *blocks, head = profile.units
    if {unit.kind for unit in profile.units} != {"embedding", "block", "head"}:
        return None
    return replace(profile, units=(first, *[blocks[0]] * layers, head))


def of_size(spec: RunSpec, size: int) -> RunSpec:
    """The spec whose profile is that of micro-batches of a size. Layers whose backward passes are
    halved are not compiled: a compiled one has no halves."""
    compile = "off" if spec.options.halved else spec.compile
    return replace(spec, batch=size, microbatches=1, compile=compile, options=type(spec.options)())


def _stored(spec: RunSpec, size: int, results: Path) -> Profile | None:
    return stored_profile(of_size(spec, size), results)
