"""Balanced parts of little traffic by METIS (Karypis, Kumar, 1998), which knows no direction of
edges."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from workbench.partition.placement import Placement, placed
from workbench.partition.problem import Problem

WHOLE = 10_000
"""METIS takes whole numbers: the largest item or message counts so many."""


@dataclass(frozen=True, kw_only=True)
class Metis:
    """Settings of the method."""

    metis_attempts: int = 10
    """Seeds to try until the parts are stages that do not wait for each other in a circle."""
    metis_seed: int | None = None
    """First seed; otherwise that of the search."""
    metis_compress: bool = False
    """Merge vertices with the same neighbours first."""
    metis_niter: int = 10
    """Rounds of refinement at each level."""
    metis_ncuts: int = 1
    """Partitions that METIS makes to return the best."""
    metis_objtype: Literal["cut", "vol"] = "cut"
    """Edges that are cut, or the volume of messages."""
    metis_contig: bool = False
    """Each part is connected."""


def check_package() -> None:
    """Raise ValueError where METIS is missing."""
    if not find_spec("pymetis"):
        raise ValueError("metis needs the package pymetis: pip install pymetis")


def metis(problem: Problem, settings: Metis, seed: int) -> Placement:
    """The first attempt whose parts are one stage a device; else the fastest, with parts split into
    stages. Raises ValueError where the package is missing, and where no attempt fits in memory."""
    check_package()
    import pymetis

    first = seed if settings.metis_seed is None else settings.metis_seed
    starts, neighbours, sizes = _rows(problem)
    found: list[Placement] = []
    for attempt in range(settings.metis_attempts):
        options = pymetis.Options(
            seed=first + attempt, compress=int(settings.metis_compress),
            niter=settings.metis_niter, ncuts=settings.metis_ncuts,
            objtype=getattr(pymetis.ObjType, settings.metis_objtype.upper()),
        )  # fmt: skip
        _, parts = pymetis.part_graph(
            problem.devices, xadj=starts, adjncy=neighbours, eweights=sizes,
            vweights=_whole(problem.work), contiguous=settings.metis_contig, recursive=False,
            options=options,
        )  # fmt: skip
        placement = placed(problem, parts)
        if not placement.over():
            found.append(placement)
            if len(placement.device_of) == problem.devices == len(set(parts)):
                break
    if not found:
        raise ValueError(
            f"METIS knows no memory, and none of {settings.metis_attempts} attempts fits in it"
        )
    one_each = [one for one in found if len(one.device_of) == problem.devices]
    return min(one_each or found, key=Placement.objective)


def _rows(problem: Problem) -> tuple[list[int], list[int], list[int]]:
    """The graph without directions: where each item's neighbours begin, the neighbours, their
    sizes."""
    between: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for tensor in problem.tensors:
        for reader, forward, _ in tensor.uses:
            between[tensor.source][reader] += forward
            between[reader][tensor.source] += forward
    starts, neighbours, sizes = [0], [], []
    for item in range(len(problem.work)):
        neighbours += between[item]
        sizes += between[item].values()
        starts.append(len(neighbours))
    return starts, neighbours, _whole(sizes)


def _whole(values: list[float] | tuple[float, ...]) -> list[int]:
    most = max(values, default=0.0) or 1.0
    return [max(1, round(WHOLE * value / most)) for value in values]
