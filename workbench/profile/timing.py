"""Timings that mean something on a machine that does other things too.

Disturbance makes work slower, never faster, and comes in bursts. So a timing is a median of many
samples, without those that lie far above the rest; meanwhile the system's own accounts tell how
much of our cores went to other programs (or, on a virtual machine, to its neighbours); and a timing
taken while that was much is taken again, a bounded number of times, the quietest one being kept.

Where it never got quiet, work that only computes is judged by the processor time of its thread
instead, which stands still while another program runs: what the work would take if left alone.
Either way the cores lost to others are reported with the figure.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import NamedTuple, TypeVar

from workbench.core.others import Reading, cores_of_others, read


class Sample(NamedTuple):
    """Seconds of one piece of work."""

    wall: float
    cpu: float
    """Processor time of the calling thread; the same as `wall` for work that waits for a device."""


Once = Callable[[], Sample]
"""Does a piece of work and tells how long it took."""

QUIET = 0.1
"""Cores lost to others up to which a timing counts as undisturbed."""
TRIES = 2
"""How often a disturbed timing is taken before its quietest one is accepted."""

BRIEF = "WORKBENCH_BRIEF_TIMINGS"
"""Where this is set in the environment, a timing is taken once and for a small part of its time:
for tests, most of which run small models on a busy machine and do not ask how long anything
takes."""
BRIEFLY = 1 / 30
"""That part."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timing:
    """Repeated timings of one thing."""

    seconds: float
    """Median."""
    spread: float
    """Half the distance of the quartiles, relative to the median."""
    others: float = 0.0
    """Cores that other programs used meanwhile."""


def summarize(samples: Sequence[Sample], others: float = 0.0) -> Timing:
    """Median and spread of samples, without those far above the others.

    >>> summarize([Sample(s, s) for s in (1.0, 1.0, 1.0, 1.5, 9.0)])
    Timing(seconds=1.0, spread=0.0625, others=0.0)
    """
    if not samples:
        raise ValueError("no timing was taken; at least one is needed")
    values = [sample.wall if others <= QUIET else sample.cpu for sample in samples]
    if len(values) < 4:
        middle = median(values)
        return Timing(middle, (max(values) - min(values)) / 2 / middle, others)
    low, middle, high = quantiles(undisturbed(values), n=4, method="inclusive")
    return Timing(middle, (high - low) / 2 / middle, others)


def undisturbed(values: Sequence[float]) -> list[float]:
    """Two or more values, without those far above the others."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return [value for value in values if value <= high + 1.5 * (high - low)]


class Stopwatch:
    """Counts the cores that other programs use while it is open."""

    others = 0.0
    """Cores, on average; set on leaving."""

    def __enter__(self) -> Stopwatch:
        self._begin = self._read()
        return self

    def __exit__(self, *failure: object) -> None:
        self.others = cores_of_others(self._begin, self._read())

    @staticmethod
    def _read() -> Reading:
        return read(tree=False)


def brief() -> bool:
    """Whether timings are."""
    return bool(os.environ.get(BRIEF))


def lasting(seconds: float) -> float:
    """How long a timing that wants `seconds` may take."""
    return seconds * BRIEFLY if brief() else seconds


def quietest(measure: Callable[[], T], *, tries: int = TRIES) -> tuple[T, float]:
    """Call `measure` until other programs left the machine to it, at most `tries` times.

    Returns the result of the quietest call, and the cores others used during it.
    """
    best: tuple[T, float] | None = None
    for _ in range(tries):
        with Stopwatch() as watch:
            result = measure()
        if best is None or watch.others < best[1]:
            best = result, watch.others
        if watch.others <= QUIET or brief():
            break
    return best


def sample(once: Once, *, seconds: float = 0.25, least: int = 5) -> Timing:
    """Time `once` for `seconds` and at least `least` times, after one warm-up."""
    once()
    samples, others = quietest(lambda: repeat(once, seconds=seconds, least=least))
    return summarize(samples, others)


def repeat(once: Once, *, seconds: float, least: int = 5) -> list[Sample]:
    """Samples of `once` for `seconds`, and at least `least` of them."""
    samples: list[Sample] = []
    end = time.perf_counter() + lasting(seconds)
    while len(samples) < least or time.perf_counter() < end:
        samples.append(once())
    return samples


def repeat_together(*works: Once, seconds: float) -> list[list[Sample]]:
    """Samples of one or more kinds of work at the same time, each again and again in its thread.

    A sample counts only if all were at work throughout: it began when everyone's first, a warm-up,
    was over, and nobody had stopped when it ended. Raises what any of them raises.
    """
    gate, stop = threading.Barrier(len(works)), threading.Event()
    taken: list[list[Sample]] = [[] for _ in works]
    warm = [False for _ in works]
    failures: list[BaseException] = []
    end = time.perf_counter() + lasting(seconds)

    def work(side: int, once: Once) -> None:
        try:
            gate.wait()
            once()
            warm[side] = True
            while not stop.is_set():
                together = all(warm)
                found = once()
                if together and not stop.is_set():
                    taken[side].append(found)
                if time.perf_counter() >= end and min(map(len, taken)) >= 2:
                    stop.set()
        except BaseException as error:  # raised again below; the others must not wait for ever
            failures.append(error)
            stop.set()
            gate.abort()

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return taken
