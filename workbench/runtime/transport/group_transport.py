"""Messages between processes of any hosts: sends and receives of torch.distributed.

The second carrier beside copies into mapped memory (peer_transport.py). A receive is posted as soon
as the schedule has a place for the message, which is how the sender learns of it; both sides' lanes
go on when it has come. Gloo tells messages apart by tags.

NCCL's receive is a kernel that waits on the device, and a device that waits for what nobody has
issued yet may never get it: to load a kernel for the first time waits for all that run. So the
sender first tells by gloo that it has issued the message, and only then is its receive issued.
Activations and gradients of a link between stages have a communicator each, whose kernels come in
the order of one lane on both sides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from workbench.runtime.executor.board import Failed
from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.transport.meeting import wait
from workbench.schedule.action import RECEIVES, Action, Kind
from workbench.schedule.buffers import borrower_of
from workbench.schedule.graph import partners
from workbench.schedule.schedule import Schedule

Form = tuple[tuple[int, ...], torch.dtype, bool]
"""Shape, dtype and whether a gradient goes back, of one tensor of a message."""
PARTS = 16
"""Tensors of a message at most, which tags tell apart."""
STAMP: Form = ((), torch.float64, False)
"""The moment of sending, behind the tensors of a message that is to come late."""
ACTIVATIONS = {Kind.SEND, Kind.RECV}
Channel = tuple[int, bool, bool] | tuple[int, bool, bool, int]
"""Process of the other side, whether for activations, and whether this is the side of the stage in
front; for one link of several between two processes, the stage behind it, too."""


class GroupTransport:
    """Sends and receives the messages of one process. A `Transport`. Weights that are lent, and
    their gradients, go by gloo and the host's memory."""

    def __init__(
        self,
        groups: Mapping[Channel, dist.ProcessGroup],
        words: dist.ProcessGroup,
        *,
        process: Callable[[int], int],
        forms: Callable[[Action, int], Sequence[Form]],
        device: torch.device,
        latency: Callable[[Action], float] | None = None,
    ) -> None:
        """`groups`: channel -> what carries its messages: `words`, which is gloo's group of all
        processes, or a group of NCCL's. `process`: pipeline position -> number of this replica's
        process there, in the world; `forms` of a message of a step.
        `latency` of a receive: seconds after its sending before which a message counts as come,
        for paced runs of processes that share a clock."""
        self._latency = latency
        self._groups, self._process, self._forms, self._device = groups, process, forms, device
        self._words = words
        self._by_nccl = any(group is not words for group in groups.values())
        self._partner: dict[str, Action] = {}
        self._units, self._micros = 1, 1
        self._posted: dict[tuple[str, int], tuple[Bundle, list[dist.Work]]] = {}
        """Receiving action and its step -> where its message arrives, and its receives."""
        self._some = threading.Condition()
        """Wakes a lane whose receive has been posted."""
        self._stopped = False

    def use(self, schedule: Schedule) -> None:
        """Carry the messages of a schedule from now on."""
        self._partner = partners(schedule)
        self._units, self._micros = schedule.num_units, schedule.num_microbatches

    def borrower(self, action: Action) -> int:
        """As `Transport.borrower`."""
        return borrower_of(action if action.kind in RECEIVES else self._partner[action.name])

    def announce(self, action: Action, step: int) -> None:
        """Post the receive of a message, for which there is a place now."""
        if self._nccl(action):
            peers, first = self._peers(action, step), self._tag(action)
            made: Bundle = tuple(torch.empty(1, dtype=torch.uint8) for _ in peers)
            works = [
                dist.irecv(word, peer, group=self._words, tag=first)
                for word, peer in zip(made, peers, strict=True)
            ]
        else:
            made, works = self._post(action, step, "cpu")
        with self._some:
            self._posted[action.name, step] = made, works
            self._some.notify_all()

    def receive(self, action: Action, step: int) -> Bundle:
        """The message; on CUDA the current stream waits until it has come."""
        key = action.name, step
        with self._some:
            self._some.wait_for(lambda: self._stopped or key in self._posted)
            if self._stopped:
                raise Failed("another lane failed")
            made, works = self._posted.pop(key)
        wait(works)
        if self._nccl(action):
            made, works = self._post(action, step, self._device)
            self._wait(action, works)
        if self._latency is not None:
            *made, stamp = made
            time.sleep(max(0.0, float(stamp) + self._latency(action) - time.monotonic()))
        return tuple(tensor.to(self._device, non_blocking=True) for tensor in made)

    def send(self, action: Action, source: Bundle, step: int) -> None:
        """Send a bundle, as soon as the other side has a place for it."""
        peer, first, group = self._peer(action), self._tag(action), self._group(action)
        source = self._told(action, source, step)
        sent = [
            dist.isend(tensor.contiguous(), peer, group=group, tag=first + part)
            for part, tensor in enumerate(source)
        ]
        self._wait(action, sent)
        if self._latency is not None:  # counts from when there was a place
            stamp = torch.tensor(time.monotonic(), dtype=torch.float64)  # scalar
            wait([dist.isend(stamp, peer, group=group, tag=first + len(source))])

    def _told(self, action: Action, source: Bundle, step: int) -> Bundle:
        """Tell the other sides that a message is coming, where it goes by NCCL; else have it on the
        host."""
        if not self._nccl(action):
            return _on_host(source)
        word, first = torch.zeros(1, dtype=torch.uint8), self._tag(action)
        wait(
            [
                dist.isend(word, peer, group=self._words, tag=first)
                for peer in self._peers(action, step)
            ]
        )
        return source

    def _post(
        self, action: Action, step: int, device: torch.device | str
    ) -> tuple[Bundle, list[dist.Work]]:
        """Receives of the tensors of a message."""
        peer, first, group = self._peer(action), self._tag(action), self._group(action)
        forms = [*self._forms(action, step), *([STAMP] if self._latency is not None else [])]
        pinned = device == "cpu" and self._device.type == "cuda"
        made = tuple(
            torch.empty(shape, dtype=dtype, device=device, pin_memory=pinned)
            for shape, dtype, _ in forms
        )
        return made, [
            dist.irecv(tensor, peer, group=group, tag=first + part)
            for part, tensor in enumerate(made)
        ]

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

    def _peers(self, action: Action, step: int) -> Sequence[int]:
        """The processes of the other side."""
        return [self._peer(action)]

    def _wait(self, action: Action, works: Sequence[dist.Work]) -> None:
        """Wait for a message on the host with gloo; on the current stream with NCCL."""
        if not self._nccl(action):
            wait(works)
            return
        for work in works:
            work.wait()

    def _nccl(self, action: Action) -> bool:
        return self._by_nccl and action.microbatch is not None

    def _group(self, action: Action) -> dist.ProcessGroup:
        if action.microbatch is None:
            return self._words
        front = action.kind in (Kind.SEND, Kind.RECV_GRAD)
        channel = self._peer(action), action.kind in ACTIVATIONS, front
        own = (*channel, action.unit)
        return self._groups[own if own in self._groups else channel]

    def _tag(self, action: Action) -> int:
        """The first of the tags of a message."""
        micro = self._micros + action.turn if action.microbatch is None else action.microbatch
        which = micro * self._units + action.unit
        return (which * 2 + (action.kind in ACTIVATIONS)) * PARTS


def _on_host(source: Bundle) -> Bundle:
    """Tensors for gloo, there: from a GPU by page-locked memory, which torch keeps for the next."""
    if not any(tensor.is_cuda for tensor in source):
        return source
    made = tuple(
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        .copy_(tensor, non_blocking=True)
        for tensor in source
    )  # fmt: skip
    torch.cuda.current_stream().synchronize()
    return made
