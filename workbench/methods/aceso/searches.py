"""A search over numbers of stages, one after the other: what was found, and how good it is."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.search import Effort, Found, Search
from workbench.methods.aceso.space import Rated, Space


@dataclass(kw_only=True)
class Outcome:
    """Of all numbers of stages so far."""

    space: Space
    found: dict[int, Found] = field(default_factory=dict)
    """By number of stages; without those that the devices cannot be dealt to."""
    cpu_seconds: float = 0.0
    bound: float = 0.0
    """Milliseconds below which no plan's iteration is."""
    whole: bool = False
    """Whether the search came to its end."""

    @property
    def best(self) -> Rated | None:
        """The fastest plan that fits; where none does, the one that is nearest to it."""
        plans = [found.best for found in self.found.values()]
        return min(plans, key=self.space.rank, default=None)

    @property
    def fits(self) -> bool:
        """Whether a plan fits."""
        return self.best is not None and self.space.fits(self.best.cost)

    def chosen(self) -> Rated:
        """The fastest plan that fits. Raises ValueError where none does."""
        best, space = self.best, self.space
        if best is None:
            cluster, most = space.cluster, space.most_tp
            raise ValueError(f"no plan is found: in each number of stages {cluster.gpus} GPUs are "
                             f"not dealt in powers of two, up to tp {most}, or nothing fits in "
                             f"{cluster.memory:,.0f} MB a GPU")  # fmt: skip
        limit, need = space.cluster.memory, best.cost.memory
        if not self.fits:
            raise ValueError(f"nothing fits in {limit:,.0f} MB a GPU: the nearest plan, of "
                             f"{len(best.plan.stages)} stages, takes {need:,.0f} MB, "
                             f"{need - limit:,.0f} more")  # fmt: skip
        return best

    def ranked(self) -> list[Rated]:
        """The plans that fit, by number of stages, the fastest first."""
        plans = [found.best for found in self.found.values()]
        return sorted((p for p in plans if self.space.fits(p.cost)), key=self.space.rank)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, but for the file of the plan."""
        best, fits = self.best, self.fits
        return {
            "fits": fits,
            "iteration_ms": best.cost.time if best and fits else None,
            "memory_mb": best.cost.memory if best else None,
            "explored": sum(found.explored for found in self.found.values()),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "bound_ms": self.bound,
            "gap": best.cost.time / self.bound - 1 if best and fits and self.bound else None,
            "curve": self.curve(),
            "by_stages": [
                {
                    "stages": count,
                    "fits": self.space.fits(found.best.cost),
                    "iteration_ms": found.best.cost.time,
                    "memory_mb": found.best.cost.memory,
                    "explored": found.explored,
                }
                for count, found in self.found.items()
            ],
        }

    def curve(self) -> list[list[float]]:
        """Plans rated so far, over all numbers of stages, and the best time of an iteration."""
        points: list[list[float]] = []
        before = 0
        for found in self.found.values():
            for explored, ms in found.curve:
                if not points or ms < points[-1][1]:
                    points.append([before + explored, ms])
            before += found.explored
        return points


Watch = Callable[[int, Found], None]


def search(
    outcome: Outcome, counts: Iterable[int], effort: Effort, *, finetunes: bool = False,
    wide: str = "tp", start: str = "balance", first: Plan | None = None, watch: Watch | None = None,
) -> None:  # fmt: skip
    """Search each number of stages into `outcome`, which holds what was found also where it is
    interrupted. `first` is the plan that a search of its number of stages starts from."""
    space, begun = outcome.space, time.process_time()
    try:
        for count in counts:
            if first is not None and len(first.stages) == count:
                beginning: Rated | None = Rated(first, space.costs.plan(first))
            else:
                beginning = space.first(count, wide=wide, start=start)
            if beginning is None:
                continue

            def hear(found: Found, count: int = count) -> None:
                outcome.found[count] = found
                outcome.cpu_seconds = time.process_time() - begun
                if watch:
                    watch(count, found)

            Search(space, effort, finetunes=finetunes, watch=hear).run(beginning)
        outcome.whole = True
    finally:
        outcome.cpu_seconds = time.process_time() - begun


def file_name(plan: Plan) -> str:
    """Of a plan's file: equal plans have equal names."""
    digest = hashlib.sha256(plan.to_json().encode()).hexdigest()[:8]
    return f"{plan.subject.name}_{len(plan.stages)}stages_{digest}.json"
