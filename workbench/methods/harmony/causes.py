"""Which of several ranks' failures is the cause, and which are only what it led to.

A rank that fails tells why in ``failure-RANK.json``; one that was killed tells nothing and has an
exit status. Moments later its peers fail too, in a collective that the library calls off, and whose
number is lowest says nothing about who was first. What says something is the kind: nobody's failure
sends SIGKILL to another rank, an error of one's own comes before one about a lost connection, and
one that aborts may have lost its peer. Among errors of one kind the earliest counts.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

NOTICE_S = 1.0
"""How long after a failure the others may still say theirs, which may be the cause."""
LOST = ("gloo", "Connection closed by peer", "Connection reset by peer")
"""In messages of errors that say no more than that a peer is gone."""

Told = dict[str, Any]
"""What is known of a failure: its type (None where the rank told nothing), message and time,
whether it is about a lost peer, and fields of the error."""


def told_of(error: BaseException) -> Told:
    """What a rank tells of its own failure."""
    return {
        "type": type(error).__name__,
        "message": str(error).strip(),
        "time": time.time(),
        "lost_peer": lost_peer(error),
    }


def lost_peer(error: BaseException) -> bool:
    """Whether an error, or what led to it, says no more than that another rank is gone."""
    return any(
        isinstance(each, dist.DistError) or any(word in str(each) for word in LOST)
        for each in chain_of(error)
    )


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def first_cause(folder: Path, statuses: Mapping[int, int]) -> tuple[int, Told]:
    """The rank whose failure is the cause, and what is known of it, by the exit statuses of those
    that failed."""
    causes = [(rank, _cause(folder, rank, status)) for rank, status in statuses.items()]
    return min(causes, key=lambda cause: _precedence(cause[1]))


def _cause(folder: Path, rank: int, status: int) -> Told:
    path = folder / f"failure-{rank}.json"
    if path.exists():
        return json.loads(path.read_text())
    how = f"ended with exit status {status}"
    if status < 0:
        how = f"was killed by {signal.Signals(-status).name}"
    return {"type": None, "message": how, "status": status}


def _precedence(told: Told) -> tuple[int, float]:
    """Smaller for what rather is a cause than a consequence."""
    if told["type"] is None:
        return (0 if told["status"] == -signal.SIGKILL else 2), 0.0
    return (3 if told["lost_peer"] else 1), told["time"]
