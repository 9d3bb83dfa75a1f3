"""The L2L of STRONGHOLD's published artifact, for the simulator only. It is not the L2L algorithm.

A hook moves each layer to the device before its forward pass and back after it, blocking, through
pageable memory that is allocated anew each time; in the backward pass the recomputation's hook
first moves whatever is on the device away. All gradients stay on the device until the end of the
step, when the host fetches them, layer by layer, for an Adam that touches as many elements of a
tensor as it has rows. The published losses never fall, so these times are times of moving data, and
of nothing that was trained. The schedule is simulated to explain the published bars; our own L2L
(planner.py) is the algorithm of the L2L paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from workbench.core.spec import RunSpec
from workbench.methods.offload.outside import OneBatch, plan_of
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Profile
from workbench.schedule.action import D2H, H2D, HOST, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE, HOST_TIER, Buffer, Schedule

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD
L, E, G, U = Kind.LOAD, Kind.EVICT, Kind.GRAD_OUT, Kind.UPDATE
ROWS = 22
"""Rows of a block's tensors, in hidden sizes: 9 of matrices, 9 of biases, 4 of norms."""
NOTE = (
    "not the published algorithm and not training: the host Adam touches 0.09 % of the model and "
    "the loss never falls; simulated to explain the published figures"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """Costs of the artifact's own code on a machine, beyond compute and link."""

    blocking_bytes_per_s: float
    """Device to freshly allocated pageable memory."""
    backward_copies: int
    """Copies of a layer's size in its backward pass, its weights included."""
    reserved_factor: float
    """Device memory the allocator reserves over what is allocated at the peak."""


def plan(spec: RunSpec, profile: Profile, artifact: Artifact) -> Plan:
    """Plan the artifact's run of the spec."""
    rows = ROWS * spec.model.hidden / spec.model.block_parameters
    hardware = replace(
        profile.hardware,
        d2h_bytes_per_s=artifact.blocking_bytes_per_s,
        host_adam_params_per_s=profile.hardware.host_adam_params_per_s / rows,
    )
    return plan_of(
        schedule(profile, artifact),
        replace(profile, hardware=hardware),
        Budgets.of(spec, profile),
        method="l2l",
        reserved_factor=artifact.reserved_factor,
        notes=(NOTE,),
        exact=False,
    )


def schedule(profile: Profile, artifact: Artifact) -> Schedule:
    """One step of the artifact: nothing overlaps."""
    builder = _Chain(profile)
    units = range(1, builder.head)
    builder.compute(F, 0)
    for unit in units:
        builder.copy(L, unit, H2D)
        builder.compute(F, unit)
        builder.copy(E, unit, D2H)
    builder.compute(F, builder.head)
    builder.compute(B, builder.head)
    for unit in reversed(units):
        builder.copy(L, unit, H2D, turn=1)
        builder.compute(R, unit)
        builder.compute(B, unit)
        builder.copy(E, unit, D2H, turn=1)
        builder.copy(G, unit, D2H, times=artifact.backward_copies - 1)
    builder.compute(B, 0)
    for unit in range(builder.head + 1):
        builder.copy(G, unit, D2H, turn=1)
        builder.add(U, unit, HOST)
    return Schedule(
        name="l2l artifact",
        num_units=builder.head + 1,
        num_microbatches=1,
        actions=tuple(builder.actions),
        buffers=builder.buffers | _memory(profile),
    )


def _memory(profile: Profile) -> dict[str, Buffer]:
    """Gradients of everything and one layer's weights on the device, four copies on the host."""
    units, w = profile.units, profile.weight_bytes
    outside = units[0].parameters + units[-1].parameters
    total = sum(unit.parameters for unit in units)
    sizes = {
        "gradients": (DEVICE, total * w),
        "outside": (DEVICE, outside * w),
        "layer": (DEVICE, units[1].parameters * w),
        "weights": (HOST_TIER, (total - outside) * w),
        "fetched gradients": (HOST_TIER, total * w),
        "moments": (HOST_TIER, total * profile.state_bytes),
    }
    return {k: Buffer(tier=t, nbytes=n, permanent=True) for k, (t, n) in sizes.items()}


class _Chain(OneBatch):
    """Actions that each wait for the one before."""

    def add(self, kind: Kind, unit: int, lane: str, *args: Any, **fields: Any) -> str:
        before = self.actions[-1].name if self.actions else act(U, self.head, step=-1)
        return super().add(kind, unit, lane, *args, **{**fields, "after": [before]})
