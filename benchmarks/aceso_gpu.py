"""Aceso's figures that one GPU gives; a processor plays it with ``--size smoke``.

    python -m benchmarks.aceso --only gpu-profile gpu-uneven --size smoke --out FOLDER

Each part stands for itself: it prints lines, and writes its rows to ``FOLDER/PART.json`` with the
machine they were measured on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from workbench.core.files import write_whole
from workbench.core.model_spec import ModelSpec
from workbench.core.reporter import Untold
from workbench.core.spec import RunSpec
from workbench.methods.aceso.options import model_of
from workbench.methods.aceso.plan import Plan, Stage, subject_of
from workbench.methods.aceso.profiled import chain_of, variants_of, write_profiles
from workbench.profile.machine import this_machine
from workbench.profile.shard_store import shard_costs
from workbench.profile.shards import Repeats
from workbench.profile.store import silent
from workbench.training import trained_ranks

Rows = list[dict[str, Any]]
FIRST = 0.57
"""Part of the operators that the first of two uneven stages has."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and how it is divided."""

    name: str
    vocab: int
    samples: tuple[int, ...] = (1, 2, 4, 8)
    tps: tuple[int, ...] = (1, 2, 4, 8)
    repeats: Repeats = field(default_factory=Repeats)


SIZES = {
    "full": Size(name="1_3B", vocab=51200),
    "smoke": Size(name="tiny", vocab=256, samples=(1, 2), tps=(1, 2),
                  repeats=Repeats(warmup=1, times=(3,))),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The setting of all parts."""

    size: Size
    out: Path
    work: Path
    device: str = field(default_factory=lambda: "cuda" if torch.cuda.is_available() else "cpu")


def profile(bench: Bench) -> Rows:
    """Profiles of GPT for every tp, micro-batch and dimension."""
    size = bench.size
    subject = subject_of("gpt", size.name, 1)
    chain = chain_of(subject, ModelSpec(vocab=size.vocab), fused=True)
    variants, began = variants_of(chain, size.samples, size.tps), time.monotonic()
    costs = shard_costs(chain, variants, bench.out, silent, device=bench.device,
                        repeats=size.repeats, fresh=True)  # fmt: skip
    files = write_profiles(bench.out / "profiles", subject.name, chain, costs, variants,
                           lambda exchange, tp: 0.0)  # fmt: skip
    there = [cost for cost in costs.costs.values() if cost]
    row = {
        "what": subject.name, "source": "measured", "files": len(files),
        "shards": len(costs.costs), "no_room": len(costs.costs) - len(there),
        "profiled_s": time.monotonic() - began,
        "median_forward_spread": median(cost.forward_spread for cost in there),
        "median_backward_spread": median(cost.backward_spread for cost in there),
    }  # fmt: skip
    return [row]


def uneven(bench: Bench) -> Rows:
    """GPT in two uneven stages, five steps, in two processes of one device."""
    size = bench.size
    subject = subject_of("gpt", size.name, 8)
    count = len(subject.operators())
    cut, stages = round(FIRST * count), []
    for operators in (cut, count - cut):
        alike, again = bytes([1] * operators), bytes(at % 3 > 0 for at in range(operators))
        stages.append(Stage(1, alike, alike, bytes(operators), again))
    plan = Plan(subject=subject, micro=1, stages=tuple(stages))
    file = bench.work / "plan.json"
    file.write_text(plan.to_json())
    spec = RunSpec.of(
        method="aceso", model=model_of(plan, ModelSpec(vocab=size.vocab)), batch=8, ranks=2,
        microbatches=8, steps=5, device=bench.device, plan=str(file),
        dtype="bf16" if bench.device == "cuda" else "fp32",
    )  # fmt: skip
    found = trained_ranks.train(
        "workbench.methods.aceso.run", spec, Untold(), bench.work / "runs" / "run", teller=1,
        devices=[0, 0],
    )  # fmt: skip
    row = {
        "what": f"{subject.name}, {cut} and {count - cut} operators", "source": "measured",
        "parameters": found.parameters, "losses": found.losses,
        "step_s": median(found.step_seconds[1:]), "peak_bytes": found.peak_bytes["device"],
    }  # fmt: skip
    return [row]


PARTS: dict[str, Callable[[Bench], Rows]] = {"gpu-profile": profile, "gpu-uneven": uneven}


def lines(part: str, size: str, out: Path) -> Iterator[str]:
    """A part's lines, measured now unless its file is there."""
    path = out / f"{part}.json"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory() as folder:
            began = time.monotonic()
            bench = Bench(size=SIZES[size], out=out, work=Path(folder))
            rows = PARTS[part](bench)
        told = {"size": size, "machine": asdict(this_machine(bench.device)),
                "seconds": time.monotonic() - began,
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}  # fmt: skip
        write_whole(path, json.dumps({"provenance": told, "rows": rows}, indent=1) + "\n")
    data = json.loads(path.read_text())
    for row in data["rows"]:
        told = ", ".join(f"{name} {value}" for name, value in row.items())
        yield f"{part} ({data['provenance']['size']}): {told}"
