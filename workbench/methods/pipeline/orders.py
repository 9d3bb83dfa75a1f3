"""Orders: which pass a position of a pipeline does next.

A new order is a function here and a line in `ORDERS`. The function says what one position does in
one step; stages, messages, memory and updates are added by program.py, and the result is proved,
simulated and run like any other schedule.

    >>> [str(each) for each in one_f_one_b(2, 4, 5)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'f3', 'b2', 'f4', 'b3', 'b4']
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from workbench.core.methods import Method
from workbench.schedule.action import Kind

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD
I, W = Kind.INPUT_GRAD, Kind.WEIGHT_GRAD  # noqa: E741 - the literature's letters


class Pass(NamedTuple):
    """A micro-batch through one of a position's stages."""

    kind: Kind
    micro: int
    chunk: int = 0
    """One of the position's stages, by its number among them (`held`)."""

    def __str__(self) -> str:
        """As ``workbench schedule`` prints it: ``f0``, or ``1:f0`` in a later chunk."""
        return (f"{self.chunk}:" if self.chunk else "") + f"{self.kind.value.lower()}{self.micro}"


def dealt(stages: int, depth: int) -> tuple[int, ...]:
    """Position of each stage, where nobody gives them: dealt to so many positions in turn."""
    return tuple(stage % depth for stage in range(stages))


def positions_of(passes: Sequence[Sequence[Pass]]) -> tuple[int, ...]:
    """Position of each stage that lists of passes, one list a position, go through by default."""
    stages = sum(1 + max(each.chunk for each in own) for own in passes)
    return dealt(stages, len(passes))


def held(positions: Sequence[int]) -> list[list[int]]:
    """Stages of each position, from the position of each stage.

    >>> held([0, 1, 1, 0])
    [[0, 3], [1, 2]]
    """
    stages: list[list[int]] = [[] for _ in range(1 + max(positions))]
    for stage, position in enumerate(positions):
        stages[position].append(stage)
    return stages


def gpipe(position: int, depth: int, micros: int) -> Iterator[Pass]:
    """All forward passes, then all backward passes (Huang et al., NeurIPS 2019, section 2.3)."""
    yield from (Pass(F, micro) for micro in range(micros))
    yield from (Pass(B, micro) for micro in range(micros))


def one_f_one_b(position: int, depth: int, micros: int) -> Iterator[Pass]:
    """As many forward passes as positions follow, then one backward and one forward pass in turn:
    few micro-batches are in flight (Narayanan et al., SC 2021, section 2.2)."""
    ahead = min(depth - position, micros)
    yield from (Pass(F, micro) for micro in range(ahead))
    for micro in range(micros):
        yield Pass(B, micro)
        if micro + ahead < micros:
            yield Pass(F, micro + ahead)


