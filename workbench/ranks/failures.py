"""Finds the cause among several ranks' failures, and the failures that only follow from it.

A rank that fails tells why in ``failure-RANK.json``; one that was killed tells nothing and has an
exit status. Moments later its peers fail too, in a collective that the library calls off, and whose
number is lowest says nothing about who was first. What says something is the kind: nobody's failure
sends SIGKILL to another rank, an error of one's own comes before one about a lost connection, and
one that aborts may have lost its peer. Among errors of one kind the earliest counts.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.updates.adam_step import Diverged

NOTICE_S = 1.0
"""How long after a failure the others may still say theirs, which may be the cause."""
LOST = ("gloo", "Connection closed by peer", "Connection reset by peer")
"""In messages of errors that say no more than that a peer is gone."""
FIELDS = ("tier", "what", "asked", "in_use", "budget", "why", "step", "unit", "errno")
"""Fields of errors that are told."""

Failure = dict[str, Any]
"""A failure, as far as it is known: type (None where the rank told nothing), message, time by the
monotonic clock, whether it is about a lost peer, and fields of the error."""


class RankFailed(RuntimeError):
    """A rank ended, or hangs; the message says which one and why."""


def failure_of(error: BaseException) -> Failure:
    """A rank's own failure, for who asks. Libraries wrap what went wrong in errors of their own:
    memory that ran out is what counts."""
    full = [e for e in chain_of(error) if isinstance(e, OutOfMemory | torch.OutOfMemoryError)]
    error = full[0] if full else error
    return {
        "type": type(error).__name__,
        "message": str(error).strip(),
        "time": time.monotonic(),
        "lost_peer": not full and lost_peer(error),
        **{field: getattr(error, field) for field in FIELDS if hasattr(error, field)},
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


def first_cause(folder: Path, statuses: Mapping[int, int]) -> tuple[int, Failure]:
    """The rank whose failure is the cause, and what is known of it, by the exit statuses of those
    that failed."""
    causes = [(rank, _cause(folder, rank, status)) for rank, status in statuses.items()]
    return min(causes, key=lambda cause: precedence(cause[1]))


def _cause(folder: Path, rank: int, status: int) -> Failure:
    path = folder / f"failure-{rank}.json"
    if path.exists():
        return json.loads(path.read_text())
    how = f"ended with exit status {status}"
    if status < 0:
        how = f"was killed by {signal.Signals(-status).name}"
    return {"type": None, "message": how, "status": status}


def precedence(told: Failure) -> tuple[int, float]:
    """Smaller for what rather is a cause than a consequence."""
    if told["type"] is None:
        return (0 if told["status"] == -signal.SIGKILL else 2), 0.0
    return (3 if told["lost_peer"] else 1), told["time"]


def raise_cause(rank: int, told: Failure, place: str = "") -> NoReturn:
    """Raise what made a rank fail, as the run's own error that names the rank; `place` ends the
    sentence on one that told nothing."""
    message = f"rank {rank}: {told['message'] or told['type']}"
    match told["type"]:
        case None:
            raise RankFailed(f"rank {rank} {told['message']}{place}; see log.txt")
        case "OutOfMemory":
            raise OutOfMemory(
                tier=told["tier"], what=f"{told['what']} of rank {rank}", asked=told["asked"],
                in_use=told["in_use"], budget=told["budget"], why=told["why"],
            )  # fmt: skip
        case "Diverged":
            raise Diverged(told["step"], told["unit"])
        case "OutOfMemoryError":
            raise torch.OutOfMemoryError(message)
        case "ValueError":
            raise ValueError(message)
    if told.get("errno"):
        raise OSError(told["errno"], f"{message} ({os.strerror(told['errno'])})")
    raise RankFailed(f"{message} ({told['type']})")
