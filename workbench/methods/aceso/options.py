"""Options of Aceso: the plan that is trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from workbench.core.options import Options as Common
from workbench.core.paths import user_path
from workbench.core.spec import RunSpec
from workbench.methods.aceso.plan import Plan, load_plan, read_plan
from workbench.model.named import ALSO, LISTS, SHAPE, bottlenecks_of

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
    def told(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The plan's model and batch."""
        path = user_path(str(given.get("plan") or ""))
        if not path.is_file():
            return {}
        plan = load_plan(path)
        return {"model": sizes_of(plan), "batch": plan.subject.batch}

    def settled(self, spec: RunSpec, results: Path) -> dict[str, Any]:
        """The plan's digest, and its number of micro-batches. Keeps the plan."""
        if not self.plan:
            raise ValueError("plan is missing; give the file of a plan: --plan FILE")
        plan = narrowed(plan_of(self.plan, results), spec)
        check(plan, spec.ranks)
        micros = -(-plan.subject.batch // plan.micro)
        if spec.microbatches not in (1, micros):
            raise ValueError(f"microbatches is {spec.microbatches}; the plan has micro-batches of "
                             f"{plan.micro} samples, so it must be {micros}")  # fmt: skip
        return {"plan": keep(plan, results), "microbatches": micros}


def keep(plan: Plan, results: Path) -> str:
    """Write a plan among results. Returns its digest, by which a run names it."""
    text = plan.to_json()
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    kept = results / PLANS / f"{digest}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text)
    return digest


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
    """Fields of the plan's model, with the published vocabulary."""
    family = next(each for each, name in LISTS.items() if name == plan.subject.model)
    layers = plan.subject.layers
    layers = layers if isinstance(layers, int) else sum(layers)
    own = {SHAPE[key]: value for key, value in plan.subject.shape if key in SHAPE}
    return {"family": family, **ALSO[family], "layers": layers, **own}


def narrowed(plan: Plan, spec: RunSpec) -> Plan:
    """The plan with a spec's widths, lengths and batch, its operators as they are. Raises
    ValueError for a spec of another model, and for widths that the plan does not divide."""
    model, sizes = spec.model, sizes_of(plan)
    for name in ("family", "layers", "decoder_layers"):
        wanted = sizes.get(name, sizes["layers"])
        if (given := getattr(model, name)) not in (wanted, *[None] * (name == "decoder_layers")):
            raise ValueError(f"{name} is {given!r}; the plan deals the operators of {wanted!r}, "
                             "and widths and lengths alone may be others")  # fmt: skip
    shape = dict(plan.subject.shape)
    told = {key: getattr(model, SHAPE[key]) for key in shape if key in SHAPE}
    wanted = shape | {key: value for key, value in told.items() if value is not None}
    if wanted == shape and spec.batch == plan.subject.batch:
        return plan
    made = plan.to_dict() | wanted | {"global_batch_size": spec.batch}
    return read_plan(json.dumps(made), "the plan, with other sizes")
