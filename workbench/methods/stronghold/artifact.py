"""The schedule of STRONGHOLD's published artifact (SC'22, AE revision), for the simulator only.

This is what the figures of the artifact measured, and it is *not* training: the host Adam touches
as many elements of a tensor as it has rows, and no copy waits for compute (published/README.md).
So the validator refuses it, rightly, and nobody can execute it. What it is for: with the constants
of the published machine the simulator must give the published times, or it understands neither.

With a window of W layers out of n, per step:

* forward: layer i + W is loaded when layer i starts; layer i goes back to the host after its
  pass (clean or not), except the last W, with which the backward pass begins;
* backward: after layer i, layer i - W is loaded, and layer i + 1 is *evicted and updated* in one
  task: weights out, gradients out, gradients out again into pageable memory (the update asks for a
  host copy of what it already has), Adam on the host;
* that task is awaited W layers later, so both the copies and the update have W layers of slack and
  no more; the first W layers stay and are updated on the device.

Tasks go to a pool of workers, but progress as if there were one: 96 layers take 96 times as long
as one, whatever the window. They also slow the thread that launches kernels, and it slows them.
Both are one measured constant each (`Artifact`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.core.spec import RunSpec
from workbench.methods.offload.outside import OneBatch, plan_of
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Profile
from workbench.schedule.action import COMPUTE, D2H, H2D, HOST, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE, HOST_TIER, Buffer, Schedule

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD
L, E, G, U = Kind.LOAD, Kind.EVICT, Kind.GRAD_OUT, Kind.UPDATE
NOTE = (
    "not exact training: the host Adam touches 0.09 % of an offloaded layer and copies race with "
    "compute; simulated to explain the published figures"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """Costs of the artifact's own code on a machine, beyond compute and link."""

    update_params_per_s: float
    """Second copy of the gradients and Adam on the rows of a layer, by one worker."""
    contention: float
    """Factor by which an update and compute slow each other."""
    workers: int
    """Size of the pool; each may hold one second copy of a layer's gradients."""
    device_fixed_bytes: int
    """Device memory beyond weights, gradients and states."""
    reserved_factor: float
    """Device memory the allocator reserves over what is allocated at the peak."""


def plan(spec: RunSpec, profile: Profile, artifact: Artifact) -> Plan:
    """Plan as the artifact would carry it out; the window must be given, as there."""
    if spec.options.window == "auto":
        raise ValueError("the artifact chooses no window: give one, 2 to the number of layers")
    slower = {"compute|host": artifact.contention, "host|compute": artifact.contention}
    hardware = replace(
        profile.hardware,
        host_adam_params_per_s=artifact.update_params_per_s,
        slowdowns={**profile.hardware.slowdowns, **slower},
    )
    return plan_of(
        schedule(spec, profile, artifact),
        replace(profile, hardware=hardware),
        Budgets.of(spec, profile),
        method="stronghold",
        reserved_factor=artifact.reserved_factor,
        window=spec.options.window,
        notes=(NOTE,),
        exact=False,
    )


def schedule(spec: RunSpec, profile: Profile, artifact: Artifact) -> Schedule:
    """One step of the artifact. Layers are units 1 to n; the window is at most n."""
    layers = len(profile.units) - 2
    builder = _Builder(profile, layers, min(spec.options.window, layers))
    builder.forward()
    builder.backward()
    return Schedule(
        name=f"stronghold artifact w{builder.window}",
        num_units=layers + 2,
        num_microbatches=1,
        actions=tuple(builder.actions),
        buffers=builder.buffers | _memory(profile, builder.window, artifact),
        settings={"window": builder.window},
    )


def _memory(profile: Profile, window: int, artifact: Artifact) -> dict[str, Buffer]:
    """Buffers that the artifact allocates once: everything but activations.

    Device: 2 W units of weights and gradients, moments of the W resident layers, all of the
    embeddings, the final norm. Host: pinned weights and gradients of every layer, moments of the
    offloaded ones, and a second copy of the gradients for each worker.
    """
    units, w = profile.units, profile.weight_bytes
    layers, layer = len(units) - 2, units[1].parameters
    outside = (units[0].parameters + units[-1].parameters) * (2 * w + profile.state_bytes)
    slots = min(2 * window, layers) * 2 * w * layer
    moments = window * profile.state_bytes * layer
    offloaded = layers - window

    def permanent(tier: str, nbytes: int) -> Buffer:
        return Buffer(tier=tier, nbytes=nbytes, permanent=True)

    return {
        "window units": permanent(DEVICE, slots),
        "resident moments": permanent(DEVICE, moments),
        "outside": permanent(DEVICE, outside + artifact.device_fixed_bytes),
        "pinned": permanent(HOST_TIER, layers * 2 * w * layer),
        "moments": permanent(HOST_TIER, offloaded * profile.state_bytes * layer),
        "second copies": permanent(HOST_TIER, min(artifact.workers, offloaded) * w * layer),
    }


class _Builder(OneBatch):
    """Collects one step's actions. Layers are counted from 0 here, as in the artifact."""

    def __init__(self, profile: Profile, layers: int, window: int) -> None:
        super().__init__(profile)
        self.layers, self.window = layers, window

    def forward(self) -> None:
        self.compute(F, 0)
        for layer in range(self.layers):
            unit = layer + 1
            after = [act(F, unit - 1, 0)]
            if layer >= self.window:
                after += [act(L, unit), act(E, unit - self.window)]
            ahead = layer + self.window
            if ahead < self.layers:
                ready = [act(F, unit - 1, 0), act(U, ahead + 1, step=-1)]
                self.copy(L, ahead + 1, H2D, after=ready)
            self.compute(F, unit, after)
            if ahead < self.layers:
                self.copy(E, unit, D2H, after=[act(F, unit, 0)])
        self.compute(F, self.head, [act(F, self.head - 1, 0)])
        self.compute(B, self.head, [act(F, self.head, 0)])

    def backward(self) -> None:
        for layer in reversed(range(self.layers)):
            unit = layer + 1
            after = [act(B, unit + 1, 0)]
            if layer < self.layers - self.window:
                after.append(act(L, unit, turn=1))
            self.compute(R, unit, after + self._awaited(layer + 1))
            self.compute(B, unit, [act(R, unit, 0)])
            # The hook of this layer: it first waits for its futures, then acts.
            hook = [act(B, unit, 0), *self._awaited(layer)]
            if layer >= self.window:
                self.copy(L, unit - self.window, H2D, turn=1, after=hook)
            self._leave(layer + 1, hook)
        self.compute(B, 0, [act(B, 1, 0)])
        for unit in (0, 1, self.head):  # the artifact's "default" optimizer, at the end of the step
            self.add(U, unit, COMPUTE, after=[act(B, 0, 0), *self._awaited(0)])

    def _leave(self, layer: int, hook: list[str]) -> None:
        """A layer's gradients are complete: evict and update it, or update it where it is."""
        unit = layer + 1
        if not 0 < layer < self.layers:
            return
        if layer < self.window:
            self.add(U, unit, COMPUTE, after=hook)
            return
        if layer + 1 < self.layers:
            hook = [*hook, act(U, unit + 1)]  # one task at a time
        self.copy(E, unit, D2H, turn=1, after=hook)
        self.copy(G, unit, D2H, after=[act(E, unit, turn=1)])
        self.add(U, unit, HOST, after=[act(G, unit)])

    def _awaited(self, layer: int) -> list[str]:
        """Actions that the backward hook of a layer waits for: the eviction from W layers above."""
        above = layer + self.window
        return [act(U, above + 1)] if self.window <= above < self.layers else []
