"""Twin-Flow: ZeRO-Offload's schedule with a share of states and updates on the device."""

from __future__ import annotations

from dataclasses import replace

from baselines import zero_plan
from baselines.zero_plan import STATE_BYTES, Release
from baselines.zero_twin_flow.run import offloaded_share
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


def plan(spec: RunSpec, profile: Profile, release: Release | None = None) -> Plan:
    """Plan DeepSpeed's run of the spec; `release` None for today's.

    The device's share of the update is taken to cost nothing beside the host's. Host memory is
    counted as if all states were there.
    """
    release = release or Release.current("zero-offload")
    parameters = sum(unit.parameters for unit in profile.units)
    budget = spec.device_memory or profile.hardware.device_bytes
    share = offloaded_share(spec, parameters, budget)
    release = replace(
        release,
        adam_share=release.adam_share / share,
        block_s=release.block_s * share,
        device_fixed_bytes=release.device_fixed_bytes
        + round(STATE_BYTES * (1 - share) * parameters),
    )
    return zero_plan.plan(spec, profile, release, offload_weights=False)
