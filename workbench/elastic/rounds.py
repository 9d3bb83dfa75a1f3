"""Rounds, and what they tell: which workers are slow, whether another shape pays, and whether
there is use in another round.

Another shape pays where its samples over the horizon, the time to the next change of hosts, exceed
those of the shape that runs by more than the morph costs, from the last step before it to the first
one after it. A worker that dies, or fails as those do that lose a peer, says nothing against
another round. A script that fails by itself does so again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, median_low
from typing import Literal

from workbench.elastic.placement import Choose, Shape

HORIZON_S = 1800.0
"""Between changes, before there are three."""
SLOW, SLOW_S, SAMPLES = 1.15, 1e-3, 5
"""A worker is slow whose passes take so many times its stage's median, and so many seconds more;
how many forward passes are looked at."""
FRUITLESS = 3
"""Rounds after which there is no use in another."""
RUNTIME = "failed: RuntimeError"
LOST, PEER = (RUNTIME, "failed: Dist"), ("peer", "gloo", "NCCL")
"""Failures of workers that may have lost a peer, and words of errors that tell of one."""
ENDED, WRONG = "ended with", "failed: ValueError"
"""Failures of a script that cannot profile, and of one that is given what cannot be trained."""
LACKING = (
    "{}: given --profiling=DIR, the script must run a Profiler into DIR, which hosts share, and "
    "end, as examples/gpt.py does; or give --nstages and --chunk_size"
)

Morph = Literal["always", "gain", "never"]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Hosts of a job, how rounds get their shapes, and when one gives way to another."""

    hosts: Mapping[str, int]
    """Host of the machine list -> its slots."""
    per_host: int
    """Slots of a host whose line has no number."""
    batch: int
    """Samples of a step."""
    choose: Choose | None
    """None where the job is over when it has profiled."""
    morph: Morph
    horizon_s: float | None = None
    """Seconds in which a morph must pay; None for the mean time between the changes seen."""
    profiling: str = ""
    """Folder into which the script profiles before shapes are chosen, where they are by that."""


@dataclass(kw_only=True)
class Round:
    """A round that has begun and is not over."""

    number: int
    shape: Shape
    seats: dict[str, range]
    slots: dict[str, int]
    """Host -> its slots, of all hosts that were there when the round began."""
    began_s: float
    phase: Literal["running", "saving", "ending"] = "running"
    since_s: float = 0.0
    step: int | None = None
    """The last step that the round has done; None before the first."""
    gains: bool = False
    """Whether some step was done for the first time."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=31))
    forwards: dict[int, deque[float]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    over: set[str] = field(default_factory=set)

    def slow_peers(self, rank: int) -> dict[str, float]:
        """Slow workers of a rank's stage, and by how much, once all of these have done enough
        passes. Of two workers the quicker one is the median."""
        peers = range(rank % self.shape.stages, self.shape.ranks, self.shape.stages)
        times = [self.forwards.get(peer, ()) for peer in peers]
        if min(map(len, times)) < SAMPLES:
            return {}
        middle = median_low(map(median, times))
        least = max(SLOW * middle, middle + SLOW_S)
        host = {peer: host for host, seats in self.seats.items() for peer in seats}
        own = zip(peers, map(median, times), strict=True)
        return {f"rank {n} on {host[n]}": each / middle for n, each in own if each > least}


def pays(now: float, then: float, horizon_s: float, cost_s: float) -> bool:
    """Whether `then` samples a second, after `cost_s` without any, make more of the horizon than
    `now`."""
    return then * (horizon_s - cost_s) > now * horizon_s


@dataclass
class Worth:
    """Whether another shape is worth a morph, by the changes of hosts and the costs seen."""

    terms: Terms
    changes: list[float] = field(default_factory=list)
    """Times at which hosts came or went."""
    costs_s: list[float] = field(default_factory=list)

    def exceeds(self, old: Shape, new: Shape, seconds: Sequence[float]) -> bool:
        """Whether to morph although nothing was lost; `seconds` are those of steps of the old
        shape."""
        if self.terms.morph == "never" or (str(new), new.chunk) == (str(old), old.chunk):
            return False
        if self.terms.morph == "always" or not seconds:
            return self.terms.morph == "always"
        predicted = old.seconds and new.seconds
        faster = old.seconds / new.seconds if predicted else new.ranks / old.ranks
        rate, changes = self.terms.batch / median(seconds), self.changes
        horizon_s = self.terms.horizon_s or HORIZON_S
        if self.terms.horizon_s is None and len(changes) > 2:
            horizon_s = fmean(b - a for a, b in zip(changes, changes[1:], strict=False))
        return pays(rate, rate * faster, horizon_s, median(self.costs_s))


class Failures:
    """Failures of rounds since a step was done for the first time."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """A step is done for the first time, or a profile is made."""
        self._fruitless, self._equal = 0, Counter[tuple[str, int | None]]()

    def judge(self, failure: str, step: int | None, *, gains: bool) -> str:
        """Count the first failure of a round, whose last step is `step`, and which `gains` if it
        did a new one; why there is no use in another round, empty where there is."""
        by_itself = failure.startswith(("failed", ENDED)) and not failure.startswith(LOST)
        self._fruitless += step is None or (by_itself and not gains)
        if self._fruitless == FRUITLESS:
            return f"{FRUITLESS} rounds in a row failed without a new step"
        if failure.startswith(RUNTIME) and not any(word in failure for word in PEER):
            self._equal[failure, step] += 1
            if self._equal[failure, step] == FRUITLESS:
                return f"{FRUITLESS} rounds failed with one error after step {step}"
        return ""
