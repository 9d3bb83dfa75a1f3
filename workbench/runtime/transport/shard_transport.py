"""Messages between stages of several processes each: every process sends and receives pieces.

What crosses a boundary lies in boxes on both sides (boxes.py), so a message is a piece for every
pair of processes whose boxes overlap, and its gradients go the same ways back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.transport.boxes import Box, Move, Shape, Spread, sizes, within
from workbench.runtime.transport.group_transport import Form, GroupTransport
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


class ShardTransport(GroupTransport):
    """Sends and receives the pieces of one process, by gloo and the host's memory."""

    def __init__(
        self, words: dist.ProcessGroup, *, crossings: Callable[[int], Sequence[Tensors]],
        ranks: Callable[[int], Sequence[int]], rank: int,
        forms: Callable[[Action, int], Sequence[Form]], samples: Callable[[Action, int], int],
        device: torch.device,
    ) -> None:  # fmt: skip
        """`crossings`: stage -> tensors that it receives; `ranks`: stage -> its processes, of which
        `rank` is this one. `samples` of a message's micro-batch."""
        super().__init__({}, words, process=int, forms=forms, device=device)
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
        first = self._tag(action)
        held = [tensor.cpu() for tensor in source]
        works = [
            dist.isend(
                held[piece.tensor][piece.at].contiguous(), piece.peer, group=self._words,
                tag=first + piece.tensor,
            )
            for piece in self._own(action, step)
        ]  # fmt: skip
        for work in works:
            work.wait()

    def _post(
        self, action: Action, step: int, device: torch.device | str
    ) -> tuple[Bundle, list[dist.Work]]:
        first, forms, pieces = (
            self._tag(action), self._forms(action, step), self._own(action, step)
        )  # fmt: skip
        made = tuple(
            torch.empty(each.shape, dtype=forms[each.tensor][1], device=device) for each in pieces
        )
        return made, [
            dist.irecv(tensor, each.peer, group=self._words, tag=first + each.tensor)
            for tensor, each in zip(made, pieces, strict=True)
        ]

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
