"""Collectives of gloo whose host stops waiting when the connections of their group have been cut.

When a connection closes, gloo tells operations that have not begun. An operation is not told of
which a part has been sent or received, or waits for room (`Pair::signalException` in its
tcp/pair.cc): its thread then waits for the group's timeout, although no connection is left. So the
host waits in pieces, and looks at a timeout of the group that another thread may shorten.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from threading import Event, Thread

import torch
import torch.distributed as dist

PIECE = timedelta(seconds=0.5)
"""Between two looks at the timeout of a group; and the timeout of a group that is given up."""
HOST = torch.device("cpu")


def give_up(group: dist.ProcessGroup) -> None:
    """Have `wait` end for all collectives of a group of gloo, also where a thread is in it."""
    group._get_backend(HOST)._set_default_timeout(PIECE)


def wait(work: dist.Work, group: dist.ProcessGroup | None) -> None:
    """Wait for a collective of a group, by default the world. Raises RuntimeError where its
    connections are cut."""
    group = group or dist.group.WORLD
    if HOST in group._device_types:
        options = group._get_backend(HOST).options
        while not work.is_completed():
            given_up = options._timeout <= PIECE
            with suppress(RuntimeError):  # the next line but one raises what is more than a timeout
                work.wait(PIECE)
            if given_up and not work.is_completed():
                raise RuntimeError("gloo waits for a connection that is cut")
    work.wait()


def keep(group: dist.ProcessGroup) -> None:
    """Keep a group of gloo until the process ends: its own end would wait for its operations."""
    Thread(target=lambda: Event().wait() and group, daemon=True).start()
