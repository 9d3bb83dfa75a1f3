"""Builder of a step on one device: names, sizes and the memory that lasts.

Sizes and names come from here, so that the passes (program.py), the updates (updates.py) and the
slots (slots.py) only say what happens after what.
"""

from __future__ import annotations

from workbench.methods.offload.placement import Placement
from workbench.profile.cuda_graphs import block_replay_bytes, chain_replay_bytes
from workbench.profile.profile import Profile
from workbench.profile.unit_costs import sample_bytes
from workbench.schedule import buffers as name
from workbench.schedule.action import Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.builder import ScheduleBuilder
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER

SCALAR_BYTES = 128
"""Norms of a unit's gradients, and losses of a micro-batch in the steps that are remembered."""


def batch_bytes(profile: Profile, microbatches: int) -> tuple[int, int]:
    """Device bytes of a batch, and of the numbers that its step leaves."""
    tokens = profile.microbatch * microbatches * sample_bytes(profile)
    return tokens, SCALAR_BYTES * (len(profile.units) + microbatches)


class LayerStepBuilder(ScheduleBuilder):
    """Collects the actions and buffers of one step."""

    def __init__(self, placement: Placement, profile: Profile) -> None:
        """Raises ValueError for a placement that no program can have."""
        super().__init__()
        self.placement, self.profile = placement, profile
        self.num_units = len(profile.units)
        self.head = self.num_units - 1
        self.micros = range(placement.microbatches)
        self.last_micro = placement.microbatches - 1
        self.streamed = placement.streamed(self.num_units)
        self.index = {unit: k for k, unit in enumerate(self.streamed)}
        self.hosted = placement.hosted(self.num_units)
        self.chained = placement.chained(self.num_units)
        self.pulled = sorted(placement.pulled, reverse=not placement.clipped)
        """In the order of their updates."""
        self._permanent_buffers()

    def _permanent_buffers(self) -> None:
        profile, placement = self.profile, self.placement
        tokens, numbers = batch_bytes(profile, placement.microbatches)
        self.buffer("tokens", DEVICE, tokens, permanent=True)
        self.buffer("numbers", DEVICE, numbers, permanent=True)
        if profile.library_bytes:
            self.buffer("libraries", DEVICE, profile.library_bytes, permanent=True)
        if any(map(self.replayed, range(self.num_units))):
            size = chain_replay_bytes if self.chained else block_replay_bytes
            self.buffer(name.REPLAYS, DEVICE, size(profile), permanent=True)
        if placement.on_disk:
            self.buffer("disk bounce", HOST_TIER, name.DISK_BOUNCE_BYTES, permanent=True)
        for unit, cost in enumerate(profile.units):
            weight = cost.parameters * profile.weight_bytes
            state = cost.parameters * profile.state_bytes
            if unit in placement.resident:
                held = not self.fresh_gradients(unit)
                self.buffer(name.weights(unit), DEVICE, weight, permanent=True)
                self.buffer(name.gradients(unit), DEVICE, weight, permanent=held)
                if unit in placement.pulled:
                    self.buffer(name.host_states(unit), HOST_TIER, state, permanent=True)
                else:
                    self.buffer(name.states(unit), DEVICE, state, permanent=True)
                continue
            if unit in self.hosted:
                self.buffer(name.gradients(unit), DEVICE, weight, permanent=True)
            self.buffer(name.host_weights(unit), HOST_TIER, weight, permanent=True)
            if unit in placement.on_disk:
                self.buffer(name.disk_states(unit), DISK, state, permanent=True)
            else:
                self.buffer(name.host_states(unit), HOST_TIER, state, permanent=True)

    def weight_bytes(self, unit: int) -> int:
        """Bytes of a unit's working weights, and of its gradients."""
        return self.profile.units[unit].parameters * self.profile.weight_bytes

    def state_bytes(self, unit: int) -> int:
        """Bytes of a unit's optimizer states."""
        return self.profile.units[unit].parameters * self.profile.state_bytes

    def comes(self, unit: int) -> bool:
        """Whether a unit's weights come from the host, and its gradients go there."""
        return unit in self.index or unit in self.hosted

    def leaves(self, unit: int) -> bool:
        """Whether a streamed unit gives its slot up between forward and backward pass."""
        return unit in self.index and self.index[unit] < len(self.streamed) - self.placement.slots

    def weights(self, unit: int, turn: int) -> str:
        """The buffer that holds a unit's weights in the forward (0) or backward (1) pass."""
        if turn == 1 and self.leaves(unit):
            return name.weights(unit, 1)
        return name.weights(unit)

    def fresh_gradients(self, unit: int) -> bool:
        """Whether a resident unit's gradients have memory only from backward pass to update. Those
        of the embedding and the head add up over both, and stay."""
        return not self.placement.held_gradients and 0 < unit < self.head

    def joins_gradients(self, unit: int) -> bool:
        """Whether an update on the compute lane copies a unit's gradients together before: on a GPU
        one launch for each of them takes several times as long as the update does. Where updates
        come in the middle of the backward pass, activations need that memory."""
        cuda = self.profile.hardware.device == "cuda"
        fresh = self.fresh_gradients(unit) and not self.replayed(unit)  # which joins them at once
        return cuda and self.placement.clipped and fresh

    def eager(self, unit: int) -> bool:
        """Whether a unit is updated during the backward pass. Where its states are on the device,
        that costs so little that only the norm is worth waiting for."""
        if unit in self.placement.resident and not self.placement.clipped:
            return True
        return unit in self.placement.eager

    def settled(self, unit: int) -> bool:
        """Whether a unit's update awaits a verdict."""
        return self.placement.clipped and unit in self.placement.eager

    def later(self, unit: int) -> bool:
        """Whether a unit's moments are updated after its weights."""
        return unit in self.placement.moments_later

    def keeps(self, unit: int) -> bool:
        """Whether the forward pass of a unit leaves what its backward pass needs."""
        return unit == self.head or unit in self.placement.kept

    def holds_output(self, unit: int) -> bool:
        """Whether autograd holds what a unit put out until the unit's own backward pass: the next
        one's input, which does not wait on the host."""
        there = self.keeps(unit) and not self.replayed(unit)
        return there and 0 <= unit < self.head and not self.stashed(unit + 1)

    def replayed(self, unit: int) -> bool:
        """Whether a unit's passes are recordings, which work in memory of their own."""
        recorded = self.chained or not self.keeps(unit)
        return self.placement.replay and 0 < unit < self.head and recorded

    def inside(self, unit: int) -> bool:
        """Whether a unit's input and its gradient stay in the memory of a chain of recordings."""
        return self.chained and 1 < unit < self.head

    def stashed(self, unit: int) -> bool:
        """Inputs of inner blocks go to the host; the backward pass begins with the last ones."""
        return self.placement.stash and 0 < unit < self.head - 1 and not self.keeps(unit)

    def inputs(self, unit: int, micro: int) -> list[str]:
        """The buffer a unit's backward visit reads its input from; none for the embedding."""
        if unit == 0 or self.inside(unit):
            return []
        return [name.activation(unit, micro, 1 if self.stashed(unit) else 0)]

    def ready(self, unit: int, micro: int) -> list[str]:
        """Actions that the backward visit of a unit waits for besides its output gradient."""
        after = []
        if self.leaves(unit):
            after.append(act(Kind.LOAD, unit, turn=1))
        if self.stashed(unit):
            after.append(act(Kind.FETCH, unit, micro))
        return after
