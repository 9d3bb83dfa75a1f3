"""Messages between stages of several processes each: every process sends and receives pieces.

What crosses a boundary lies in boxes on both sides (boxes.py), so a message is a piece for every
pair of processes whose boxes overlap, and its gradients go the same ways back. With NCCL each such
pair has a communicator for either direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.transport.boxes import Box, Move, Shape, Spread, sizes, within
from workbench.runtime.transport.group_transport import (
    ACTIVATIONS,
    Channel,
    Form,
    GroupTransport,
)
from workbench.schedule.action import Action, Kind


class Tensors(Protocol):
    """A tensor that crosses a boundary (passes/shard_ends.py)."""

    front: Spread
    behind: Spread
    differentiable: bool

    def shape(self, samples: int) -> Shape: ...

    def moves(self, samples: int) -> Sequence[Move]: ...


class Piece(NamedTuple):
    """A part of a message, to or from one process."""

    peer: int
    """Its number in the world."""
    tensor: int
    """Number of the tensor in the message."""
    at: tuple[slice, ...]
    """Where it is in this process's box."""
    shape: Shape


def pairs(
    crossings: Sequence[Sequence[Tensors]], ranks: Callable[[int], Sequence[int]],
    samples: Iterable[int],
) -> list[tuple[int, int]]:  # fmt: skip
    """Processes that exchange pieces of micro-batches of so many `samples`, in front and behind:
    `crossings` and `ranks` by stage."""
    return sorted(
        {
            (ranks(stage - 1)[move.source], ranks(stage)[move.target])
            for stage, tensors in enumerate(crossings) if 0 < stage < len(crossings) - 1
            for each in tensors for count in samples for move in each.moves(count)
        }
    )  # fmt: skip


class ShardTransport(GroupTransport):
    """Sends and receives the pieces of one process."""

    def __init__(
        self, groups: Mapping[Channel, dist.ProcessGroup], words: dist.ProcessGroup, *,
        crossings: Callable[[int], Sequence[Tensors]],
        ranks: Callable[[int], Sequence[int]], rank: int,
        forms: Callable[[Action, int], Sequence[Form]], samples: Callable[[Action, int], int],
        device: torch.device,
    ) -> None:  # fmt: skip
        """`groups` as `linked` makes them of `pairs`. `crossings`: stage -> tensors that it
        receives; `ranks`: stage -> its processes, of which `rank` is this one. `samples` of a
        message's micro-batch."""
        super().__init__(groups, words, process=int, forms=forms, device=device)
        self._crossings, self._ranks, self._samples = crossings, ranks, samples
        self._rank = rank
        self._pieces = lru_cache(maxsize=None)(self._found)

    def receive(self, action: Action, step: int) -> Bundle:
        """As `Transport.receive`."""
        pieces = super().receive(action, step)
        forms = self._forms(action, step)
        made = tuple(
            torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype, _ in forms
        )
        for piece, came in zip(self._own(action, step), pieces, strict=True):
            made[piece.tensor][piece.at] = came
        return made

    def send(self, action: Action, source: Bundle, step: int) -> None:
        """As `Transport.send`."""
        first, held = self._tag(action), self._told(action, source, step)
        sent = [
            dist.isend(
                held[piece.tensor][piece.at].contiguous(), piece.peer,
                group=self._carrier(action, piece.peer), tag=first + piece.tensor,
            )
            for piece in self._own(action, step)
        ]  # fmt: skip
        self._wait(action, sent)

    def _post(
        self, action: Action, step: int, device: torch.device | str
    ) -> tuple[Bundle, list[dist.Work]]:
        first, forms, pieces = (
            self._tag(action), self._forms(action, step), self._own(action, step)
        )  # fmt: skip
        pinned = device == "cpu" and self._device.type == "cuda"
        made = tuple(
            torch.empty(each.shape, dtype=forms[each.tensor][1], device=device, pin_memory=pinned)
            for each in pieces
        )
        return made, [
            dist.irecv(
                tensor, each.peer, group=self._carrier(action, each.peer), tag=first + each.tensor
            )
            for tensor, each in zip(made, pieces, strict=True)
        ]

    def _peers(self, action: Action, step: int) -> Sequence[int]:
        return sorted({piece.peer for piece in self._own(action, step)})

    def _carrier(self, action: Action, peer: int) -> dist.ProcessGroup:
        front = action.kind in (Kind.SEND, Kind.RECV_GRAD)
        return self._groups[peer, action.kind in ACTIVATIONS, front]

    def _own(self, action: Action, step: int) -> list[Piece]:
        front = action.kind in (Kind.SEND, Kind.RECV_GRAD)
        back = action.kind in (Kind.SEND_GRAD, Kind.RECV_GRAD)
        return self._pieces(action.unit, front, back, self._samples(action, step))

    def _found(self, unit: int, front: bool, back: bool, samples: int) -> list[Piece]:
        """Pieces of a message into a stage, or of the gradients that go `back`, in this process's
        boxes in `front` or behind."""
        here, there = self._ranks(unit - front), self._ranks(unit - (not front))
        me, found = here.index(self._rank), []
        crossings = [each for each in self._crossings(unit) if each.differentiable or not back]
        for number, each in enumerate(crossings):
            mine: Box = (each.front if front else each.behind).box(each.shape(samples), me)
            for source, target, box in each.moves(samples):
                own, other = (source, target) if front else (target, source)
                if own == me:
                    piece = Piece(there[other], number, within(box, mine), sizes(box))
                    found.append(piece)
        return found
