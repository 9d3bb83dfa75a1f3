"""FSDP2 on one device: fp32 weights in unit by unit, fp32 gradients out, the update exposed."""

from __future__ import annotations

from dataclasses import replace

from baselines import zero_plan
from baselines.zero_plan import Release
from workbench.methods.plan import Plan
from workbench.profile.profile import Profile
from workbench.runs.spec import RunSpec

TRANSFER_BYTES = 4
"""Of a weight and of a gradient on the link: they are narrowed and widened on the device."""


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """What torch will do with the spec: ZeRO-3's schedule without any fetch beside compute.

    The profile is taken as if weights had 4 bytes, which the transfers have.
    """
    profile = replace(profile, weight_bytes=TRANSFER_BYTES)
    return zero_plan.plan(spec, profile, Release.current("fsdp"), offload_weights=True)
