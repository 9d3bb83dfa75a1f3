"""Where each unit's weights, states and activations lie on one device, and when it is updated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """A method's choices for one training."""

    method: str
    resident: frozenset[int]
    """Units whose weights never leave the device, which updates them. The first and the last are
    among them, or both are `hosted`."""
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
    moments_later: frozenset[int] = frozenset()
    """Streamed units whose weights alone are updated once the norm is known; their moments follow
    beside the next backward pass, before their next gradients come (updates.py)."""
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
    """Passes of blocks that recompute are recorded and launched by the GPU (passes/replay.py); and
    of all blocks where these are `chained`."""

    def chained(self, units: int) -> bool:
        """Whether blocks that all keep what their backward passes need are one chain of recordings:
        a micro-batch has passed them in both directions before the next one comes, so there is one
        place for what is kept."""
        return self.replay and self.microbatch_major and self.kept >= {*range(1, units - 1)}

    def hosted(self, units: int) -> frozenset[int]:
        """The embedding and the head, if the host updates them: their weights come to the device
        once a step, and stay until its last backward pass."""
        return frozenset({0, units - 1} - self.resident)

    def streamed(self, units: int) -> list[int]:
        """Blocks whose weights come to the device for each pass, in order. Raises ValueError for a
        placement that no program can have."""
        head, hosted = units - 1, self.hosted(units)
        streamed = [unit for unit in range(1, head) if unit not in self.resident]
        if hosted and len(hosted) < 2:
            raise ValueError("the embedding and the head must be updated in one place")
        if streamed and self.slots < 1:
            raise ValueError(f"{len(streamed)} streamed units need at least 1 slot, got 0")
        if not self.pulled <= self.resident - {0, head}:
            raise ValueError("only the states of resident blocks can be pulled")
        if self.eager & (self.resident - self.pulled):
            raise ValueError("only updates of streamed and pulled units can be eager")
        if hosted & self.eager:
            raise ValueError("updates of the embedding and the head cannot be eager")
        if (streamed or hosted) and self.microbatch_major:
            raise ValueError("micro-batch-major order needs every unit resident")
        if not self.on_disk <= {*streamed}:
            raise ValueError("only the states of streamed units can be on the disk")
        if self.host_gradient_slots and (self.clipped or not self.eager >= {*streamed}):
            raise ValueError("gradients that wait for the norm or their turn need a buffer each")
        if self.clipped and self.eager & self.on_disk:
            raise ValueError("updates of states on the disk cannot be taken back")
        if self.moments_later - ({*streamed} if self.clipped else set()) or (
            self.moments_later & self.on_disk
        ):
            raise ValueError(
                "only moments of streamed units on the host can follow their weights, in a step "
                "that is clipped"
            )
        return streamed
