"""FSDP2 on one device: fp32 weights in unit by unit, fp32 gradients out, the update exposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baselines import zero_plan
from baselines.late import refuse_host_activations
from baselines.zero_plan import Release, activation_bytes
from workbench.core.host import resolve_device
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan

LABEL = "FSDP2"
TRANSFER_BYTES = 4
"""Bytes of a weight and of a gradient on the link: they are narrowed and widened on the device."""
FLEETING_BLOCKS = 6
"""Blocks whose fp32 weights or gradients are on the device on their way."""
FRAGMENTS = 0.1
"""Share of the device's memory that is lost between allocations."""


def check(spec: RunSpec) -> None:
    """Raise ValueError for what FSDP2's offload does not have."""
    refuse_host_activations(spec, LABEL, "keeps or recomputes activations")
    if spec.device_memory is not None and resolve_device(spec.device) == "cpu":
        raise ValueError(
            f"device_memory is {spec.device_memory}, which cannot be kept on a cpu: {LABEL} frees "
            "weights unseen by the code that counts them; leave it out"
        )


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """Plan torch's run of the spec: ZeRO-3's schedule without any fetch beside compute.

    The profile is taken as if weights had 4 bytes, which the transfers have.
    """
    hardware, release = profile.hardware, Release.current("fsdp")
    parameters = [unit.parameters for unit in profile.units]
    room = (spec.device_memory or hardware.device_bytes) if hardware.device == "cuda" else None
    kept = kept_blocks(spec, parameters, room)
    if kept:  # what comes after the first of them: the other ones and the head
        release = replace(release, reuse_elements=sum(parameters[-kept:]))
    profile = replace(profile, weight_bytes=TRANSFER_BYTES)
    return zero_plan.plan(spec, profile, release, offload_weights=True)


def kept_blocks(spec: RunSpec, parameters: Sequence[int], room: int | None) -> int:
    """How many blocks, the last ones, may keep their weights between forward and backward pass: of
    `parameters` by unit, the first and the last of which are no blocks. All where nobody counts.

    The rest of the device is for what the model is known to need: activations, the weights outside
    of blocks, fetched weights and leaving gradients in fp32, and a share for fragments.
    """
    blocks, block, each = len(parameters) - 2, parameters[1], VALUE_BYTES[spec.dtype]
    if room is None:
        return blocks
    ends = (each + TRANSFER_BYTES) * (parameters[0] + parameters[-1])
    needed = activation_bytes(spec) + ends + FLEETING_BLOCKS * TRANSFER_BYTES * block
    left = (1 - FRAGMENTS) * room - needed
    return min(blocks, max(0, int(left) // (each * block)))
