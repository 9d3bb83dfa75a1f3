"""Plain training: everything resident, fp32 master weights beside bf16 working weights."""

from __future__ import annotations

from dataclasses import replace

from workbench.core.spec import RunSpec
from workbench.methods.offload import resident
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan

STATE_BYTES = 16
"""Bytes of a parameter: weight, gradient and two moments in fp32; in bf16 two bytes each of weight
and gradient, and twelve of master and moments."""


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The plan of resident training with 16 bytes a parameter, whatever the dtype.

    Our own runtime needs fewer in bf16, so the profile is taken as if weights had 4 bytes; costs
    and activations are those of the dtype.
    """
    found = resident.plan(spec, replace(profile, weight_bytes=STATE_BYTES // 4))
    return replace(found, notes=(*found.notes, "predicted from our runtime's schedule"))
