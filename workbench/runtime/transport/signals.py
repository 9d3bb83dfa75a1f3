"""Moments of one process's device that the streams of others wait for.

A message may be announced, sent and used as soon as what it follows has been issued: the ranks tell
each other so on the board, and their devices keep the order by events, which are shared through the
driver's handles for other processes as inboxes are. So nobody's host waits until a copy has ended.

An event is recorded anew for every message that has its place. That is safe since the rank that
waits for it has said so to its own device before the place can be used again: a place is announced
when its last message's readers are issued, and they are issued after that wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from workbench.runtime.executor.notes import find, leave


class Signals:
    """The events of all ranks, as one of them sees them."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        names: Iterable[str],
        device: torch.device,
        check: Callable[[], None],
    ) -> None:
        """`names` are of this rank's own moments; the ranks tell each other of them in `folder`.
        `check` raises when another rank has failed."""
        self._folder, self._device, self._check = folder, device, check
        self._own: dict[str, torch.cuda.Event] = {}
        self._others: dict[int, dict[str, torch.cuda.Event]] = {}
        with torch.cuda.device(device):
            for name in names:
                self._own[name] = torch.cuda.Event(interprocess=True)
                self._own[name].record()  # an event has a handle from its first record on
            torch.cuda.synchronize(device)
        handles = {name: event.ipc_handle().hex() for name, event in self._own.items()}
        leave(self._path(rank), handles)

    def record(self, name: str) -> None:
        """This is the moment, on the current stream."""
        self._own[name].record()

    def wait(self, rank: int, name: str) -> None:
        """Let the current stream wait for a moment that another rank has recorded."""
        if rank not in self._others:
            self._others[rank] = self._open(rank)
        self._others[rank][name].wait()

    def close(self) -> None:
        """Let go of all."""
        self._own.clear()
        self._others.clear()

    def _path(self, rank: int) -> Path:
        return self._folder / f"signals-{rank}.json"

    def _open(self, rank: int) -> dict[str, torch.cuda.Event]:
        """Another rank's events, as soon as they are there."""
        handles = find(self._path(rank), self._check)
        return {
            name: torch.cuda.Event.from_ipc_handle(self._device, bytes.fromhex(handle))
            for name, handle in handles.items()
        }
