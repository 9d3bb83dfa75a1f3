"""A schedule: everything one training step does, on every rank and lane, as plain data.

Planners emit schedules; the validator, the simulator, the runtime and the drawing all read the same
object. The order of `actions` is the order of every lane (an action queues behind the earlier ones
of its rank and lane), and steps repeat: step k+1's lanes continue step k's, held back only by the
dependencies, so work of one step may overlap the next exactly where that is allowed.

Memory: a buffer is either permanent (`Buffer.permanent`) or is taken once and freed once in each
step. Buffers that name a `slot` share one piece of memory in turn, or lie side by side in it; the
others are allocated when taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from workbench.core.division import micro_span
from workbench.schedule.action import VERDICT, Action, Kind
from workbench.schedule.mesh import Mesh

DEVICE, HOST_TIER, DISK = "device", "host", "disk"
TIERS = (DEVICE, HOST_TIER, DISK)
PAGE = 4096
"""Bytes that each buffer of host memory which several ranks map is a multiple of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    """A piece of memory of one tier."""

    tier: str
    nbytes: int
    rank: int = 0
    slot: str | None = None
    """Buffers of one slot share memory; None for memory of its own."""
    offset: int = 0
    """Bytes from the start of its slot; two that do not overlap there may be there at once."""
    permanent: bool = False
    """Occupied for the whole run, never taken or freed."""
    copies: int = 1
    """Steps whose own it holds at a time: 1 is taken again only after it was freed."""
    parts: int = 1
    """Equal parts of its bytes, on the host: one for each replica, or 1 where replicas share it."""

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ValueError(f"tier {self.tier!r} is unknown; tiers are {', '.join(TIERS)}")
        if self.nbytes < 0:
            raise ValueError(f"a buffer of {self.nbytes} bytes: the size must not be negative")
        if self.permanent and self.slot is not None:
            raise ValueError(f"a permanent buffer has no slot, this one has {self.slot!r}")
        if self.copies < 1 or (self.copies > 1 and self.slot is not None):
            raise ValueError(
                f"a buffer of {self.copies} copies; give 1 or more, and 1 in a slot, whose bytes "
                "are those of one"
            )
        if self.parts < 1 or self.nbytes % self.parts:
            raise ValueError(
                f"a buffer of {self.nbytes} bytes has {self.parts} parts; give 1 or more equal ones"
            )
        if self.offset and (self.slot is None or self.offset < 0):
            raise ValueError(f"offset {self.offset} is for a place in a slot, and not negative")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The actions of one step, the memory they use, and the budgets they promise to keep."""

    name: str
    """The method, with what was chosen for it, e.g. ``stronghold w4 r2``."""
    num_units: int
    num_microbatches: int
    actions: tuple[Action, ...]
    buffers: dict[str, Buffer] = field(default_factory=dict)
    budgets: dict[str, int] = field(default_factory=dict)
    """Bytes allowed per rank and tier; a tier that is absent is unlimited."""
    num_ranks: int = 1
    """Pipeline positions, each with lanes of its own."""
    replicas: int = 1
    """Processes that walk the lanes of a rank, each on as many samples as the schedule names, or on
    one less (`of_replica`)."""
    settings: dict[str, int | float | str | bool | None] = field(default_factory=dict)
    """Settings of the planner, for records and titles; nothing here changes what is executed."""

    def __post_init__(self) -> None:
        counts = (self.num_units, self.num_microbatches, self.num_ranks, self.replicas)
        if min(counts) < 1:
            raise ValueError(
                "a schedule needs at least one unit, micro-batch, rank and replica, got "
                f"{', '.join(map(str, counts))}"
            )
        for tier in self.budgets:
            if tier not in TIERS:
                raise ValueError(f"budget for unknown tier {tier!r}; tiers are {', '.join(TIERS)}")

    @property
    def mesh(self) -> Mesh:
        """The processes that run it."""
        return Mesh(self.num_ranks, self.replicas)

    def of_replica(self, replica: int, batch: int) -> Schedule:
        """The schedule with the samples of one replica, counted from its first. It is written for
        the replicas that have the most of a step's batch, and so are all sizes of memory; another
        one has a sample less in one micro-batch."""
        if batch % self.replicas == 0:
            return self
        first, end = self.mesh.share(batch, replica)

        def own(action: Action) -> Action:
            if action.samples is None:
                return action
            span = micro_span(end - first, action.microbatch, self.num_microbatches)
            count, planned = span[1] - span[0], action.samples[1] - action.samples[0]
            return replace(action, samples=span, nbytes=action.nbytes * count // planned)

        return replace(self, actions=tuple(map(own, self.actions)))

    @cached_property
    def by_name(self) -> dict[str, Action]:
        """Each action by its name, which is unique."""
        return {action.name: action for action in self.actions}

    @cached_property
    def lag(self) -> int:
        """Steps back in which the oldest micro-batch began that a step works on."""
        return max((action.lag for action in self.actions), default=0)

    @cached_property
    def lanes(self) -> dict[tuple[int, str], tuple[Action, ...]]:
        """The actions of every (rank, lane), in order."""
        lanes: dict[tuple[int, str], list[Action]] = {}
        for action in self.actions:
            lanes.setdefault((action.rank, action.lane), []).append(action)
        return {key: tuple(actions) for key, actions in lanes.items()}

    def static_bytes(self, tier: str, rank: int = 0) -> int:
        """Bytes held for the whole run: permanent buffers, and each slot to its farthest end."""
        permanent = sum(
            buffer.nbytes * buffer.copies
            for buffer in self.buffers.values()
            if buffer.permanent and (buffer.tier, buffer.rank) == (tier, rank)
        )
        return permanent + sum(self.slot_bytes(tier, rank).values())

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the host memory that several ranks map: each buffer on pages of its own."""
        sizes = [buffer.nbytes for buffer in self.buffers.values() if buffer.tier == HOST_TIER]
        return sum(-(-nbytes // PAGE) * PAGE for nbytes in sizes)

    def slot_bytes(self, tier: str, rank: int = 0) -> dict[str, int]:
        """Slot -> bytes to its farthest end."""
        slots: dict[str, int] = {}
        for buffer in self.buffers.values():
            if (buffer.tier, buffer.rank) == (tier, rank) and buffer.slot is not None:
                end = buffer.offset + buffer.nbytes
                slots[buffer.slot] = max(slots.get(buffer.slot, 0), end)
        return slots

    def moved_bytes(self) -> dict[str, int]:
        """Bytes a step moves on one replica: load (to the device), store (to the host), read and
        write (disk).

        Of states that may visit the device before and after the norm, one visit moves: two do in a
        step whose guess was wrong.
        """
        way = {
            Kind.LOAD: "load",
            Kind.FETCH: "load",
            Kind.PULL: "load",
            Kind.SUM_IN: "load",
            Kind.PUSH: "store",
            Kind.EVICT: "store",
            Kind.STASH: "store",
            Kind.GRAD_OUT: "store",
            Kind.SUM_OUT: "store",
            Kind.READ: "read",
            Kind.SPILL: "write",
        }
        moved = {"load": 0, "store": 0, "read": 0, "write": 0}
        for action in self.actions:
            again = action.kind in (Kind.PULL, Kind.PUSH) and action.turn == VERDICT
            if action.kind in way and not again:
                moved[way[action.kind]] += action.nbytes
        return moved
