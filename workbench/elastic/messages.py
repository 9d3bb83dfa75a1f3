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
    """First line for a new agent: where the manager is, and what workers run."""

    address: str
    port: int
    token: str
    host: str
    folder: str
    code_dir: str
    script: str
    arguments: tuple[str, ...]
    variables: dict[str, str]
    preload: tuple[str, ...] = ()
    """Modules that workers are forked with, beside torch."""
    batch: int
    job: str = ""
    """Its id, which its checkpoints name."""
    start_limit_s: float = 1800.0
    """Longest silence of a worker before its first step."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A round for one of its hosts, whose ranks are `count` from `first` on."""

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
    began: int | None = None
    """Step that the job's first round went on from; None before a step was done."""
    cut: str = ""
    """Of the shape (placement.py)."""
    nbytes: int = 0
    """Bytes of the module's parameters; 0 where no earlier round has told."""
    profiling: str = ""
    """Folder into which the script profiles, instead of training."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """Anything after that; its kind says which fields count."""

    kind: Literal[
        "hello", "beat", "ready", "notice", "stop", "bye",  # agents and people; the manager's beats
        "start", "save", "end", "over",  # a round: its workers save and leave, are ended, are gone
        "here", "step", "working", "wanted", "ended",  # workers; a save is wanted by SIGUSR1
        "cut",  # how the first rank has cut the model, and the model's bytes, for later rounds
        "ask", "yes", "no", "committed",  # checkpoints: may this one be put in its place?
        "loaded",  # the one of a step was taken up
    ]  # fmt: skip
    token: str = ""
    host: str = ""
    at: float = 0.0
    """Unix time at which a host goes."""
    round: int = 0
    start: Start | None = None
    rank: int = 0
    pid: int = 0
    step: int = 0
    """How many are done in all."""
    seconds: float = 0.0
    forward_s: float | None = None
    loss: str = ""
    cut: str = ""
    nbytes: int = 0
    failure: str = ""
    """How a worker failed; empty for one that ended on purpose."""


def pack(message: Message | Order) -> bytes:
    """A message as a line."""
    return json.dumps(asdict(message)).encode() + b"\n"


def unpack(line: bytes, kind: type = Message) -> Message | Order:
    """The message of a line. Raises ValueError for anything else."""
    return read_as(kind, parse_json(line, "a message"), "a message")
