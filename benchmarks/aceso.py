"""Aceso's planner on this machine: how good its plans are, and what finding them takes.

    python -m benchmarks.aceso search [--only gpt] [--cost ours] [--database DIR]

Prints a line for each small model of the published database (4 GPUs of 12,000 MB) and each search:
milliseconds of an iteration, against the published ones, the bound, plans rated, processor seconds
and memory; then, of random profiles of one layer with little memory, how far our plans are from the
best of all at most, by enumeration. With `--database`, a folder of the artifact's large profiles,
also models of 64 and 1,024 layers on 8 GPUs, each of these in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.unit.aceso.enumeration import best_of_all, random_space
from workbench.methods.aceso.alpa import layered
from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.bound import least_time
from workbench.methods.aceso.grid import grid
from workbench.methods.aceso.ours import search_ours
from workbench.methods.aceso.plan import subject_of
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.searches import Outcome, search
from workbench.methods.aceso.space import Cluster
from workbench.published.aceso import DATABASE

PUBLISHED = {"gpt": 58760.92, "t5": 33659.50, "resnet": 17672.05}
"""Milliseconds of the small settings."""
SMALL = {"gpt": ("1_3B", 512), "t5": ("770M", 512), "resnet": ("1B", 768)}
DEPTHS = (64, 1024)
RANDOM = 20
"""Seeds of profiles."""
HEAD = ("case", "search", "ms", "published", "bound", "rated", "CPU s", "MiB", "samples/s")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("search",))
    parser.add_argument("--only", choices=tuple(SMALL))
    parser.add_argument("--cost", choices=("published", "ours"), default="published")
    parser.add_argument("--database", type=Path)
    given = parser.parse_args()
    print("  ".join(f"{each:>12}" for each in HEAD))
    for case in _cases(given.only, given.database):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            row = pool.submit(_measured, *case, given.cost).result()
            print("  ".join(f"{each:>12}" for each in row), flush=True)
    if given.only is None:
        print(_random(given.cost))


def _cases(only: str | None, database: Path | None) -> Iterator[tuple[str, int, Path, str]]:
    searches = ("faithful", "ours", "megatron", "alpa")
    for model in SMALL if only is None else (only,):
        yield from ((model, 0, DATABASE, name) for name in searches)
    if database is not None:
        for layers in DEPTHS:
            yield from (("scale-layer", layers, database, name) for name in searches[:2])


def _random(cost: str) -> str:
    """Our search against enumeration."""
    missed, worst, fitting, counts = 0, 0.0, 0, range(1, 3)
    for seed in range(RANDOM):
        space = random_space(seed, 4, cost)
        best, outcome = best_of_all(space, counts), Outcome(space=space)
        search_ours(outcome, counts, Effort())
        if best < float("inf"):
            fitting += 1
            missed += not outcome.fits
            worst = max(worst, outcome.best.cost.time / best - 1) if outcome.fits else worst
    return (f"{RANDOM} random profiles on 4 GPUs: a plan fits {fitting}; ours found none for "
            f"{missed} of them, and others over the best by {worst:.2%} at most")  # fmt: skip


def _measured(model: str, layers: int, database: Path, name: str, cost: str) -> tuple[str, ...]:
    size, batch = SMALL.get(model, ("", 1024))
    subject = subject_of(model, size, batch, layers=layers or None)
    per_node, memory = (8, 28000) if layers else (4, 12000)
    ask = Ask(subject=subject, database=database, cost=cost,
              cluster=Cluster(nodes=1, per_node=per_node, memory=memory))  # fmt: skip
    begun, space, counts = time.process_time(), ask.space(), ask.stages(None, None)
    outcome = Outcome(space=space, bound=least_time(space))
    if name in ("megatron", "alpa"):
        outcome = {"megatron": grid, "alpa": layered}[name](space, counts)
    else:
        run = {"faithful": search, "ours": search_ours}[name]
        effort = Effort(plans=100) if layers else Effort()
        run(outcome, counts, effort, finetunes=model == "resnet")
    cpu = time.process_time() - begun
    best = outcome.best.cost.time
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = (
        f"{best / PUBLISHED[model] - 1:+.2%}" if model in PUBLISHED and cost == "published" else ""
    )
    rated = sum(found.explored for found in outcome.found.values())
    return (
        f"{model} {layers or size}", name, f"{best:,.2f}", told,
        f"{best / outcome.bound - 1:+.1%}" if outcome.bound else "", str(rated), f"{cpu:.1f}",
        f"{peak:.0f}", f"{batch / best * 1000:.2f}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
