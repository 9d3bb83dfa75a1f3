"""Aceso's planner on this machine: how good its plans are, and what finding them takes; and plans
on GPUs, measured (aceso_gpu.py, aceso_one.py, aceso_two.py).

    python -m benchmarks.aceso search [--only gpt] [--cost ours] [--database DIR]
    python -m benchmarks.aceso --only gpu-profile gpu-one-stage --out FOLDER [--size smoke]
    python -m benchmarks.aceso --only two-gpus --out FOLDER [--size smoke]

The search tells how far costs of the published plans are from the artifact's, and how far found
plans are from enumeration on random profiles. Then it prints a line for each small model of the
published database (4 GPUs of 12,000 MB) and each search: milliseconds of an iteration, against the
published ones, the bound, plans rated, processor seconds, those of a plan in ms, and memory. With
`--database`, a folder of the artifact's large profiles, also models of 64 and 1,024 layers on 8
GPUs. Each line is of a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from math import inf
from multiprocessing import get_context
from pathlib import Path

from benchmarks import aceso_gpu, aceso_one, aceso_two
from benchmarks.aceso_random import best_of_all, random_space
from benchmarks.rows import Row, measured_lines
from workbench.core.host import resolve_device
from workbench.methods.aceso.alpa import layered
from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.bound import least_time
from workbench.methods.aceso.files import read_table
from workbench.methods.aceso.grid import grid
from workbench.methods.aceso.ours import search_ours
from workbench.methods.aceso.plan import read_plan, subject_of
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.searches import Outcome, search
from workbench.methods.aceso.space import Cluster
from workbench.published.aceso import DATABASE, PLANS, costs

ONE_GPU = {**aceso_gpu.PARTS, **aceso_one.PARTS}
PUBLISHED = {"gpt": 58760.92, "t5": 33659.50, "resnet": 17672.05}
"""Milliseconds of the small settings."""
SMALL = {"gpt": ("1_3B", 512), "t5": ("770M", 512), "resnet": ("1B", 768)}
DEPTHS = (64, 1024)
SEEDS = 10
"""Random profiles, each for 2 and for 4 GPUs."""
HALF = 0.005
"""Half of the last decimal that the artifact's numbers have."""
HEAD = ("case", "search", "ms", "published", "bound", "rated", "CPU s", "ms/plan", "MiB",
        "samples/s")  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Print the table, or lines of parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("search",))
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--cost", choices=("published", "ours"), default="published")
    parser.add_argument("--database", type=Path)
    parser.add_argument("--plans", type=Path, help="of two GPUs: a folder (aceso_two.py)")
    parser.add_argument("--size", choices=tuple(aceso_two.SIZES), default="full")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    measured = (*ONE_GPU, *aceso_two.PARTS)
    known = (*SMALL, *CHECKS) if given.what else measured
    chosen = [name for name in known if not given.only or name.startswith(tuple(given.only))]
    if not chosen or (given.out is None) != bool(given.what):
        parser.error(f"search has --only {' '.join((*SMALL, *CHECKS))}; what is measured on GPUs "
                     f"needs --out, and has --only {' '.join(measured)}")  # fmt: skip
    if not given.what:
        for part in chosen:
            if part in ONE_GPU:
                lines = _on_one(part, given.size, given.out, given.database)
            else:
                lines = aceso_two.lines(part, given.size, given.out, given.database, given.plans)
            for line in lines:
                print(line, flush=True)
        return 0
    for name in chosen:
        if name in CHECKS:
            print(CHECKS[name](), flush=True)
    if SMALL.keys() & chosen:
        print("  ".join(f"{each:>12}" for each in HEAD))
    for case in _cases([name for name in chosen if name in SMALL], given.database):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            line = pool.submit(_measured, *case, given.cost).result()
            print("  ".join(f"{each:>12}" for each in line), flush=True)
    return 0


def _on_one(part: str, size: str, out: Path, database: Path | None) -> Iterator[str]:
    """A part's lines, measured now unless its file is there."""
    device = resolve_device("auto")

    def measure(work: Path) -> Iterable[Row]:
        bench = aceso_gpu.Bench(size=aceso_gpu.SIZES[size], out=out, work=work, device=device,
                                database=database or _there(out / "profiles"))  # fmt: skip
        return ONE_GPU[part](bench)

    return measured_lines(part, size, out, device, measure)


def _there(folder: Path) -> Path | None:
    return folder if folder.is_dir() else None


def golden() -> str:
    """Costs of all stages of the published plans, against the artifact's."""
    plans, apart = read_table(PLANS), []
    for row in costs().to_dict("records"):
        plan = read_plan(plans[f"{row['config']}.json"], row["config"])
        cluster = Cluster(nodes=1, per_node=plan.gpus, memory=1.0)
        ask = Ask(subject=plan.subject, cluster=cluster, database=DATABASE)
        cost = ask.costs().plan(plan)
        stage, count = cost.stages[row["stage"]], plan.subject.batch // plan.micro
        pairs = {
            cost.times[row["stage"]]: row["stage_iteration_time_ms"],
            stage.forward * count: row["fwd_ms_per_iter"], stage.memory: row["mem_total_mb"],
        }  # fmt: skip
        apart.append(max(max(0.0, abs(a - b) - HALF) / b for a, b in pairs.items()))
    return (f"{len(plans)} golden plans: {len(apart)} stages, at most {max(apart):.1e} beyond the "
            "artifact's two decimals (goal 1e-6)")  # fmt: skip


def enumerated() -> str:
    """Our search beside enumeration on random profiles of one layer, at most 4 GPUs."""
    worst, missed, beaten, fit = 0.0, 0, 0, 0
    for seed, gpus in product(range(SEEDS), (2, 4)):
        space, counts = random_space(seed, gpus), range(1, 3)
        best, outcome = best_of_all(space, counts), Outcome(space=space)
        search_ours(outcome, counts, Effort(seconds=1e6))
        missed += outcome.fits != (best < inf)
        others = (grid(space, counts), layered(space, counts))
        if outcome.fits:
            time, fit = outcome.best.cost.time, fit + 1
            worst = max(worst, time / best - 1)
            beaten += any(each.fits and each.best.cost.time < time for each in others)
    return (f"random one-layer profiles: {2 * SEEDS}, of which {fit} have a plan that fits; worst "
            f"{worst:.2%} over enumeration (goal 1 %), {missed} missed (goal 0), {beaten} slower "
            "than a comparator (goal 0)")  # fmt: skip


CHECKS = {"golden": golden, "enumerated": enumerated}


def _cases(models: list[str], database: Path | None) -> Iterator[tuple[str, int, Path, str]]:
    searches = ("faithful", "ours", "megatron", "alpa")
    for model in models:
        yield from ((model, 0, DATABASE, name) for name in searches)
    if database is not None:
        for layers in DEPTHS:
            yield from (("scale-layer", layers, database, name) for name in searches[:2])


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
        f"{cpu / rated * 1e3:.3g}", f"{peak:.0f}", f"{batch / best * 1000:.2f}",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