def interleaved(position: int, depth: int, micros: int, chunks: int) -> Iterator[Pass]:
    """1F1B where each position has several stages, which shortens its wait at both ends (Narayanan
    et al., SC 2021, section 2.2). Micro-batches go through a chunk in groups of one a position."""
    total = micros * chunks

    def forward(number: int) -> Pass:
        group, place = divmod(number, depth * chunks)
        return Pass(F, group * depth + place % depth, place // depth)

    def backward(number: int) -> Pass:
        passed = forward(number)
        return Pass(B, passed.micro, chunks - 1 - passed.chunk)

    ahead = min(total, 2 * (depth - position - 1) + (chunks - 1) * depth)
    yield from map(forward, range(ahead))
    for number in range(total - ahead):
        yield forward(ahead + number)
        yield backward(number)
    yield from map(backward, range(total - ahead, total))


def zb_h1(position: int, depth: int, micros: int) -> Iterator[Pass]:
    """1F1B with halved backward passes: the weights' half of a micro-batch follows the inputs' half
    of the one `position` micro-batches later, and fills the wait at the end (Qi et al., ICLR 2024,
    section 2.1). No more micro-batches are in flight than in 1F1B's first position."""
    ahead = min(depth - position, micros)
    yield from (Pass(F, micro) for micro in range(ahead))
    for micro in range(micros):
        yield Pass(I, micro)
        if micro >= position:
            yield Pass(W, micro - position)
        if micro + ahead < micros:
            yield Pass(F, micro + ahead)
    yield from (Pass(W, micro) for micro in range(max(0, micros - position), micros))


def varuna(position: int, depth: int, micros: int) -> Iterator[Pass]:
    """Recomputations as late as their gradients allow, each with its backward pass behind it, and
    forward passes in what is left (Athlur et al., EuroSys 2022). The list is a first order: while
    it runs, a recomputation whose gradient is not there lets the next forward pass go first."""
    yield from _varuna_lists(depth, micros)[position]


@functools.lru_cache(maxsize=32)
def _varuna_lists(depth: int, micros: int) -> list[list[Pass]]:
    found: list[list[Pass]] = [[] for _ in range(depth)]
    for served in varuna_quanta(depth, micros):
        for position, each in enumerate(served):
            if each is not None and each.kind is not W:
                found[position].append(each)
    return found


def varuna_quanta(depth: int, micros: int) -> Iterator[list[Pass | None]]:
    """Quantum by quantum, the pass that each position serves, None where it has none: the first of
    the second half of a backward pass, a backward pass, a recomputation, and a forward pass. A pass
    queues the next one for its position or a neighbour from the next quantum on."""
    queues = [{kind: deque() for kind in (W, B, R, F)} for _ in range(depth)]
    queues[0][F].extend(range(micros))
    while any(any(own.values()) for own in queues):
        served: list[Pass | None] = []
        for own in queues:
            kind = next((kind for kind, waiting in own.items() if waiting), None)
            served.append(None if kind is None else Pass(kind, own[kind].popleft()))
        yield served
        for position, each in enumerate(served):
            if each is None:
                continue
            if each.kind is F and position < depth - 1:
                queues[position + 1][F].append(each.micro)
            elif each.kind in (F, R):  # the last position has no need to compute again
                queues[position][B].append(each.micro)
            elif each.kind is B:
                queues[position][W].append(each.micro)
                if position:
                    queues[position - 1][R].append(each.micro)


def gpipe_as_varuna_has_it(position: int, depth: int, micros: int) -> Iterator[Pass]:
    """GPipe as Varuna's simulator compares with it: backward passes from the last micro-batch to
    the first, each behind a recomputation, on the last position too."""
    yield from (Pass(F, micro) for micro in range(micros))
    for micro in reversed(range(micros)):
        yield from (Pass(R, micro), Pass(B, micro))


def in_flight(passes: Sequence[Pass], chunk: int = 0) -> int:
    """The most micro-batches of a chunk whose activations a position keeps at once.

    >>> [in_flight([*one_f_one_b(position, 4, 8)]) for position in range(4)]
    [4, 3, 2, 1]
    """
    change = {F: 1, B: -1, W: -1}
    return max(accumulate(change.get(p.kind, 0) for p in passes if p.chunk == chunk))


@dataclass(frozen=True, kw_only=True)
class Order:
    """A row of the table of orders."""

    passes: Callable[..., Iterator[Pass]]
    """(position, positions in all, micro-batches) -> passes; where `chunked`, with stages each."""
    label: str
    """In figures."""
    summary: str
    chunked: bool = False
    """Whether positions have several stages; then micro-batches must be a multiple of positions."""
    halved: bool = False
    """Whether backward passes are in two halves."""
    recomputes: bool = False
    """Whether recomputations are in its lists."""

    @property
    def again(self) -> str:
        """How its activations are computed again (draft.Pipeline)."""
        return "recompute" if self.halved or self.recomputes else "checkpoint"

    @property
    def options(self) -> str:
        """Name of the class of its options (options.py)."""
        if self.recomputes:
            return "Recomputing"
        return "Interleaved" if self.chunked else "Halved" if self.halved else "Options"


ORDERS = {
    "gpipe": Order(passes=gpipe, label="GPipe", summary="all forward passes first"),
    "1f1b": Order(passes=one_f_one_b, label="1F1B", summary="forward and backward passes in turn"),
    "interleaved": Order(
        passes=interleaved, label="interleaved", summary="several stages a rank", chunked=True
    ),
    "zb-h1": Order(
        passes=zb_h1, label="ZB-H1", summary="halved backward passes fill the wait", halved=True
    ),
    "varuna": Order(
        passes=varuna, label="Varuna", summary="recomputations wait for gradients", recomputes=True
    ),
}
"""By the name of the method, which each of them is (`rows`)."""


def lists(order: str | Order, depth: int, micros: int, chunks: int = 1) -> list[list[Pass]]:
    """The passes of each position, by an order or its name. Raises ValueError for what the order
    cannot divide."""
    name = order if isinstance(order, str) else order.label
    order = ORDERS[order] if isinstance(order, str) else order
    if not order.chunked and chunks != 1:
        raise ValueError(f"chunks is {chunks}; with {name} a rank has one stage, leave it at 1")
    if order.chunked and chunks < 2:
        raise ValueError(f"chunks is {chunks}; with {name} a rank has two stages or more")
    if order.chunked and micros % depth:
        raise ValueError(
            f"microbatches is {micros}; with {name} on {depth} ranks it must be a multiple of "
            f"{depth}"
        )
    more = (chunks,) if order.chunked else ()
    return [[*order.passes(position, depth, micros, *more)] for position in range(depth)]


def rows() -> dict[str, Method]:
    """The orders as methods, by their names."""
    room = "workbench.methods.pipeline"
    return {
        name: Method(
            name=name,
            label=order.label,
            module=f"{room}.entries:{name}",
            options=f"{room}.options:{order.options}",
            summary=order.summary,
            parallel=True,
            portable=True,
            modules=True,
            driven="" if order.halved else f"{room}.driven:Pipelined",
        )
        for name, order in ORDERS.items()
    }
