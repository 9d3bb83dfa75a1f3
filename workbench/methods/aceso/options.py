"""Options of Aceso: the plan that is trained."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from workbench.core.model_spec import ModelSpec
from workbench.core.options import Options as Common
from workbench.core.paths import user_path
from workbench.core.spec import RunSpec
from workbench.methods.aceso.plan import Plan, load_plan
from workbench.model.named import LISTS, SHAPE, bottlenecks_of
from workbench.model.operators.llama_places import LLAMA, is_llama, llama_shape

PLANS = "plans"
"""Folder, among results, of plans that were trained, each under its digest."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Aceso's options."""

    plan: str = ""
    """File of the plan, as the search writes it; the model's sizes and the batch are the plan's. A
    plan that was trained is kept among the results, under its digest."""
    fused: bool = True
    """Whether attention, from scores to context, is one call where the plan divides all of it
    alike."""

    uneven: ClassVar[bool] = True

    def settled(self, spec: RunSpec, results: Path) -> dict[str, Any]:
        """The plan's digest, its model and batch. Keeps the plan."""
        if not self.plan:
            raise ValueError("plan is missing; give the file of a plan: --plan FILE")
        plan = plan_of(self.plan, results)
        check(plan, spec.ranks)
        model = model_of(plan, spec.model)
        text = plan.to_json()
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        kept = results / PLANS / f"{digest}.json"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(text)
        return {
            "plan": digest, "model": model, "batch": plan.subject.batch,
            "microbatches": -(-plan.subject.batch // plan.micro),
        }  # fmt: skip


def plan_of(named: str, results: Path) -> Plan:
    """The plan of a digest among results, or of a file. Raises ValueError."""
    kept = results / PLANS / f"{named}.json"
    path = kept if kept.is_file() else user_path(named)
    if not path.is_file():
        raise ValueError(f"plan is {named!r}; there is no such file, and no such digest among runs")
    return load_plan(path)


def check(plan: Plan, ranks: int) -> None:
    """Raise ValueError for a plan that so many ranks do not train."""
    subject, operators = plan.subject, plan.subject.operators()
    if plan.gpus != ranks:
        raise ValueError(
            f"ranks is {ranks}; the plan is for {plan.gpus} devices: give --ranks {plan.gpus}"
        )
    most = max(max(stage.algo) for stage in plan.stages)
    if most >= operators.partitions:
        raise ValueError(
            f"the partition dimension of an operator is {most}; {subject.model} has the usual one "
            "alone, 0"
        )
    shape = dict(subject.shape)
    hidden, heads = shape.get("hidden_size", 0), shape.get("num_attention_heads", 1)
    if "kv_channels" not in shape and hidden % heads:
        raise ValueError(f"hidden_size is {hidden}; {heads} heads must divide it")
    if isinstance(subject.layers, tuple) and subject.layers != bottlenecks_of(sum(subject.layers)):
        raise ValueError(
            f"num_layers is {list(subject.layers)}; of so many blocks trained are "
            f"{list(bottlenecks_of(sum(subject.layers)))}"
        )


def model_of(plan: Plan, spec: ModelSpec) -> ModelSpec:
    """The plan's model; vocabulary, dropout and ties are the spec's."""
    sizes = {SHAPE[key]: value for key, value in plan.subject.shape if key in SHAPE}
    layers = plan.subject.layers
    if isinstance(layers, tuple):
        layers, sizes["heads"], sizes["tied"] = sum(layers), 1, False
    if plan.subject.model == LLAMA:
        check_llama(plan, spec)
        return replace(spec, seq=sizes["seq"])
    family = next(each for each, name in LISTS.items() if name == plan.subject.model)
    return replace(spec, family=family, layers=layers, **sizes)


def check_llama(plan: Plan, spec: ModelSpec) -> None:
    """Raise ValueError for a configuration of another model than the plan's."""
    if not is_llama(spec):
        raise ValueError(f"the plan is of {LLAMA}; its configuration is missing: give --hf-config "
                         "FILE")  # fmt: skip
    own, there = llama_shape(spec.family), dict(plan.subject.shape)
    wanted = {
        "num_layers": spec.layers, "hidden_size": spec.hidden, "num_attention_heads": spec.heads,
        "num_key_value_heads": own.keys, "ffn_hidden_size": own.inner,
    }  # fmt: skip
    there["num_layers"] = plan.subject.layers
    for key, value in wanted.items():
        if there[key] != value:
            raise ValueError(f"{key} is {there[key]}; {spec.family} has {value}")
