"""One step of work, as plain data.

An `Action` says what is done (`kind`), to which part of the model (`unit`, `microbatch`), where
(`rank`, `lane`) and after what (`after`). Its `name` is its identity and reads like the
literature's diagrams: ``F3.0`` is the forward pass of unit 3 on micro-batch 0, ``L3+1`` the second
load of unit 3 in a step, ``2:B5.1`` a backward pass on rank 2. A reference to another action may
carry a step, ``U3@-1`` being the update of unit 3 in the step before. Names parse back.

Memory is data too: an action `takes` buffers when it starts, `uses` them while it runs, and `frees`
them when it ends. The buffers themselves stand in the schedule (schedule.py).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Work of an action. The value is its code in printed names."""

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    INPUT_GRAD = "I"
    """First half of a split backward pass: the gradient of the unit's input."""
    WEIGHT_GRAD = "W"
    """Second half of a split backward pass: the gradient of the unit's weights."""
    LOAD = "L"
    """Parameters from the host to the device."""
    EVICT = "E"
    """Parameters from the device to the host. Dropping a clean copy moves nothing: no action."""
    STASH = "S"
    """An activation from the device to the host."""
    FETCH = "T"
    """A stashed activation back to the device."""
    GRAD_OUT = "G"
    """Gradients from the device to the host."""
    SUM_OUT = "SUM_OUT"
    """A sum of gradients that lacks micro-batches from the device to the host, to make room."""
    SUM_IN = "SUM_IN"
    """A sum that was moved out back to the device, to go on."""
    NORM = "N"
    """Global gradient norm: decides the clip coefficient and whether the step is skipped."""
    UPDATE = "U"
    """Optimizer step of one unit."""
    SETTLE = "V"
    """Verdict on an update that did not wait for the global norm: it stands, or is taken back and
    done again with the clip coefficient."""
    MOMENTS = "M"
    """Moments of one unit, of which an update has changed the weights alone."""
    SEND = "SEND"
    """The input of a unit to the rank that computes it. Without a micro-batch: weights of it."""
    RECV = "RECV"
    SEND_GRAD = "SEND_GRAD"
    """The gradient of a unit's input to the rank of the unit before. Without a micro-batch: of
    weights of it."""
    RECV_GRAD = "RECV_GRAD"
    REDUCE = "REDUCE"
    """Sum over the ranks that name it."""
    PULL = "PULL"
    """Optimizer states from the host to the device, to be updated there."""
    PUSH = "PUSH"
    """Optimizer states from the device back to the host."""
    READ = "READ"
    """Optimizer states from the disk to the host."""
    SPILL = "SPILL"
    """Optimizer states from the host to the disk."""


SENDS, RECEIVES = (Kind.SEND, Kind.SEND_GRAD), (Kind.RECV, Kind.RECV_GRAD)
MEETING = {
    **dict.fromkeys((Kind.SEND, Kind.RECV), "message"),
    **dict.fromkeys((Kind.SEND_GRAD, Kind.RECV_GRAD), "gradient message"),
    Kind.REDUCE: "sum",
}
"""Kinds that several ranks do together -> what they meet for. All who take part begin at once."""

COMPUTE, H2D, D2H, HOST = "compute", "h2d", "d2h", "host"
LATER = COMPUTE + ".1"
"""Lane of recomputations and backward passes where it takes turns with that of forward passes
(turns.py)."""
VISIT = "visit"
"""Device updates of states that visit it, beside the compute lane: they wait for the link."""
GUESS, VERDICT = 1, 2
"""Turns of the two visits of states that are updated before the global norm is known."""
DISK_IN, DISK_OUT, NET_IN, NET_OUT = "disk-in", "disk-out", "net-in", "net-out"
LANES = (COMPUTE, VISIT, H2D, D2H, HOST, DISK_IN, DISK_OUT, NET_IN, NET_OUT)


def lane_kind(lane: str) -> str:
    """The resource a lane belongs to: host workers are the lanes ``host``, ``host.1``, ..."""
    return lane.partition(".")[0]


class Reference(NamedTuple):
    """A parsed name. `step` is relative to the step of the action that holds the reference."""

    kind: Kind
    unit: int
    microbatch: int | None
    turn: int
    rank: int
    step: int


_CODES = "|".join(sorted((k.value for k in Kind), key=len, reverse=True))
_NAME = re.compile(
    rf"(?:(?P<rank>\d+):)?(?P<kind>{_CODES})(?P<unit>\d+)(?:\.(?P<microbatch>\d+))?"
    r"(?:\+(?P<turn>\d+))?(?:@(?P<step>-?\d+))?",
    re.ASCII,
)


