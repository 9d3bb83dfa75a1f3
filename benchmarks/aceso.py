"""Aceso's planner on this machine: how good its plans are, and what finding them takes.

    python -m benchmarks.aceso search [--only gpt] [--database DIR]
    python -m benchmarks.aceso --only gpu-profile gpu-uneven [--size smoke] [--out DIR]

Prints a line for each small model of the published database (4 GPUs of 12,000 MB) and each search:
milliseconds of an iteration, against the published ones, the bound, plans rated, processor seconds
and memory. With `--database`, a folder of the artifact's large profiles, also models of 64 and
1,024 layers on 8 GPUs, each of these in a process of its own. Figures of one GPU are in
`aceso_gpu.py`.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

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
ON_GPU = ("gpu-profile", "gpu-uneven")
HEAD = ("case", "search", "ms", "published", "bound", "rated", "CPU s", "MiB", "samples/s")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("search",), default="search")
    parser.add_argument("--only", nargs="+", choices=(*SMALL, *ON_GPU), default=[*SMALL])
    parser.add_argument("--database", type=Path)
    parser.add_argument("--size", choices=("full", "smoke"), default="full", help="of gpu- figures")
    parser.add_argument("--out", type=Path, default=Path("results/aceso-gpu"), help="of their rows")
    given = parser.parse_args()
    for part in (each for each in given.only if each in ON_GPU):
        from benchmarks import aceso_gpu  # imports the engine

        print("\n".join(aceso_gpu.lines(part, given.size, given.out)), flush=True)
    models = [each for each in given.only if each in SMALL]
    if not models:
        return
    print("  ".join(f"{each:>12}" for each in HEAD))
    for case in _cases(models, given.database):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            print("  ".join(f"{each:>12}" for each in pool.submit(_measured, *case).result()))


def _cases(models: Sequence[str], database: Path | None) -> Iterator[tuple[str, int, Path, str]]:
    searches = ("faithful", "ours", "megatron", "alpa")
    for model in models:
        yield from ((model, 0, DATABASE, name) for name in searches)
    if database is not None:
        for layers in DEPTHS:
            yield from (("scale-layer", layers, database, name) for name in searches[:2])


def _measured(model: str, layers: int, database: Path, name: str) -> tuple[str, ...]:
    size, batch = SMALL.get(model, ("", 1024))
    subject = subject_of(model, size, batch, layers=layers or None)
    per_node, memory = (8, 28000) if layers else (4, 12000)
    ask = Ask(subject=subject, database=database,
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
    told = f"{best / PUBLISHED[model] - 1:+.2%}" if model in PUBLISHED else ""
    rated = sum(found.explored for found in outcome.found.values())
    return (
        f"{model} {layers or size}", name, f"{best:,.2f}", told,
        f"{best / outcome.bound - 1:+.1%}" if outcome.bound else "", str(rated), f"{cpu:.1f}",
        f"{peak:.0f}", f"{batch / best * 1000:.2f}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
