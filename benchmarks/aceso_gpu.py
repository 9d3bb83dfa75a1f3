"""Aceso's figures that one GPU gives; a processor plays it with ``--size smoke``.

    python -m benchmarks.aceso --only gpu-profile gpu-uneven --size smoke --out FOLDER

Each part stands for itself: it prints lines, and writes its rows to ``FOLDER/PART.json`` with the
machine they were measured on. Profiles are left in ``FOLDER/profiles``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.rows import Row
from workbench.core.model_spec import ModelSpec
from workbench.core.reporter import Untold
from workbench.core.spec import RunSpec
from workbench.methods.aceso.options import model_of
from workbench.methods.aceso.plan import Plan, Stage, Subject, subject_of
from workbench.methods.aceso.profiled import Exchanges, chain_of, variants_of, write_profiles
from workbench.model.operators.sizes import VOCABULARY
from workbench.profile.shard_store import shard_costs
from workbench.profile.shards import Repeats
from workbench.profile.store import silent
from workbench.training import trained_ranks

Part = Callable[["Bench"], Iterable[Row]]
FIRST = 0.57
"""Part of the operators that the first of two uneven stages has."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Models and how they are divided."""

    models: Mapping[str, str]
    words: Mapping[str, int]
    samples: tuple[int, ...] = (1, 2, 4, 8)
    tps: tuple[int, ...] = (1, 2, 4, 8)
    repeats: Repeats = field(default_factory=Repeats)
    micros: tuple[int, ...] = (1, 4)
    """Samples of the micro-batches of plans of one stage."""
    batch: int = 8
    exact: Mapping[str, int]
    """A model that trains in fp32 as one process does, and its steps."""
    exact_steps: int = 10


SIZES = {
    "full": Size(models={"gpt": "1_3B", "t5": "770M"}, words=VOCABULARY,
                 exact={"layers": 4, "hidden": 512, "heads": 8, "seq": 256, "vocab": 2048}),
    "smoke": Size(models={"gpt": "tiny", "t5": "tiny"}, words={"gpt": 256, "t5": 258},
                  samples=(1, 2), tps=(1, 2), repeats=Repeats(warmup=1, times=(3,)), micros=(2,),
                  exact={"layers": 2, "hidden": 16, "heads": 4, "seq": 8, "vocab": 256},
                  exact_steps=3, batch=4),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The setting of all parts."""

    size: Size
    out: Path
    work: Path
    device: str
    """``cuda`` or ``cpu``."""
    database: Path | None = None
    """Profiles of this machine."""


def profile(bench: Bench) -> Iterable[Row]:
    """Profiles of GPT for every tp, micro-batch and dimension, and of T5 for two devices."""
    size = bench.size
    for model, tps in {"gpt": size.tps, "t5": size.tps[:2]}.items():
        subject = subject_of(model, size.models[model], 1)
        yield measured_profile(bench, subject, bench.out / "profiles", size.samples, tps)


def measured_profile(
    bench: Bench, subject: Subject, folder: Path, samples: Iterable[int], tps: Iterable[int]
) -> Row:
    """Profile a model into a folder; how long that took, and how far times spread."""
    model, began = ModelSpec(vocab=bench.size.words[subject.model]), time.monotonic()
    chain = chain_of(subject, model, fused=True)
    variants = variants_of(chain, samples, tps)
    costs = shard_costs(chain, variants, folder.parent, silent, device=bench.device,
                        repeats=bench.size.repeats, fresh=True)  # fmt: skip
    files = write_profiles(folder, subject.name, chain, costs, variants, Exchanges(None))
    there = [cost for cost in costs.costs.values() if cost]
    return {
        "what": subject.name, "source": "measured", "files": len(files),
        "shards": len(costs.costs), "no_room": len(costs.costs) - len(there),
        "profiled_s": time.monotonic() - began,
        "median_forward_spread": median(cost.forward_spread for cost in there),
        "median_backward_spread": median(cost.backward_spread for cost in there),
    }  # fmt: skip


def uneven(bench: Bench) -> Iterable[Row]:
    """GPT in two uneven stages, five steps, in two processes of one device."""
    size = bench.size
    subject = subject_of("gpt", size.models["gpt"], 8)
    count = len(subject.operators())
    cut, stages = round(FIRST * count), []
    for operators in (cut, count - cut):
        alike, again = bytes([1] * operators), bytes(at % 3 > 0 for at in range(operators))
        stages.append(Stage(1, alike, alike, bytes(operators), again))
    plan = Plan(subject=subject, micro=1, stages=tuple(stages))
    file = bench.work / "plan.json"
    file.write_text(plan.to_json())
    spec = RunSpec.of(
        method="aceso", model=model_of(plan, ModelSpec(vocab=size.words["gpt"])), batch=8, ranks=2,
        microbatches=8, steps=5, device=bench.device, plan=str(file),
        dtype="bf16" if bench.device == "cuda" else "fp32",
    )  # fmt: skip
    found = trained_ranks.train(
        "workbench.methods.aceso.run", spec, Untold(), bench.work / "runs" / "run", teller=1,
        devices=[0, 0],
    )  # fmt: skip
    yield {
        "what": f"{subject.name}, {cut} and {count - cut} operators", "source": "measured",
        "parameters": found.parameters, "losses": found.losses,
        "step_s": median(found.step_seconds[1:]), "peak_bytes": found.peak_bytes["device"],
    }  # fmt: skip


PARTS: dict[str, Part] = {"gpu-profile": profile, "gpu-uneven": uneven}
