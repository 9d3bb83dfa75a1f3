"""The draft of a schedule: what a method chose, and the actions and buffers written so far.

Sizes and names come from here, so that the passes (program.py) and the updates (updates.py) only
say what happens after what.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.profile.cuda_graphs import block_replay_bytes
from workbench.profile.profile import Profile
from workbench.profile.unit_costs import TOKEN_BYTES
from workbench.schedule import buffers as name
from workbench.schedule.action import Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.builder import ScheduleBuilder
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER

SCALAR_BYTES = 128
"""Norms of a unit's gradients, and losses of a micro-batch in the steps that are remembered."""


def batch_bytes(profile: Profile, microbatches: int) -> tuple[int, int]:
    """Device bytes of a batch, and of the numbers that its step leaves."""
    tokens = profile.microbatch * microbatches * profile.seq * TOKEN_BYTES
    return tokens, SCALAR_BYTES * (len(profile.units) + microbatches)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Layout of one training: where each unit's weights, states and activations lie, and when it is
    updated."""

    method: str
    resident: frozenset[int]
    """Units whose weights never leave the device, which updates them; the first and the last are
    always among them."""
    pulled: frozenset[int] = frozenset()
    """Resident units whose optimizer states live on the host and visit the device to be updated."""
    state_slots: int = 3
    """Device buffers that visiting states share."""
    slots: int
    """Weight slots of the streamed units."""
    microbatches: int = 1
    kept: frozenset[int] = frozenset()
    """Units that keep what their backward pass needs; the others recompute it from their input.
    The head always keeps, since it is passed only once."""
    stash: bool = False
    """Inputs of recomputed inner blocks wait for the backward pass on the host."""
    clipped: bool = True
    """No update is final before the global norm is known."""
    eager: frozenset[int] = frozenset()
    """Units updated as their gradients arrive: streamed ones, and where `clipped` pulled ones too;
    the others are updated in the order of the next forward pass. Where `clipped`, an eager update
    is settled once the norm is known: it stands, or is taken back and done again with the clip
    coefficient."""
    held_gradients: bool = False
    """Gradients of resident blocks have memory for the whole run, as Megatron-LM's have, instead
    of from their backward pass to their update."""
    on_disk: frozenset[int] = frozenset()
    """Streamed units whose states live on the disk; those of the others live on the host."""
    host_workers: int = 1
    gradient_slots: int = 2
    """Gradient buffers the streamed units share on the device."""
    host_gradient_slots: int | None = None
    """Host buffers that the gradients of streamed units share, where all are eager and nothing is
    clipped: less memory, but gradients wait for updates. None for a buffer each."""
    staging_slots: int = 3
    """Host buffers for states on their way from and to the disk."""
    microbatch_major: bool = False
    replay: bool = False
    """Passes of blocks that recompute are recorded and launched by the GPU (passes/replay.py)."""


class Draft(ScheduleBuilder):
    """Collects the actions and buffers of one step."""

    def __init__(self, layout: Layout, profile: Profile) -> None:
        """Raises ValueError for a layout no program can have."""
        super().__init__()
        self.layout, self.profile = layout, profile
        self.num_units = len(profile.units)
        self.head = self.num_units - 1
        self.micros = range(layout.microbatches)
        self.last_micro = layout.microbatches - 1
        self.streamed = [u for u in range(self.num_units) if u not in layout.resident]
        self.index = {unit: k for k, unit in enumerate(self.streamed)}
        self.pulled = sorted(layout.pulled, reverse=not layout.clipped)
        """In the order of their updates."""
        if not {0, self.head} <= layout.resident:
            raise ValueError("the embedding and the head must be resident")
        if self.streamed and layout.slots < 1:
            raise ValueError(f"{len(self.streamed)} streamed units need at least 1 slot, got 0")
        if not layout.pulled <= layout.resident - {0, self.head}:
            raise ValueError("only the states of resident blocks can be pulled")
        if layout.eager & (layout.resident - layout.pulled):
            raise ValueError("only updates of streamed and pulled units can be eager")
        if self.streamed and layout.microbatch_major:
            raise ValueError("micro-batch-major order needs every unit resident")
        if not layout.on_disk <= {*self.streamed}:
            raise ValueError("only the states of streamed units can be on the disk")
        if layout.host_gradient_slots and (layout.clipped or not layout.eager >= {*self.streamed}):
            raise ValueError("gradients that wait for the norm or their turn need a buffer each")
        if layout.clipped and layout.eager & layout.on_disk:
            raise ValueError("updates of states on the disk cannot be taken back")
        self._permanent_buffers()

    def _permanent_buffers(self) -> None:
        profile, layout = self.profile, self.layout
        tokens, numbers = batch_bytes(profile, layout.microbatches)
        self.buffer("tokens", DEVICE, tokens, permanent=True)
        self.buffer("numbers", DEVICE, numbers, permanent=True)
        if profile.library_bytes:
            self.buffer("libraries", DEVICE, profile.library_bytes, permanent=True)
        if any(map(self.replayed, range(self.num_units))):
            self.buffer(name.REPLAYS, DEVICE, block_replay_bytes(profile), permanent=True)
        if layout.on_disk:
            self.buffer("disk bounce", HOST_TIER, name.DISK_BOUNCE_BYTES, permanent=True)
        for unit, cost in enumerate(profile.units):
            weight = cost.parameters * profile.weight_bytes
            state = cost.parameters * profile.state_bytes
            if unit in layout.resident:
                held = not self.fresh_gradients(unit)
                self.buffer(name.weights(unit), DEVICE, weight, permanent=True)
                self.buffer(name.gradients(unit), DEVICE, weight, permanent=held)
                if unit in layout.pulled:
                    self.buffer(name.host_states(unit), HOST_TIER, state, permanent=True)
                else:
                    self.buffer(name.states(unit), DEVICE, state, permanent=True)
                continue
            self.buffer(name.host_weights(unit), HOST_TIER, weight, permanent=True)
            if unit in layout.on_disk:
                self.buffer(name.disk_states(unit), DISK, state, permanent=True)
            else:
                self.buffer(name.host_states(unit), HOST_TIER, state, permanent=True)

    def weight_bytes(self, unit: int) -> int:
        """Bytes of a unit's working weights, and of its gradients."""
        return self.profile.units[unit].parameters * self.profile.weight_bytes

    def state_bytes(self, unit: int) -> int:
        """Bytes of a unit's optimizer states."""
        return self.profile.units[unit].parameters * self.profile.state_bytes

    def leaves(self, unit: int) -> bool:
        """Whether a streamed unit gives its slot up between forward and backward pass."""
        return self.index[unit] < len(self.streamed) - self.layout.slots

    def weights(self, unit: int, turn: int) -> str:
        """The buffer that holds a unit's weights in the forward (0) or backward (1) pass."""
        if unit in self.index and turn == 1 and self.leaves(unit):
            return name.weights(unit, 1)
        return name.weights(unit)

    def fresh_gradients(self, unit: int) -> bool:
        """Whether a resident unit's gradients have memory only from backward pass to update. Those
        of the embedding and the head add up over both, and stay."""
        return not self.layout.held_gradients and 0 < unit < self.head

    def joins_gradients(self, unit: int) -> bool:
        """Whether an update on the compute lane copies a unit's gradients together before: on a GPU
        one launch for each of them takes several times as long as the update does. Where updates
        come in the middle of the backward pass, activations need that memory."""
        cuda = self.profile.hardware.device == "cuda"
        fresh = self.fresh_gradients(unit) and not self.replayed(unit)  # which joins them at once
        return cuda and self.layout.clipped and fresh

    def eager(self, unit: int) -> bool:
        """Whether a unit is updated during the backward pass. Where its states are on the device,
        that costs so little that only the norm is worth waiting for."""
        if unit in self.layout.resident and not self.layout.clipped:
            return True
        return unit in self.layout.eager

    def settled(self, unit: int) -> bool:
        """Whether a unit's update awaits a verdict."""
        return self.layout.clipped and unit in self.layout.eager

    def keeps(self, unit: int) -> bool:
        """Whether the forward pass of a unit leaves what its backward pass needs."""
        return unit == self.head or unit in self.layout.kept

    def holds_output(self, unit: int) -> bool:
        """Whether autograd holds what a unit put out until the unit's own backward pass: the next
        one's input, which does not wait on the host."""
        return self.keeps(unit) and 0 <= unit < self.head and not self.stashed(unit + 1)

    def replayed(self, unit: int) -> bool:
        """Whether a unit's passes are recordings, which work in memory of their own."""
        return self.layout.replay and 0 < unit < self.head and not self.keeps(unit)

    def stashed(self, unit: int) -> bool:
        """Inputs of inner blocks go to the host; the backward pass begins with the last ones."""
        return self.layout.stash and 0 < unit < self.head - 1 and not self.keeps(unit)

    def inputs(self, unit: int, micro: int) -> list[str]:
        """The buffer a unit's backward visit reads its input from; none for the embedding."""
        if unit == 0:
            return []
        return [name.activation(unit, micro, 1 if self.stashed(unit) else 0)]

    def ready(self, unit: int, micro: int) -> list[str]:
        """Actions that the backward visit of a unit waits for besides its output gradient."""
        after = []
        if unit in self.index and self.leaves(unit):
            after.append(act(Kind.LOAD, unit, turn=1))
        if self.stashed(unit):
            after.append(act(Kind.FETCH, unit, micro))
        return after
