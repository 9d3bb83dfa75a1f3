"""ZeRO-Offload: weights on the device, gradients and optimizer on the host, the update exposed."""

from __future__ import annotations

from baselines import zero_plan
from baselines.zero_plan import Release
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


def plan(spec: RunSpec, profile: Profile, release: Release | None = None) -> Plan:
    """Plan DeepSpeed's run of the spec; `release` None for today's."""
    release = release or Release.current("zero-offload")
    return zero_plan.plan(spec, profile, release, offload_weights=False)
