"""The methods by name, and what a partition of a graph tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from workbench.partition.acyclic import Acyclic, acyclic
from workbench.partition.bins import Bins, bins
from workbench.partition.cheap_last import cheapest, with_cheap_last
from workbench.partition.exact import exact
from workbench.partition.graph import Graph
from workbench.partition.metis import Metis, metis
from workbench.partition.mpipe import Mpipe, mixed
from workbench.partition.pipedream import contiguous
from workbench.partition.placement import Placement, placed
from workbench.partition.problem import Problem, problem_of


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """Settings of a method that has none."""


@dataclass(frozen=True)
class Method:
    """How a method partitions, and what it can be told."""

    settings: type
    place: Callable[[Problem, Any, int], Placement]
    """(problem, settings, seed) to a placement."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is asked of a method, besides its own settings. The defaults are the published ones."""

    method: str = "acyclic"
    devices: int = 4
    memory: float | None = None
    """Bytes of a device; None: no limit."""
    bandwidth: float = 12.0
    """GB/s between devices."""
    seed: int = 0
    ratio: float | None = 1.0
    """Weight of backward against forward times; see `problem_of`."""
    cheap_last: bool = False
    """Whether the last stage keeps its activations, and so takes the nodes' `backward_kept_ms`."""
    in_flight: int = 0
    """Micro-batches of an update of an asynchronous pipeline, whose inputs in flight then count as
    memory; 0: none count."""
    versions: bool = False
    """Whether memory counts the versions of weights that stages stash meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The stages of a graph, and how good they are."""

    method: str
    stage: dict[str, int]
    """Of each node; no edge leads to an earlier stage."""
    device: dict[str, int]
    """Of each node; all of a stage have one device."""
    stage_to_device: list[int]
    loads_ms: list[float]
    """Work of each device."""
    memory_bytes: list[float]
    """Of each device."""
    objective_ms: float
    """The slowest stage: its device's work, and messages beyond that."""
    bound_ms: float
    """No placement on as many devices has a smaller objective, whatever its stages."""
    gap: float
    """Share by which the objective is over the bound."""


METHODS: Mapping[str, Method] = {
    "acyclic": Method(Acyclic, lambda problem, own, seed: acyclic(problem, own, Random(seed))),
    "pipedream": Method(Nothing, lambda problem, own, seed: contiguous(problem)),
    "metis": Method(Metis, metis),
    "mpipe": Method(Mpipe, mixed),
    "exact": Method(Nothing, lambda problem, own, seed: exact(problem, seed)),
    "2dbin": Method(Bins, lambda problem, own, seed: placed(problem, bins(problem, own))),
}


BOUNDED: Mapping[str, tuple[Callable[[Problem], Placement], ...]] = {
    "mpipe": (contiguous,),
    "exact": (contiguous, lambda problem: mixed(problem, Mpipe(), 0)),
}
"""Method -> finders of placements; it gives none that is worse, but for the published rules."""
LEAST = {"epsilon": 0, "rounds": 0, "n_clusters": 1, "THRESHOLD": 0, "metis_attempts": 1}
"""Setting -> the least that it can be."""


def partition(graph: Graph, ask: Ask, settings: Any = None) -> Partition:
    """Partition a graph. `settings` are the method's own. Raises ValueError for an unknown method,
    and where no partition is found."""
    if ask.method not in METHODS:
        raise ValueError(f"unknown method {ask.method!r}; known: {', '.join(METHODS)}")
    method = METHODS[ask.method]
    own = method.settings() if settings is None else settings
    for name, least in LEAST.items():
        value = getattr(own, name, least)
        if not least <= value < float("inf"):
            raise ValueError(f"{name} is {value}; it must be a number from {least} on")
    problem, item_of, last_work = problem_of(
        graph, ask.devices, memory=ask.memory, bandwidth=ask.bandwidth, ratio=ask.ratio,
        in_flight=ask.in_flight, versions=ask.versions,
    )  # fmt: skip

    def find(problem: Problem) -> Placement:
        return method.place(problem, own, ask.seed).numbered()

    if ask.cheap_last:
        known = None
        ours = getattr(own, "packing", "best") == "best"
        for other in BOUNDED.get(ask.method, ()) if ours else ():
            with suppress(ValueError):  # nothing fits in memory
                known = with_cheap_last(problem, last_work, other, known=known)
        found = with_cheap_last(problem, last_work, find, known=known).numbered()
    else:
        found = find(problem)
    if found.over():
        raise ValueError(f"{ask.method} found nothing that fits in memory: give more --memory")
    bound, objective = found.bound, found.objective()
    if ask.cheap_last:
        bound = cheapest(problem, last_work).bound
    return Partition(
        method=ask.method,
        stage={name: found.stage_of[item] for name, item in item_of.items()},
        device={name: found.devices[item] for name, item in item_of.items()},
        stage_to_device=found.device_of, loads_ms=found.load, memory_bytes=found.held,
        objective_ms=objective, bound_ms=bound, gap=objective / bound - 1 if bound else 0.0,
    )  # fmt: skip
