"""Messages between processes of any hosts: sends and receives of torch.distributed.

The second carrier beside copies into mapped memory (peer_transport.py). A receive is posted as soon
as the schedule has a place for the message, which is how the sender learns of it; both sides' lanes
go on when it has come. Gloo tells messages apart by tags. NCCL does not, and its kernels wait for
their partner in the order in which they were issued: so activations and gradients of two neighbours
have a communicator each, made before the first step, in the order of one lane on both sides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.runtime.board import Failed
from workbench.runtime.bundle import Bundle
from workbench.schedule.action import Action, Kind
from workbench.schedule.graph import partners
from workbench.schedule.schedule import Schedule

Form = tuple[tuple[int, ...], torch.dtype, bool]
"""Shape, dtype and whether a gradient goes back, of one tensor of a message."""
PARTS = 16
"""Tensors of a message at most, which tags tell apart."""
ACTIVATIONS = {Kind.SEND, Kind.RECV}


class GroupTransport:
    """Sends and receives the messages of one process. A `Transport`, of messages that carry a
    micro-batch."""

    def __init__(
        self,
        groups: Mapping[tuple[int, bool], dist.ProcessGroup],
        *,
        process: Callable[[int], int],
        forms: Callable[[Action], Sequence[Form]],
        device: torch.device,
    ) -> None:
        """`groups`: (process of the other side, whether for activations) -> what carries them.
        `process`: pipeline position -> number of this replica's process there, in the world;
        `forms` of a message."""
        self._groups, self._process, self._forms, self._device = groups, process, forms, device
        carriers = {dist.get_backend(group) for group in groups.values()}
        self._by_host = device.type == "cuda" and carriers == {"gloo"}
        """Whether messages of a GPU go by the host's memory."""
        self._partner: dict[str, Action] = {}
        self._posted: dict[str, tuple[Bundle, list[dist.Work]]] = {}
        """Receiving action -> where its message arrives, and its receives."""
        self._some = threading.Condition()
        """Wakes a lane whose receive has been posted."""
        self._stopped = False

    def use(self, schedule: Schedule) -> None:
        """Carry the messages of a schedule from now on."""
        self._partner = partners(schedule)

    def announce(self, action: Action, step: int) -> None:
        """Post the receive of a message, for which there is a place now."""
        made = tuple(
            torch.empty(shape, dtype=dtype, device="cpu" if self._by_host else self._device)
            for shape, dtype, _ in self._forms(action)
        )
        works = [
            dist.irecv(tensor, self._peer(action), group=self._group(action), tag=tag)
            for tensor, tag in self._tagged(action, made)
        ]
        with self._some:
            self._posted[action.name] = made, works
            self._some.notify_all()

    def receive(self, action: Action, step: int) -> Bundle:
        """The message; on CUDA the current stream waits until it has come."""
        with self._some:
            self._some.wait_for(lambda: self._stopped or action.name in self._posted)
            if self._stopped:
                raise Failed("another lane failed")
            made, works = self._posted.pop(action.name)
        for work in works:
            work.wait()
        return tuple(tensor.to(self._device) for tensor in made) if self._by_host else made

    def send(self, action: Action, source: Bundle, step: int) -> None:
        """Send a bundle, as soon as the other side has a place for it."""
        source = tuple(tensor.cpu() for tensor in source) if self._by_host else source
        works = [
            dist.isend(tensor.contiguous(), self._peer(action), group=self._group(action), tag=tag)
            for tensor, tag in self._tagged(action, source)
        ]
        for work in works:
            work.wait()

    def stop(self) -> None:
        """Wake whoever waits here, now and later: a lane of this process has failed."""
        with self._some:
            self._stopped = True
            self._some.notify_all()

    def close(self) -> None:
        """Let go of messages that were posted; groups end with the process."""
        self._posted.clear()

    def _peer(self, action: Action) -> int:
        return self._process(self._partner[action.name].rank)

    def _group(self, action: Action) -> dist.ProcessGroup:
        return self._groups[self._peer(action), action.kind in ACTIVATIONS]

    def _tagged(self, action: Action, bundle: Bundle) -> list[tuple[Tensor, int]]:
        assert len(bundle) <= PARTS, action
        first = (action.microbatch * 2 + (action.kind in ACTIVATIONS)) * PARTS
        return [(tensor, first + part) for part, tensor in enumerate(bundle)]
