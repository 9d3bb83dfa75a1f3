"""Stages and plans of DeepSpeed's pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baselines.stages import cut
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.build.division import packs_of
from workbench.schedule.plan import Plan

LABEL = "DeepSpeed's pipeline"


def stages_of(
    spec: RunSpec, flops: Sequence[float], parameters: Sequence[int]
) -> tuple[range, ...]:
    """The units of each stage, from the forward operations and the parameters of each unit. Raises
    ValueError for stages that are not those of the model."""
    positions, given = spec.ranks // spec.options.replicas, spec.options.given_stages
    if not given:
        return cut(flops, parameters, positions, recompute=spec.activations != "keep")
    if (len(given), sum(given)) != (positions, len(flops)):
        raise ValueError(
            f"stages {spec.options.stages!r} are {len(given)} of {sum(given)} units; there are "
            f"{positions} stages and the model has {len(flops)} units"
        )
    return tuple(packs_of(given))


def plan(spec: RunSpec, profile: Profile) -> Plan:
    return plan_sizes(spec, {profile.microbatch: profile})


def plan_sizes(spec: RunSpec, profiles: Mapping[int, Profile]) -> Plan:
    raise ValueError("not yet")
