"""Shapes of a round, its hosts, and where its ranks lie.

Stage i of P has the ranks i, i+P, i+2P, ...: neighbours in a pipeline are neighbours in a host, and
replicas of a stage lie on other hosts. Hosts get their ranks one after the other.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from threading import Thread


@dataclass(frozen=True, kw_only=True)
class Shape:
    """P x D pipelines with micro-batches of `chunk` samples."""

    stages: int
    replicas: int
    chunk: int
    seconds: float | None = None
    """Of a step, where it was predicted."""
    cut: str = ""
    """Slices of the model in each stage, such as ``5 4 4 3``, where they were chosen."""

    @property
    def ranks(self) -> int:
        """How many slots it takes."""
        return self.stages * self.replicas

    def __str__(self) -> str:
        return f"{self.stages}x{self.replicas}"


Choose = Callable[[int, int], Shape | None]
"""From all slots, and the slots of a host, to a shape; None while that is not known yet. Raises
ValueError where none fits, and OSError where none will."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """What a round needs beside hosts and a shape."""

    port: int = 0
    """Of its store."""
    newest: int | None = None
    """Step of the newest sound checkpoint; None where there is none."""
    lacking: str = ""
    """Why the job cannot go on."""


Prepare = Callable[[int], Ready | None]
"""From the number of a round to what it needs; None while that is being found."""


def in_thread(choose: Choose) -> Choose:
    """Choose once for all equal questions, in threads, which may take their time."""
    answers: dict[tuple[int, int], Shape | Exception | None] = {}

    def find(*asked: int) -> None:
        try:
            answers[asked] = choose(*asked)
        except Exception as error:
            answers[asked] = error

    def ask(*asked: int) -> Shape | None:
        if asked not in answers:
            answers[asked] = None
            Thread(target=find, args=asked, daemon=True).start()
        if isinstance(found := answers[asked], Exception):
            raise found
        return found

    return ask


def fixed(stages: int, chunk: int, batch: int) -> Choose:
    """P and m as they are given, and as many replicas as there are slots for."""

    def choose(slots: int, per_host: int) -> Shape:
        if slots < stages:
            raise ValueError(f"{stages} stages need {stages} slots, and there are {slots}")
        shares(batch, slots // stages)
        return Shape(stages=stages, replicas=slots // stages, chunk=chunk)

    return choose


def shares(batch: int, replicas: int) -> tuple[int, ...]:
    """Samples of each replica: exactly `batch` in all, no two differ by more than one. Raises
    ValueError where a replica would have none."""
    if batch < replicas:
        raise ValueError(
            f"a batch of {batch} is too small for {replicas} replicas, which need a sample each; "
            "give a larger one, or more stages"
        )
    return tuple(batch // replicas + (each < batch % replicas) for each in range(replicas))


def read_list(text: str, slots: int) -> dict[str, int]:
    """Slots of each host of a machine list: ``address`` or ``address:slots`` a line, ``#`` begins a
    comment. Raises ValueError for another line, for a host that stands twice, and for none."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not (line := line.partition("#")[0].strip()):
            continue
        hit = re.fullmatch(r"(\w[\w.-]*)(?::([1-9]\d{0,3}))?", line)
        if hit is None or hit[1] in found:
            wrong = f"names {hit[1]} a second time" if hit else f"is {line!r}"
            raise ValueError(
                f"line {number} of the machine list {wrong}; it must be ADDRESS or ADDRESS:SLOTS, "
                "once for each host"
            )
        found[hit[1]] = int(hit[2] or slots)
    if not found:
        raise ValueError("the machine list names no host; write ADDRESS or ADDRESS:SLOTS a line")
    return found


def is_here(host: str) -> bool:
    """Whether a host is this machine, by an address of its loopback interface."""
    return host == "localhost" or host.startswith("127.")


def address_towards(hosts: Collection[str], file: object, say: Callable[[str], object]) -> str:
    """This machine's address on the interface by which it reaches the first of a file's hosts that
    has an address. `say` is told of those without. Raises ValueError where none has one."""
    lacking, address = [], ""
    for host in (host for host in hosts if not is_here(host)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, 9))  # sends nothing
                address = address or probe.getsockname()[0]
            except (OSError, UnicodeError) as error:  # the second is of a name that can be none
                why = getattr(error, "strerror", error)
                lacking.append(f"host {host} of {file} has no address ({why})")
    if len(lacking) == len(hosts):
        raise ValueError(f"{'; '.join(lacking)}; mend the machine list, or give --manager_ip")
    for each in lacking:
        say(f"{each}; the job goes on without it, unless --connect reaches it")
    return address or "127.0.0.1"


def place(shape: Shape, slots: Mapping[str, int]) -> dict[str, range]:
    """Ranks of each host that gets any, in the order of the list."""
    seats, first = {}, 0
    for host, own in slots.items():
        if used := min(own, shape.ranks - first):
            seats[host] = range(first, first + used)
        first += used
    return seats
