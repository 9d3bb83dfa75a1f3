"""ZeRO-Infinity: weights, gradients and optimizer off the device, weights fetched unit by unit."""

from __future__ import annotations

from dataclasses import replace

from baselines import zero_plan
from baselines.zero_infinity.run import live_elements
from baselines.zero_plan import Release
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


def plan(spec: RunSpec, profile: Profile, release: Release | None = None) -> Plan:
    """Plan DeepSpeed's run of the spec; `release` None for today's."""
    if release is None:
        reuse = live_elements(spec, profile.units[1].parameters)
        release = replace(Release.current("zero-infinity"), reuse_elements=reuse)
    return zero_plan.plan(spec, profile, release, offload_weights=True)
