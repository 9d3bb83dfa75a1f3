"""Waits of a task's events, besides their own inputs and their stream.

Two versions. *Serial*: a task brings in its weights after the task before it on the GPU is deleted,
a micro-batch comes in after the one before has been computed (or, where activations are swapped,
swapped out), and gradients come in after the recomputation that needs them. This is what the
published search assumes unless told otherwise.

*Prefetching*: two buffers. Weights wait only for the last computation of the task before, so they
come in beside its all-reduce, its swap-out and its deletion, though not beside its computation. A
micro-batch comes in while the one before is computed, also across tasks.

Where the description left it open, the reading here is the one that reproduces the published and
recomputed numbers to all their digits: with prefetching, the first micro-batch of a task is ahead
of the task's weights in the swap-in stream (it belongs to the work on the task before), but for a
GPU's first task, where there is nothing to hide behind and weights go first; all-reduce waits for
the computation only, serially also for the last gradient to be swapped out; a task with a single
micro-batch has no computation before its last, and what would wait for it does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from workbench.methods.harmony.published.tasks import TaskGraph


@dataclass(slots=True)
class Progress:
    """Events of one task, by number, as far as they exist."""

    weights: int | None = None
    computes: list[int] = field(default_factory=list)
    """Per micro-batch: the end of its forward or backward."""
    recomputes: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    """Per micro-batch: what left the GPU after it; none behind the first layer."""
    takes_gradients: bool = False
    """A backward task of another pack than that of the loss."""
    deleted: int | None = None

    def second_to_last(self) -> list[int]:
        return self.computes[-2:-1]


class Waits(Protocol):
    def weights(self, before: Progress | None) -> list[int]: ...
    def weights_first(self, before: Progress | None) -> bool: ...
    def entering(self, k: int, now: Progress, before: Progress | None) -> list[int]: ...
    def first_compute(self, now: Progress) -> list[int]: ...
    def gradient(self, k: int, now: Progress, before: Progress | None) -> list[int]: ...
    def stash(self, now: Progress) -> list[int]: ...
    def compute_after_stash(self, copied: int) -> list[int]: ...
    def reduce(self, now: Progress) -> list[int]: ...
    def forward_delete(self, now: Progress) -> list[int]: ...


def waits_for(graph: TaskGraph, *, prefetch: bool) -> Waits:
    return Prefetching() if prefetch else Serial(local=graph.local)


@dataclass(frozen=True, slots=True)
class Serial:
    local: bool
    """Activations are swapped, and the swap-out of one is awaited before the next comes in."""

    def weights(self, before: Progress | None) -> list[int]:
        return [before.deleted] if before else []

    def weights_first(self, before: Progress | None) -> bool:
        return True

    def entering(self, k: int, now: Progress, before: Progress | None) -> list[int]:
        return [now.weights] if k == 0 else self._finished(now)

    def first_compute(self, now: Progress) -> list[int]:
        return []  # its input already waited for the weights

    def gradient(self, k: int, now: Progress, before: Progress | None) -> list[int]:
        return now.recomputes[-1:]

    def stash(self, now: Progress) -> list[int]:
        return []

    def compute_after_stash(self, copied: int) -> list[int]:
        return [copied]

    def reduce(self, now: Progress) -> list[int]:
        return now.outputs[-1:] or now.computes[-1:]

    def forward_delete(self, now: Progress) -> list[int]:
        return self._finished(now)

    def _finished(self, now: Progress) -> list[int]:
        return (self.local and now.outputs[-1:]) or now.computes[-1:]


@dataclass(frozen=True, slots=True)
class Prefetching:
    def weights(self, before: Progress | None) -> list[int]:
        return before.computes[-1:] if before else []

    def weights_first(self, before: Progress | None) -> bool:
        return before is None

    def entering(self, k: int, now: Progress, before: Progress | None) -> list[int]:
        if k >= 2:
            return [now.computes[k - 2]]
        if before is None:
            return []
        return before.second_to_last() if k == 0 else [before.deleted]

    def first_compute(self, now: Progress) -> list[int]:
        return [now.weights]

    def gradient(self, k: int, now: Progress, before: Progress | None) -> list[int]:
        if k > 0:
            return [now.recomputes[k - 1]]
        if before is None:
            return []
        return before.recomputes[-1:] if before.takes_gradients else before.second_to_last()

    def stash(self, now: Progress) -> list[int]:
        return now.computes[-1:]

    def compute_after_stash(self, copied: int) -> list[int]:
        return []

    def reduce(self, now: Progress) -> list[int]:
        return now.computes[-1:]

    def forward_delete(self, now: Progress) -> list[int]:
        return now.computes[-1:]
