"""Options of Aceso: the plan that is trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from workbench.core import host
from workbench.core.model_spec import ModelSpec
from workbench.core.options import Options as Common
from workbench.core.paths import user_path
from workbench.core.spec import RunSpec
from workbench.methods.aceso.plan import Plan, load_plan, read_plan
from workbench.model.named import ALSO, LISTS, SHAPE, bottlenecks_of
from workbench.model.operators import MODULE
from workbench.model.operators.llama_places import LLAMA, is_llama, llama_shape

PLANS = "plans"
"""Folder, among results, of plans that were trained, each under its digest."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Aceso's options."""

    plan: str = ""
    """File of the plan, as the search writes it. The model and the batch are the plan's; widths,
    lengths and a batch that are given beside it take the places of its own, so that a machine with
    less memory trains it narrower. A plan that was trained is kept among the results, under its
    digest."""
    fused: bool = True
    """Whether attention, from scores to context, is one call where the plan divides all of it
    alike."""

    uneven: ClassVar[bool] = True

    @classmethod
    def fields_of_files(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The plan's model, with the published vocabulary, and its batch."""
        path = user_path(str(given.get("plan") or ""))
        if not path.is_file():
            return {}
        plan = load_plan(path)
        batch = {"batch": plan.subject.batch}
        if plan.subject.model == LLAMA:
            return batch
        sizes = sizes_of(plan)
        return {"model": ALSO[sizes["family"]] | sizes, **batch}

    def settled(self, spec: RunSpec, results: Path) -> dict[str, Any]:
        """The plan's digest, and its number of micro-batches. Keeps the plan."""
        if not self.plan:
            raise ValueError("plan is missing; give the file of a plan: --plan FILE")
        if spec.compile == "on" and (device := host.resolve_device(spec.device)) != "cuda":
            raise ValueError(f"compile is on, and the device is {device}; it must be cuda, or off")
        plan = narrowed(plan_of(self.plan, results), spec)
        check(plan, spec.ranks)
        micros = -(-plan.subject.batch // plan.micro)
        if spec.microbatches not in (1, micros):
            raise ValueError(f"microbatches is {spec.microbatches}; the plan has micro-batches of "
                             f"{plan.micro} samples, so it must be {micros}")  # fmt: skip
        model = model_of(plan, spec.model)
        return {"plan": keep(plan, results), "model": model, "microbatches": micros}


def keep(plan: Plan, results: Path) -> str:
    """Write a plan among results. Returns its digest, by which a run names it."""
    kept = results / PLANS / f"{digest(plan)}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(plan.to_json())
    return digest(plan)


def digest(plan: Plan) -> str:
    """Name of a plan among results."""
    return hashlib.sha256(plan.to_json().encode()).hexdigest()[:16]


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
    if isinstance(subject.layers, tuple) and subject.layers != bottlenecks_of(sum(subject.layers)):
        raise ValueError(
            f"num_layers is {list(subject.layers)}; of so many blocks trained are "
            f"{list(bottlenecks_of(sum(subject.layers)))}"
        )


def sizes_of(plan: Plan) -> dict[str, Any]:
    """Fields of the plan's model that its operators decide. Raises ValueError for a plan of a
    user's own module."""
    if plan.subject.model == MODULE:
        raise ValueError(
            f"the plan is for the layers of {plan.subject.size}; Engine(module, {{...}}, "
            "method='aceso', plan=plan) trains it in a loop of your own"
        )
    sizes: dict[str, Any] = {SHAPE[key]: own for key, own in plan.subject.shape if key in SHAPE}
    layers = plan.subject.layers
    if isinstance(layers, tuple):
        layers, sizes["heads"], sizes["tied"] = sum(layers), 1, False
    family = next(each for each, name in LISTS.items() if name == plan.subject.model)
    return {"family": family, "layers": layers, **sizes}


def model_of(plan: Plan, spec: ModelSpec) -> ModelSpec:
    """The plan's model; vocabulary, dropout and ties are the spec's."""
    if plan.subject.model == LLAMA:
        check_llama(plan, spec)
        return replace(spec, seq=dict(plan.subject.shape)["seq_length"])
    return replace(spec, **sizes_of(plan))


def narrowed(plan: Plan, spec: RunSpec) -> Plan:
    """The plan with a spec's widths, lengths and batch, its operators as they are; of a model with
    a configuration the batch alone may be another. Raises ValueError for a spec of another model,
    and for widths that the plan does not divide."""
    shape = dict(plan.subject.shape)
    told = _told(plan, spec.model) if plan.subject.model != LLAMA else {}
    if told.items() <= shape.items() and spec.batch == plan.subject.batch:
        return plan
    made = plan.to_dict() | told | {"global_batch_size": spec.batch}
    return read_plan(json.dumps(made), "the plan, with other sizes")


def _told(plan: Plan, model: ModelSpec) -> dict[str, int]:
    """The model's widths and lengths by the keys of the plan's file."""
    sizes = sizes_of(plan)
    for name in ("family", "layers", "decoder_layers"):
        wanted = sizes.get(name, sizes["layers"])
        if (given := getattr(model, name)) not in (wanted, *[None] * (name == "decoder_layers")):
            raise ValueError(f"{name} is {given!r}; the plan deals the operators of {wanted!r}, "
                             "and widths and lengths alone may be others")  # fmt: skip
    own = ((key, getattr(model, SHAPE[key])) for key, _ in plan.subject.shape if key in SHAPE)
    return {key: value for key, value in own if value is not None}


def check_llama(plan: Plan, spec: ModelSpec) -> None:
    """Raise ValueError for a configuration of another model than the plan's."""
    if not is_llama(spec):
        raise ValueError(f"the plan is of {LLAMA}; its configuration is missing: give --hf-config "
                         "FILE")  # fmt: skip
    if spec.attention:
        raise ValueError(f"attention is {spec.attention!r}; a plan's operators have their own: "
                         "leave it out")  # fmt: skip
    own, there = llama_shape(spec.family), dict(plan.subject.shape)
    wanted = {
        "num_layers": spec.layers, "hidden_size": spec.hidden, "num_attention_heads": spec.heads,
        "num_key_value_heads": own.keys, "ffn_hidden_size": own.inner,
    }  # fmt: skip
    there["num_layers"] = plan.subject.layers
    for key, value in wanted.items():
        if there[key] != value:
            raise ValueError(f"{key} is {there[key]}; {spec.family} has {value}")
