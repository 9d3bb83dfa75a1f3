"""``workbench layers --operators``: a model as the flat list of operators that plans of Aceso cut.

The lists are those of model/operators; parameters are counted in the modules that train them, which
are made without values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.core.aligned import aligned
from workbench.core.model_spec import BOTTLENECKS, T5_FAMILY, T5_LIKE_GPT, ModelSpec
from workbench.model.named import LISTS, bottlenecks_of
from workbench.model.operators import OperatorList, operator_list
from workbench.model.operators.places import list_of, places

if TYPE_CHECKING:
    from torch import nn

STANDS = f"{T5_FAMILY} has layers of its own; these are the operators of {T5_LIKE_GPT}"


def listed(spec: ModelSpec) -> tuple[list[dict[str, Any]], list[str]]:
    """A row an operator, and notes for people. Raises ValueError for a model without a list."""
    notes = []
    if spec.family == T5_FAMILY:
        spec = replace(spec, family=T5_LIKE_GPT, gated=False, pretrained="")
        notes = [STANDS]
    if (name := list_of(spec)) is None:
        raise ValueError(f"the model is {spec.family}; operators are listed of {', '.join(LISTS)}, "
                         "and of Llama's by --hf-config")  # fmt: skip
    if spec.decoder_layers not in (None, spec.layers):
        raise ValueError(
            f"decoder_layers is {spec.decoder_layers}; the list has as many layers in both halves, "
            f"so make it {spec.layers}"
        )
    layers = bottlenecks_of(spec.layers) if spec.family == BOTTLENECKS else spec.layers
    found = operator_list(name, layers)
    counts = _parameters(spec, found)
    rows = [
        {
            "operator": place,
            "name": each.name,
            "kind": each.kind,
            "parameters": next(counts),
            "tunable": each.tunable,
            "passes_on": [extra.name for extra in found.alive(place + 1)],
        }
        for place, each in enumerate(found.operators)
    ]
    return rows, notes


def _parameters(spec: ModelSpec, found: OperatorList) -> Iterator[int]:
    """Parameters of each operator in order; those that two have in common are in both."""
    import torch

    from workbench.model.families import module_of

    if not spec.decomposed:
        return _of_units(spec, found)
    with torch.device("meta"):
        operators = module_of(spec, 0).operators()
    return (_size(module) for _, module in operators)


def _of_units(spec: ModelSpec, found: OperatorList) -> Iterator[int]:
    from workbench.model import make_model
    from workbench.model.sharded import MODULES
    from workbench.runtime.transport.collectives import Columns

    model, alone = make_model(spec), (Columns(None), Columns(None))
    tied = model.tied()
    for each, place in zip(found.operators, places(found, spec), strict=True):
        own = [(place.unit, place.local(name)) for name in
               MODULES[each.kind](spec, place, *alone).shards]  # fmt: skip
        owners = (tied.get(key, key) for key in own)
        yield sum(model.shapes(unit)[name].numel() for unit, name in owners)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def lines_of(rows: list[dict[str, Any]]) -> list[str]:
    """A table for people; operators that layers repeat have a line."""
    times = Counter(row["name"] for row in rows)
    first = {row["name"]: row for row in reversed(rows)}
    table = [("operator", "times", "kind", "parameters", "tunable", "beside its output")]
    for name in times:
        row = first[name]
        table.append((
            name, str(times[name]), row["kind"], f"{row['parameters']:,}",
            "yes" if row["tunable"] else "", ", ".join(row["passes_on"]),
        ))  # fmt: skip
    return [*aligned(table, right=(1, 3)), f"{len(rows)} operators"]
