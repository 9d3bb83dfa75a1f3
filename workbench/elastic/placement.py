"""Shapes of a round, and where its ranks lie.

Stage i of P has the ranks i, i+P, i+2P, ...: neighbours in a pipeline are neighbours in a host, and
the replicas of a stage lie on other hosts. Hosts get ranks one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """P x D pipelines with micro-batches of `chunk` samples."""

    stages: int
    replicas: int
    chunk: int
    seconds: float | None = None
    """Of a step, as it was predicted; None where nothing predicts it."""

    @property
    def ranks(self) -> int:
        """How many slots it takes."""
        return self.stages * self.replicas

    def __str__(self) -> str:
        return f"{self.stages}x{self.replicas}"


Choose = Callable[[int, int], Shape]
"""From the number of slots and the slots of a host to a shape. Raises ValueError where none fits."""


def fixed(stages: int, chunk: int, batch: int) -> Choose:
    """P and m as they are given, and as many replicas as there are slots for."""

    def choose(slots: int, per_host: int) -> Shape:
        replicas = slots // stages
        if not replicas:
            raise ValueError(f"{stages} stages need {stages} slots, and there are {slots}")
        shares(batch, replicas)
        return Shape(stages=stages, replicas=replicas, chunk=chunk)

    return choose


def shares(batch: int, replicas: int) -> tuple[int, ...]:
    """Samples of each replica: exactly `batch` in all, and no two differ by more than one. Raises
    ValueError where a replica would have none."""
    if batch < replicas:
        raise ValueError(
            f"a batch of {batch} is too small for {replicas} replicas: give --batch_size "
            f"{replicas} or more, or more stages"
        )
    return tuple(batch // replicas + (each < batch % replicas) for each in range(replicas))


def map_text(shape: Shape) -> str:
    """Ranks of each stage, as workers are told them.

    >>> map_text(Shape(stages=4, replicas=2, chunk=1))
    '0,4;1,5;2,6;3,7;'
    """
    stages = (range(stage, shape.ranks, shape.stages) for stage in range(shape.stages))
    return "".join(f"{','.join(map(str, ranks))};" for ranks in stages)


def parse_map(text: str) -> tuple[tuple[int, ...], ...]:
    """Ranks of each stage. Raises ValueError where a rank is missing or stands twice, and where
    stages differ in their replicas.

    >>> parse_map("0,2;1,3;")
    ((0, 2), (1, 3))
    """
    if not re.fullmatch(r"(\d+(,\d+)*;)+", text):
        raise ValueError(f"the map {text!r} must have a form such as 0,4;1,5;2,6;3,7;")
    stages = tuple(tuple(map(int, part.split(","))) for part in text[:-1].split(";"))
    ranks = sorted(rank for stage in stages for rank in stage)
    for wanted, rank in enumerate(ranks):
        if rank != wanted:
            wrong = f"repeats rank {rank}" if rank < wanted else f"has no rank {wanted}"
            raise ValueError(f"the map {text!r} {wrong}; it must name 0 to {len(ranks) - 1} once")
    if len(set(map(len, stages))) > 1:
        raise ValueError(f"the map {text!r} must give every stage the same number of ranks")
    return stages


def read_list(text: str, slots: int) -> dict[str, int]:
    """Slots of each host of a machine list: a line ``address`` or ``address:slots`` each, ``#``
    begins a comment. Raises ValueError for a line of another form, and for a host that stands
    twice."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not (line := line.partition("#")[0].strip()):
            continue
        hit = re.fullmatch(r"([\w][\w.-]*)(?::([1-9]\d{0,3}))?", line)
        if hit is None:
            raise ValueError(
                f"line {number} of the machine list is {line!r}; it must be ADDRESS or "
                "ADDRESS:SLOTS"
            )
        if hit[1] in found:
            raise ValueError(f"line {number} of the machine list names {hit[1]} a second time")
        found[hit[1]] = int(hit[2] or slots)
    return found


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Ranks of a round on its hosts."""

    shape: Shape
    seats: Mapping[str, range]
    """Of each host that has any."""
    spare: Mapping[str, int]
    """Slots that no rank takes."""


def place(shape: Shape, slots: Mapping[str, int]) -> Plan:
    """Give hosts their ranks in the order of the list."""
    seats, spare, next_rank = {}, {}, 0
    for host, own in slots.items():
        used = min(own, shape.ranks - next_rank)
        if used:
            seats[host] = range(next_rank, next_rank + used)
        if used < own:
            spare[host] = own - used
        next_rank += used
    return Plan(shape=shape, seats=seats, spare=spare)
