"""The published search over micro-batch sizes and packs of both passes, candidate by candidate.

Harmony's scheduler (VLDB 2022) as in the published artifact, commit 5fd838f: the same candidates,
in the same order, with the same estimates.

For every backward size, every backward rule gives one partition of the whole model. Where that is
one pack, the model fits a GPU and there is no forward task. Else, for every forward size from the
backward one on, every forward rule partitions the layers before the last backward pack; `reuse`
takes the backward packs themselves. Each such candidate becomes a task graph and is simulated, and
the fastest are kept. (Where a lower bound shows that a candidate cannot be among these, its
simulation is left out, which changes no answer.)

A published habit is kept and can be switched off: a candidate with a single backward pack is ranked
by a thousandth of its time (`rank_fit_normally`). The memory capacity binds the packing rules only;
estimates may exceed it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from workbench.core.bytesize import format_bytes
from workbench.methods.harmony.published.bound import least_seconds
from workbench.methods.harmony.published.build import build
from workbench.methods.harmony.published.estimate import Estimate, estimate
from workbench.methods.harmony.published.microbatches import shares
from workbench.methods.harmony.published.packing import RULES, Packs, reuse
from workbench.methods.harmony.published.profiles import Direction, PublishedProfile
from workbench.methods.harmony.published.tasks import Configuration, Mode
from workbench.methods.harmony.published.timing import Server, simulate

REUSE = "reuse"
DEFAULT_FORWARD = ("greedy_reverse_addx", "balanced_addx", REUSE, "balanced_time")
DEFAULT_BACKWARD = ("greedy_reverse_addx", "balanced_addx", "balanced_time")
FITS_BONUS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSettings:
    """Defaults are the published ones."""

    mode: Mode
    gpus: int
    minibatch: int
    memory_cap: float = 10 * 2**30
    """Bytes a pack may take."""
    forward_rules: tuple[str, ...] = DEFAULT_FORWARD
    backward_rules: tuple[str, ...] = DEFAULT_BACKWARD
    prefetch: bool = False
    """Model prefetching."""
    top: int | None = 1
    """How many to keep; None: all."""
    rank_fit_normally: bool = False

    def __post_init__(self) -> None:
        unknown = {*self.forward_rules} - {*RULES, REUSE} | {*self.backward_rules} - {*RULES}
        if unknown:
            raise ValueError(
                f"unknown packing rules {', '.join(sorted(unknown))}: there are "
                f"{', '.join(RULES)}, and {REUSE} for the forward pass"
            )
        for name in ("gpus", "minibatch", "memory_cap"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.top is not None and self.top < 1:
            raise ValueError(f"top must be 1 or more, or None for all, not {self.top}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    configuration: Configuration
    forward_rule: str | None
    """None where the model is one backward pack."""
    backward_rule: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    candidate: Candidate
    estimate: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    best: tuple[Ranked, ...]
    """The best first; equals in the order in which they were found."""
    candidates: int
    """Found; those that different rules give are so many."""
    simulated: int
    """Of these; the others are slower than the best by a lower bound."""


def search(profile: PublishedProfile, settings: SearchSettings, server: Server) -> SearchResult:
    """The fastest candidates; ValueError where no packs fit at any micro-batch size."""
    found = list(candidates(profile, settings))
    if not found:
        raise ValueError(
            f"no packs of {profile.model} fit in {format_bytes(settings.memory_cap)} with a "
            f"minibatch of {settings.minibatch} on {settings.gpus} GPUs, at any micro-batch size"
        )
    best, simulated = _fastest(profile, settings, server, found)
    ranked = tuple(
        Ranked(
            candidate=found[index],
            estimate=estimate(
                build(found[index].configuration), profile, server, prefetch=settings.prefetch
            ),
        )
        for index in best
    )
    return SearchResult(best=ranked, candidates=len(found), simulated=simulated)


def _fastest(
    profile: PublishedProfile,
    settings: SearchSettings,
    server: Server,
    found: list[Candidate],
) -> tuple[list[int], int]:
    """Indices of the best, in their order, and how many candidates were simulated for it.

    By rising lower bound, until no candidate that is left can be among the best.
    """
    top = len(found) if settings.top is None else min(settings.top, len(found))
    bounds = sorted(
        (_rank(candidate, settings, least_seconds(candidate.configuration, profile, server)), index)
        for index, candidate in enumerate(found)
    )
    best: list[tuple[float, int]] = []
    simulated = 0
    for bound, index in bounds:
        if len(best) == top and bound * (1 - 1e-9) > best[-1][0]:
            break
        graph = build(found[index].configuration)
        timing = simulate(graph, profile, server, prefetch=settings.prefetch)
        simulated += 1
        insort(best, (_rank(found[index], settings, timing.seconds), index))
        del best[top:]
    return [index for _, index in best], simulated


def _rank(candidate: Candidate, settings: SearchSettings, seconds: float) -> float:
    fits = len(candidate.configuration.backward) == 1
    return seconds / FITS_BONUS if fits and not settings.rank_fit_normally else seconds


def candidates(profile: PublishedProfile, settings: SearchSettings) -> Iterator[Candidate]:
    """Everything the published search evaluates, in its order."""
    forward_sizes = _sizes(profile, settings, Direction.FORWARD)
    for u_backward in _sizes(profile, settings, Direction.BACKWARD):
        for rule in settings.backward_rules:
            packs = _pack(profile, Direction.BACKWARD, u_backward, profile.layers, rule, settings)
            if packs is None:
                continue
            if len(packs) == 1:
                yield _candidate(settings, u_backward, (), None, u_backward, packs, rule)
                continue
            for u_forward in forward_sizes:
                if u_forward < u_backward:
                    continue
                for forward_rule in settings.forward_rules:
                    forward = _forward_packs(profile, u_forward, packs, forward_rule, settings)
                    if forward is not None:
                        yield _candidate(
                            settings, u_forward, forward, forward_rule, u_backward, packs, rule
                        )


def _sizes(profile: PublishedProfile, settings: SearchSettings, direction: Direction) -> list[int]:
    """Profiled range, up to the smallest share of a replica; divisors of all shares."""
    gpus = settings.gpus if settings.mode is Mode.DP else 1
    parts = shares(settings.minibatch, gpus)
    profiled = profile.sizes(direction)
    largest = min(profiled[-1], parts[-1])
    return [
        size for size in range(profiled[0], largest + 1) if not any(part % size for part in parts)
    ]


def _forward_packs(
    profile: PublishedProfile, size: int, backward: Packs, rule: str, settings: SearchSettings
) -> Packs | None:
    if rule != REUSE:
        layers = backward[-1].start
        return _pack(profile, Direction.FORWARD, size, layers, rule, settings)
    costs = profile.at(Direction.FORWARD, size)
    return reuse(backward[:-1], costs.beyond_input(), costs.input_bytes, settings.memory_cap)


def _pack(
    profile: PublishedProfile,
    direction: Direction,
    size: int,
    layers: int,
    rule: str,
    settings: SearchSettings,
) -> Packs | None:
    """The first `layers` layers by a rule."""
    costs = profile.at(direction, size)
    return RULES[rule](
        costs.beyond_input()[:layers],
        costs.input_bytes[:layers],
        costs.seconds[:layers],
        settings.memory_cap,
    )


def _candidate(
    settings: SearchSettings,
    u_forward: int,
    forward: Packs,
    forward_rule: str | None,
    u_backward: int,
    backward: Packs,
    backward_rule: str,
) -> Candidate:
    configuration = Configuration(
        mode=settings.mode,
        gpus=settings.gpus,
        minibatch=settings.minibatch,
        u_forward=u_forward,
        forward=forward,
        u_backward=u_backward,
        backward=backward,
    )
    return Candidate(
        configuration=configuration, forward_rule=forward_rule, backward_rule=backward_rule
    )
