"""Orders of passes of FTPipe's runtime, by what each stage decides alone (Eliad et al., ATC'21).

A stage's depth is its distance from the last stage, in stages. A stage that may have D
micro-batches between its forward and its backward passes makes a forward pass while fewer than
D + 1 are in flight, and a backward pass else, whatever the other stages do. It updates its weights
after every `step_every` backward passes, and nobody waits for anybody's update: a forward pass
reads weights that lack the updates until its own backward pass. So the order of a stage says how
stale its weights are: ceil((D - p) / step_every) updates for the micro-batch at place p of its
step, once the pipeline is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

F, B = "F", "B"
ASYNCHRONOUS = ("async-1f1b", "pipedream", "virtual-stages-1f1b")
SYNCHRONOUS = ("seq", "gpipe-lifo", "sync-1f1b")
ORDERS = (*ASYNCHRONOUS, *SYNCHRONOUS)


@dataclass(frozen=True, slots=True)
class Made:
    """One pass of a stage."""

    kind: str
    micro: int
    """The micro-batch, counted from the first one of the run."""
    version: int
    """Updates that the stage has made before."""


def depths(
    stages: int, order: str, *, supremum: int | None = None, right: bool = False
) -> list[int]:
    """Micro-batches that each stage may have between its forward and its backward passes. With
    virtual stages no more than `supremum` - 1, and counted down from the first stage, so that the
    last stages have none; the published cap is one less for the first stage than for the rest of
    the rule, and `right` is the cap as it was meant. Raises ValueError for an order or cap that is
    none."""
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; give one of {', '.join(ORDERS)}")
    behind = [stages - 1 - stage for stage in range(stages)]
    if order != "virtual-stages-1f1b":
        return behind
    if supremum is None or supremum < 1:
        raise ValueError(f"the supremum of staleness is {supremum}; give 1 or more micro-batches")
    first = min(stages, supremum - 1) - (not right)
    first = min(first, stages - 1)
    return [max(0, first - stage) for stage in range(stages)]


def passes(order: str, depth: int, micros: int, step_every: int) -> list[Made]:
    """The passes of a stage of this depth over so many micro-batches. Raises ValueError for numbers
    that are none."""
    if micros < 1 or step_every < 1:
        raise ValueError(
            f"{micros} micro-batches, and an update after {step_every}; give 1 or more of both"
        )
    found: list[Made] = []
    versions = 0

    def backward(micro: int) -> None:
        nonlocal versions
        found.append(Made(B, micro, versions))
        done = sum(made.kind == B for made in found)
        versions += done % step_every == 0 or done == micros

    def group(first: int) -> range:
        return range(first, min(first + step_every, micros))

    if order in ASYNCHRONOUS or order == "seq":
        most = (0 if order == "seq" else depth) + 1
        for micro in range(micros):
            found.append(Made(F, micro, versions))
            if micro + 1 >= most:
                backward(micro + 1 - most)
        for micro in range(max(0, micros + 1 - most), micros):
            backward(micro)
        return found
    for first in range(0, micros, step_every):
        own = group(first)
        ahead = len(own) if order == "gpipe-lifo" else min(depth, len(own) - 1)
        for micro in own[:ahead]:
            found.append(Made(F, micro, versions))
        for micro in own[ahead:]:
            found.append(Made(F, micro, versions))
            backward(micro - ahead)
        left = own[len(own) - ahead :]
        for micro in reversed(left) if order == "gpipe-lifo" else left:
            backward(micro)
    return found


def string(made: Sequence[Made]) -> str:
    """The kinds of passes in order, as F and B."""
    return "".join(each.kind for each in made)


def versions(made: Sequence[Made], kind: str) -> list[int]:
    """Updates before the pass of this kind of each micro-batch."""
    return [each.version for each in sorted(made, key=lambda m: m.micro) if each.kind == kind]


def staleness(made: Sequence[Made]) -> list[int]:
    """Updates of each micro-batch between its forward and its backward pass."""
    pairs = zip(versions(made, B), versions(made, F), strict=True)
    return [back - forth for back, forth in pairs]
