"""Plans of one stage on one GPU beside what is predicted of them, and divided plans beside plain
training; a processor plays both with ``--size smoke``.

    python -m benchmarks.aceso --only gpu-one-stage gpu-exact [--database PROFILES] --out FOLDER

``gpu-one-stage``: six kinds of recomputation; a model that PROFILES lacks is profiled first. All
plans train in this process, from weights that are drawn once. ``gpu-exact``: 2 and 4 processes on
the one device, fp32 without TF32 and without dropout.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch.distributed as dist
from torch import Tensor

from benchmarks.aceso_gpu import Bench, measured_profile
from benchmarks.aceso_steps import Drawn, stepped
from benchmarks.rows import Row, Rows, pairs_file
from workbench.core.methods import imported, lookup
from workbench.core.model_spec import T5_LIKE_GPT, ModelSpec
from workbench.core.reporter import Untold
from workbench.core.spec import RunSpec
from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.options import keep, model_of
from workbench.methods.aceso.plan import Plan, Stage, Subject, subject_of
from workbench.methods.aceso.space import Cluster
from workbench.model import make_model
from workbench.model.operators import Operator
from workbench.runtime.checkpoint import checkpoint
from workbench.training import trained_ranks

STEPS = 5
KINDS: dict[str, Callable[[Operator, int, float], bool]] = {
    "none": lambda operator, layer, lot: False,
    "all": lambda operator, layer, lot: True,
    "every second layer": lambda operator, layer, lot: layer % 2 == 0,
    "attention": lambda operator, layer, lot: "attention" in operator.name,
    "MLP": lambda operator, layer, lot: "MLP" in operator.name,
    "by lot": lambda operator, layer, lot: lot < 0.5,
}
"""Which operators are computed again: of an operator, its layer's number and a lot from 0 to 1."""
FEWER = ("none", "all", "by lot")
WITHIN = ("softmax", "dropout", "context")
"""Kinds that one call may compute together with the operator before."""


# -- predictions -----------------------------------------------------------------------------------


def one_stage(bench: Bench) -> Iterator[Row]:
    """Plans of one stage, with errors of their predictions."""
    rows: Rows = []
    for model, kinds in {"gpt": tuple(KINDS), "t5": FEWER}.items():
        subject = subject_of(model, bench.size.models[model], bench.size.batch)
        database = profiles(bench, subject)
        ask = Ask(subject=subject, cluster=Cluster(nodes=1, per_node=1, memory=1e6),
                  database=database, cost="ours")  # fmt: skip
        costs = ask.costs()
        with alone(bench, subject) as measure:
            for micro in bench.size.micros:
                for kind in kinds:
                    plan = Plan(subject, micro, (recomputed(subject, kind),))
                    stage, row = (cost := costs.plan(plan)).stages[0], measure(plan)
                    rows.append({
                        "what": f"{subject.name}, micro-batch {micro}, recomputed: {kind}",
                        "source": "measured", **row, "predicted_ms": cost.time,
                        "time_error": cost.time / row["step_ms"] - 1,
                        "predicted_mb": stage.tensors,
                        "peak_error": stage.tensors / row["peak_mb"] - 1,
                        "predicted_whole_mb": stage.memory,
                    })  # fmt: skip
                    yield rows[-1]
    yield {"what": f"{len(rows)} plans of one stage", "source": "from the rows above"} | {
        f"{name}_{how}": of([abs(row[name]) for row in rows])
        for name in ("time_error", "peak_error") for how, of in (("mean", fmean), ("worst", max))
    }  # fmt: skip


def recomputed(subject: Subject, kind: str) -> Stage:
    """A stage of the whole model; what one call computes is computed again together."""
    lots, layer, drawn, again = Random(0), -1, 0.0, bytearray()
    for operator in subject.operators().operators:
        layer += operator.starts_layer
        drawn = drawn if operator.kind in WITHIN else lots.random()
        again.append(KINDS[kind](operator, layer, drawn))
    ones = bytes([1] * len(again))
    return Stage(1, ones, ones, bytes(len(again)), bytes(again))


def profiles(bench: Bench, subject: Subject) -> Path:
    """A folder with profiles of a model, where no message is: of one that is given, else made."""
    folder = bench.work / subject.name
    if bench.database and any(bench.database.glob(f"{subject.name}_mbs*")):
        shutil.copytree(bench.database, folder)
    else:
        measured_profile(bench, subject, folder, bench.size.micros, (1,))
    if not (links := folder / "p2p_intra_node.csv").exists():
        links.write_text("1\n1.0\n")
    return folder


