"""Messages between ranks: copies into the receiver's inbox, at places that the schedule laid out.
Most carry activations or their gradients; weights that a unit borrows of another rank's go like
this too.

The receiver says on the board that a place is free, as soon as it is, and later finds there what it
was sent; nobody waits inside a kernel (inbox.py). To say so only when the message before has come
would make each wait for the way there and back: passes of 0.3 ms on two GPUs came 1.3 ms apart.

On GPUs all that is said when it has been issued, and the devices keep the order (signals.py).
"""

from __future__ import annotations

from pathlib import Path

import torch

from workbench.runtime.executor.board import Board
from workbench.runtime.memory.traffic import Traffic
from workbench.runtime.passes.activation_store import ActivationStore
from workbench.runtime.passes.bundle import Bundle, bytes_of, copy_into
from workbench.runtime.transport.inbox import Inbox
from workbench.runtime.transport.signals import Signals
from workbench.schedule.action import RECEIVES, Action
from workbench.schedule.buffers import borrower_of
from workbench.schedule.graph import partners
from workbench.schedule.schedule import Schedule


class PeerTransport:
    """Sends and receives the messages of one rank."""

    def __init__(
        self,
        schedule: Schedule,
        board: Board,
        inbox: Inbox,
        activations: ActivationStore,
        traffic: Traffic,
        *,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """In `folder` the ranks tell each other of the events that their devices wait for."""
        self._schedule, self._board, self._inbox, self._activations = (
            schedule,
            board,
            inbox,
            activations,
        )
        self._traffic, self._dtype = traffic, dtype
        self._index = {action.name: i for i, action in enumerate(schedule.actions)}
        self._partner = partners(schedule)
        self._places: dict[str, Bundle] = {}
        """Views of messages by their receiving actions: they lie where they lay in the step before,
        and to make views takes longer than to send one."""
        messages = [action for action in schedule.actions if action.name in self._partner]
        self._moments = {action.name: self._moment(action) for action in messages}
        """Action of a message -> the moment that is recorded for it: its receiver's place is free,
        or its sender has filled it."""
        names = dict.fromkeys(self._moments[a.name] for a in messages if a.rank == board.position)
        self._signals = (
            Signals(folder, board.rank, names, device, board.check)
            if device.type == "cuda" and names
            else None
        )

    def send(self, action: Action, source: Bundle, step: int) -> None:
        """Copy a bundle into the receiver's inbox, when its place there is free."""
        partner = self._partner[action.name]
        place = self._place(partner)
        if action.microbatch is None:  # flat weights, one after the other
            place = place[0].split([part.numel() for part in source])
        self._board.wait_ready(self._index[partner.name], step)
        if self._signals is not None:
            self._signals.wait(self._process(partner), self._moments[partner.name])
        copy_into(place, source)
        self._traffic.between(bytes_of(source), action.kind)
        if self._signals is not None:
            self._signals.record(self._moments[action.name])
        self._board.publish_ready(self._index[action.name], step)
        self._activations.drop(action, step)

    def announce(self, action: Action, step: int) -> None:
        """The sender may write."""
        if self._signals is not None:
            self._signals.record(self._moments[action.name])
        self._board.publish_ready(self._index[action.name], step)

    def receive(self, action: Action, step: int) -> Bundle:
        """Wait until the sender has written; returns the place."""
        partner = self._partner[action.name]
        self._board.wait_ready(self._index[partner.name], step)
        if self._signals is not None:
            self._signals.wait(self._process(partner), self._moments[partner.name])
        return self._place(action)

    def borrower(self, action: Action) -> int:
        """The unit to which a message lends weights, or from which it brings their gradients."""
        receive = action if action.kind in RECEIVES else self._partner[action.name]
        return borrower_of(receive)

    def close(self) -> None:
        """Let go of the inboxes."""
        self._places.clear()
        if self._signals is not None:
            self._signals.close()
        self._inbox.close()

    def _process(self, action: Action) -> int:
        """Number of the process that does an action of this replica."""
        return self._board.mesh.process(action.rank, self._board.replica)

    def _moment(self, action: Action) -> str:
        if action.kind in RECEIVES:
            return f"free {self._offset(action)}"
        partner = self._partner[action.name]
        return f"filled {partner.rank} {self._offset(partner)}"

    def _offset(self, receive: Action) -> int:
        (label,) = receive.takes
        return self._schedule.buffers[label].offset

    def _place(self, receive: Action) -> Bundle:
        """Where a message lies in its receiver's inbox."""
        if receive.name not in self._places:
            (label,) = receive.takes
            buffer = self._schedule.buffers[label]
            place = self._inbox.place(self._process(receive), buffer.offset, buffer.nbytes)
            if receive.microbatch is None:
                self._places[receive.name] = (place.view(self._dtype),)
            else:
                samples = receive.span[1] - receive.span[0]
                self._places[receive.name] = self._activations.boundary(label).carve(place, samples)
        return self._places[receive.name]