def parse_name(text: str) -> Reference:
    """Parse a printed name.

    >>> parse_name("2:F3.0@-1")
    Reference(kind=<Kind.FORWARD: 'F'>, unit=3, microbatch=0, turn=0, rank=2, step=-1)
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no action name; one looks like F3.0, L3+1 or 2:U7@-1")
    g = match.groupdict()
    return Reference(
        kind=Kind(g["kind"]),
        unit=int(g["unit"]),
        microbatch=None if g["microbatch"] is None else int(g["microbatch"]),
        turn=int(g["turn"] or 0),
        rank=int(g["rank"] or 0),
        step=int(g["step"] or 0),
    )


def format_name(
    kind: Kind,
    unit: int,
    microbatch: int | None = None,
    *,
    turn: int = 0,
    rank: int = 0,
    step: int = 0,
) -> str:
    """The printed name of an action, or of a reference to one when `step` is not 0.

    >>> format_name(Kind.LOAD, 3, turn=1), format_name(Kind.UPDATE, 3, step=-1)
    ('L3+1', 'U3@-1')
    """
    return (
        (f"{rank}:" if rank else "")
        + f"{kind._value_}{unit}"  # `value` is a property, and there are many names
        + (f".{microbatch}" if microbatch is not None else "")
        + (f"+{turn}" if turn else "")
        + (f"@{step}" if step else "")
    )


@functools.cache
def _is_lane(lane: str) -> bool:
    kind, dot, number = lane.partition(".")
    return kind in LANES and (not dot or (number.isascii() and number.isdigit()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One piece of work of one training step."""

    kind: Kind
    unit: int
    """Index of a layer, or of a pack of consecutive layers."""
    lane: str
    """Where it queues; one lane executes its actions in the order of the schedule."""
    microbatch: int | None = None
    """None for work done once per unit and step."""
    turn: int = 0
    """Number of equal actions before it in the step: the load for the backward pass is turn 1. Of
    the visits of turn `GUESS` and `VERDICT` only one moves anything where the guess was right."""
    rank: int = 0
    after: tuple[str, ...] = ()
    """Names of the actions it waits for: data dependencies only, lane order is implied."""
    nbytes: int = 0
    """Bytes that a transfer moves, or that are added to gradients on the host before their norm."""
    takes: tuple[str, ...] = ()
    """Buffers that become occupied when it starts."""
    uses: tuple[str, ...] = ()
    """Further buffers that must be occupied while it runs."""
    frees: tuple[str, ...] = ()
    """Buffers that become free when it ends."""
    samples: tuple[int, int] | None = None
    """First sample of the minibatch that it works on, and the one after its last. None where all
    passes divide the minibatch alike, so that `microbatch` says it."""
    lag: int = 0
    """Steps back in which its work began: at 2, step t does work of the micro-batches of t - 2."""
    stale: int = 0
    """Updates that the weights it reads lack, of the updates by all micro-batches before its own
    step's."""
    name: str = field(init=False, repr=False, compare=False)
    """Printed; kept, since all that runs or searches schedules asks for it."""

    def __post_init__(self) -> None:
        name = format_name(self.kind, self.unit, self.microbatch, turn=self.turn, rank=self.rank)
        object.__setattr__(self, "name", name)
        if not _is_lane(self.lane):
            raise ValueError(
                f"lane {self.lane!r} is unknown; lanes are {', '.join(LANES)}, "
                f"and {HOST}.1 is a second one of a kind"
            )
        if min(self.unit, self.microbatch or 0, self.turn, self.rank, self.nbytes) < 0:
            raise ValueError(
                f"{self.name}: unit, micro-batch, turn, rank and nbytes must not be negative"
            )
        if self.samples is not None and not 0 <= self.samples[0] < self.samples[1]:
            raise ValueError(f"{self.name}: samples {self.samples} are none; give first and end")

    @property
    def meeting(self) -> tuple[str | None, int, int | None, int]:
        """Names what it takes part in with other ranks, where its kind is one of `MEETING`."""
        return MEETING.get(self.kind), self.unit, self.microbatch, self.turn

    @property
    def span(self) -> tuple[int, int]:
        """First and end of what it works on: samples, or micro-batches where it names none."""
        micro = self.microbatch or 0
        return self.samples or (micro, micro + 1)

    def __str__(self) -> str:
        return self.name
