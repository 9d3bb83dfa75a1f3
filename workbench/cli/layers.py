"""``workbench layers``: what a model is cut into, before anything runs.

Planners and runtimes know a model as a list of units. What a unit owns, and what flows into it,
decides what packs can be; of a decomposed module it is also the only place where a user sees how
it was cut. Units are made without values; only a user's own module is run, once, beside its layers.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any

from workbench.cli import operators
from workbench.core.aligned import aligned
from workbench.core.model_spec import ModelSpec

if TYPE_CHECKING:
    from workbench.model.base import LayeredModel, Part


def show_layers(arguments: argparse.Namespace, spec: ModelSpec) -> None:
    """Print a model's units, or its operators, and notes. Raises ValueError."""
    if arguments.operators:
        (rows, notes), lines = operators.listed(spec), operators.lines_of
    else:
        (rows, notes), lines = looked_at(spec), lines_of
    print(json.dumps(rows, indent=1) if arguments.json else "\n".join(lines(rows)))
    for note in notes:
        print(note, file=sys.stderr)


def looked_at(spec: ModelSpec) -> tuple[list[dict[str, Any]], list[str]]:
    """A row a unit, and notes for people. Raises ValueError for a model that cannot be made, and
    for one that is not ours and whose layers would train otherwise than it does; these are
    compared as before a run, on samples that are made up."""
    from workbench.model import make_model

    model = make_model(spec)
    if spec.ours:
        return rows_of(spec, model), []
    from workbench.training.compared import made_up_rows, notes_of

    return rows_of(spec, model), notes_of(spec, model, made_up_rows(spec), 0)


def rows_of(spec: ModelSpec, model: LayeredModel) -> list[dict[str, Any]]:
    """A row a unit: its number, layer, own parameters, the unit whose weights it borrows, and what
    flows into it for one sample."""
    lenders = {unit: owner for (unit, _), (owner, _) in model.tied().items() if unit != owner}
    return [
        {
            "unit": unit,
            "layer": model.kind(unit),
            "parameters": model.unit_parameters(unit),
            "borrows_of": lenders.get(unit),
            "takes": [_told(part) for part in model.boundary(unit, spec.seq)] if unit else ["data"],
        }
        for unit in range(model.num_units)
    ]


def _told(part: Part) -> str:
    shape = " x ".join(map(str, part.full_shape(1)))
    kind = "" if part.dtype is None else f" {str(part.dtype).removeprefix('torch.')}"
    grows = ", the same for all samples" if part.batch_dim is None else ""
    return f"[{shape}]{kind}{grows}" + ("" if part.differentiable else ", no gradient")


def lines_of(rows: list[dict[str, Any]]) -> list[str]:
    """A table for people; units that differ in their number only share a line."""
    found = [("unit", "layer", "parameters", "takes, of one sample")]
    for _, alike in groupby(rows, key=_looks):
        first, *others = alike
        last = others[-1] if others else first
        unit, layer = str(first["unit"]), first["layer"]
        if others:
            unit = f"{unit}-{last['unit']}"
            layer = layer if layer == last["layer"] else f"{layer} to {last['layer']}"
        takes = "; ".join(first["takes"])
        if first["borrows_of"] is not None:
            takes += f"; weights of unit {first['borrows_of']}"
        found.append((unit, layer, f"{first['parameters']:,}", takes))
    total = sum(row["parameters"] for row in rows)
    return [*aligned(found, right=(0, 2)), f"{len(rows)} units, {total:,} parameters"]


def _looks(row: dict[str, Any]) -> tuple[Any, ...]:
    layer = re.sub(r"\d+", "#", row["layer"])
    return layer, row["parameters"], row["borrows_of"], tuple(row["takes"])
