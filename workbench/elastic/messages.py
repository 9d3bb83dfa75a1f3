"""What manager, agents and workers tell each other: a line, or a packet, of JSON each.

The first line of a connection to the manager holds the job's token, which reaches an agent by its
standard input. What comes from outside is read by a schema, and is nothing but data.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from workbench.core.jsonfile import parse_json
from workbench.core.schema import read_as

LONGEST = 2**16
"""Bytes of the longest message."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Manager to a new agent, by standard input: where the manager is, and what workers run."""

    address: str
    port: int
    token: str
    host: str
    folder: str
    code_dir: str
    script: str
    arguments: tuple[str, ...]
    variables: dict[str, str]
    batch: int


@dataclass(frozen=True, kw_only=True)
class Hello:
    """Begins an agent's connection."""

    token: str
    host: str


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A person's whole connection: to stop, or to tell that a host goes at a Unix time."""

    token: str
    what: Literal["stop", "notice"]
    host: str = ""
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Sign:
    """Of an agent: it lives, can start workers, was sent SIGUSR1 since its host goes. Of the
    manager: it lives, the agent is to end."""

    sign: Literal["beat", "ready", "notice", "bye"]


@dataclass(frozen=True, kw_only=True)
class Start:
    """Begin a round; the ranks of this host are `count` from `first` on."""

    round: int
    port: int
    """Of the round's store, at the manager's address."""
    host: int
    hosts: int
    first: int
    count: int
    stages: int
    replicas: int
    chunk: int
    resume_step: int | None


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Of the manager: workers are to save after this step and to leave; the round ends. Of an
    agent: none of the round's processes is left. Of a worker: it was sent SIGUSR1."""

    round: int
    turn: Literal["save", "end", "over", "wanted"]


@dataclass(frozen=True, kw_only=True)
class Here:
    """A worker is there, and leads a process group of its own."""

    round: int
    rank: int
    pid: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A step is done, and took so long; `forward_s` is a micro-batch's forward pass. Without a step:
    the worker gets on with something else."""

    round: int
    rank: int
    step: int | None = None
    seconds: float = 0.0
    forward_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """May a step's checkpoint be put in its place? Yes, no; and then, that it is there, whole."""

    round: int
    rank: int
    step: int
    is_it: Literal["asked", "granted", "refused", "done"]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A worker ended: on purpose, or by a failure in words."""

    round: int
    rank: int
    failure: str | None = None


Message = Order | Hello | Ask | Sign | Start | Turn | Here | Progress | Checkpoint | Ended
KINDS = {
    kind.__name__: kind
    for kind in (Order, Hello, Ask, Sign, Start, Turn, Here, Progress, Checkpoint, Ended)
}


def pack(message: Message) -> bytes:
    """A message as a line."""
    return json.dumps({"is": type(message).__name__, **asdict(message)}).encode() + b"\n"


def unpack(line: bytes) -> Message:
    """The message of a line. Raises ValueError for anything else."""
    data = parse_json(line, "a message")
    kind = KINDS.get(data.pop("is", None)) if isinstance(data, dict) else None
    if kind is None:
        raise ValueError(f"{line[:60]!r} is no message: its kind is none of {', '.join(KINDS)}")
    return read_as(kind, data, f"the message {kind.__name__}")