@contextmanager
def alone(bench: Bench, subject: Subject) -> Iterator[Callable[[Plan], Row]]:
    """In a world of one process: what trains a plan of a model."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    spec = _model(bench, subject)
    model = make_model(spec, 0)
    weights = Drawn(model, 0, bench.device)

    def measure(plan: Plan) -> Row:
        own = RunSpec.of(
            method="aceso", model=spec, batch=subject.batch, steps=STEPS, device=bench.device,
            microbatches=-(-subject.batch // plan.micro), plan=keep(plan, bench.work),
            dtype="bf16" if subject.half else "fp32", **_values(bench, spec),
        )  # fmt: skip
        return stepped(own, plan, model, weights, bench.work)

    try:
        yield measure
    finally:
        dist.destroy_process_group()


def _model(bench: Bench, subject: Subject) -> ModelSpec:
    plan = Plan(subject, 1, (recomputed(subject, "none"),))
    return model_of(plan, ModelSpec(vocab=bench.size.words[subject.model]))


def _values(bench: Bench, model: ModelSpec) -> dict[str, Any]:
    return {"text": pairs_file(bench.work)} if model.family == T5_LIKE_GPT else {}


# -- exactness -------------------------------------------------------------------------------------


def exact(bench: Bench) -> Iterator[Row]:
    """Plans of 2 and 4 processes on one device, each beside plain training of its batch."""
    model = ModelSpec(**bench.size.exact, dropout=0.0, tied=True)
    count, plain = 13 * model.layers + 3, {}
    inside = 13 * (model.layers // 2) + 4
    cases = {
        "4 stages of 1, cut inside attention and the MLP": (
            [(1, inside, (1,)), (1, inside + 2, (1,)), (1, inside + 8, (1,)), (1, count, (1,))],
            4, 10),
        "2, tp to dp inside the stage": ([(2, count, (2, 1))], 4, 10),
        "2 and 2, both mixed": ([(2, inside, (2,)), (2, count, (1, 2))], 2, 7),
        "4, tp 4 2 1": ([(4, count, (4, 2, 1))], 8, 11),
    }  # fmt: skip
    rows: Rows = []
    for number, (what, (ends, micro, batch)) in enumerate(cases.items()):
        plan = divided(model, ends, micro, batch)
        spec = RunSpec.of(
            method="aceso", model=model, batch=batch, ranks=plan.gpus, steps=bench.size.exact_steps,
            microbatches=-(-batch // micro), device=bench.device, dtype="fp32", lr=1e-4, clip=1.0,
            save_every=bench.size.exact_steps, plan=keep(plan, bench.work), compile="off",
        )  # fmt: skip
        if batch not in plain:
            one = spec.with_(method="plain", ranks=1, microbatches=1)
            folder = bench.work / "runs" / f"plain-{batch}"
            found = imported(lookup("plain").module).train(one, Untold(), folder)
            plain[batch] = found.losses, weights_of(folder)
        folder, began = bench.work / "runs" / f"{number}", time.monotonic()
        found = trained_ranks.train(
            "workbench.methods.aceso.run", spec, Untold(), folder,
            teller=plan.gpus - plan.stages[-1].gpus, devices=[0] * plan.gpus,
        )  # fmt: skip
        losses, wanted = plain[batch]
        own = weights_of(folder)
        rows.append({
            "what": what, "source": "measured", "processes": plan.gpus, "micro": micro,
            "batch": batch, "seconds": time.monotonic() - began, "losses": found.losses,
            "reference": losses,
            "loss_apart": max(abs(a / b - 1) for a, b in zip(found.losses, losses, strict=True)),
            "weights_apart": max(float((own[n] - w).abs().max()) for n, w in wanted.items()),
        })  # fmt: skip
        yield rows[-1]
    yield {"what": f"{len(rows)} divided plans", "source": "from the rows above"} | {
        name: max(row[name] for row in rows) for name in ("loss_apart", "weights_apart")
    }


def divided(
    model: ModelSpec, ends: list[tuple[int, int, tuple[int, ...]]], micro: int, batch: int
) -> Plan:
    """A plan of GPT: devices, end and numbers of tp of each stage, which change by turns, as do the
    partition dimension and recomputation."""
    stages, first = [], 0
    for gpus, end, tps in ends:
        tp = bytes(tps[at // 2 % len(tps)] for at in range(first, end))
        stages.append(Stage(
            gpus, tp, bytes(gpus // each for each in tp),
            bytes(at // 3 % 2 for at in range(first, end)),
            bytes(at % 5 > 2 for at in range(first, end)),
        ))  # fmt: skip
        first = end
    tiny = subject_of("gpt", "tiny", batch, layers=model.layers)
    own = {"hidden_size": model.hidden, "num_attention_heads": model.heads,
           "seq_length": model.seq, "max_position_embeddings": model.seq}  # fmt: skip
    shape = tuple((key, own.get(key, value)) for key, value in tiny.shape)
    return Plan(replace(tiny, shape=shape), micro, tuple(stages))


def weights_of(folder: Path) -> dict[str, Tensor]:
    """Weights of a run's last checkpoint, by their names."""
    saved = next(checkpoint.whole(folder / "checkpoints"))
    found = checkpoint.tensors_of(saved, saved.manifest.files)
    return {label: tensor.clone() for label, tensor in found.items() if label.startswith("weight/")}


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "gpu-one-stage": one_stage, "gpu-exact": exact,
}  # fmt: skip
