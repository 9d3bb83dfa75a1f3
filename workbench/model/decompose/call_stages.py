"""Any sets of a module's calls as layers (Eliad et al., ATC'21: stages of an operator graph).

A set has its calls in the module's order, and sets run one after another, in any order that reads
what was made before. A tensor that is read further on crosses every set on the way, and what
depends on weights alone is made again in each set that reads it, which then shares the weights.
Calls that touch memory which one of them writes to are in one set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from workbench.core.call_sets import CallSets
from workbench.model.decompose import Layer, layers_of
from workbench.model.decompose.cut import Cutter
from workbench.model.decompose.operators import CallTrace, Operator, operators_of


def call_stages(
    model: nn.Module, inputs: tuple[Tensor, ...], calls: CallSets,
    criterion: Callable | None = None, named: Mapping[str, Any] | None = None,
) -> tuple[list[Layer], list[list[Operator]]]:  # fmt: skip
    """The layers, in order, as `decompose` gives them, and the operators of each; `inputs` and
    `named` are what the module is called with. Raises ValueError for calls that are not those of
    the module, and for sets that cannot run."""
    depth = calls.depth and calls.depth + calls.inside.count(".")
    traced = CallTrace.of(model, inputs, basic=calls.basic, depth=depth, named=named)
    found, set_of = operators_of(traced), calls.set_of
    if calls.inside:
        behind = range(1 + max(set_of), len(traced.trace.calls))
        set_of |= dict.fromkeys(behind, len(calls.sets) - 1)
    for one in found:
        name = one.name.replace(f".{calls.inside}", ".", 1)
        own = name != one.name or one.number in calls.set_of
        if calls.names and own and name not in calls.names:
            raise ValueError(f"call {name} of the module is none of the partition's")
    _check(found, set_of, len(traced.trace.calls))
    cutter = Cutter(traced.trace, traced.blocks, model, again=True, set_of=set_of)
    layers = layers_of(model, traced.trace, traced.mode, cutter.pieces(), criterion)
    own = [[one for one in found if set_of[one.number] == n] for n in range(len(calls.sets))]
    return layers, own


def _check(found: Sequence[Operator], set_of: Mapping[int, int], count: int) -> None:
    """Raise ValueError for sets of other calls, and for an order in which they cannot run. Of
    `count` calls those that are made again where they are read may be in any set."""
    for one in found:
        if one.number not in set_of:
            raise ValueError(f"call {one.name} is in no stage; partition the module again")
    if (most := max(set_of)) >= count:
        raise ValueError(f"there is no call {most}: the module has {count}; partition it again")
    if lost := {*set_of.values()} - {set_of[one.number] for one in found}:
        raise ValueError(
            f"stage {min(lost)} has no call that depends on what the module is called with: what "
            "depends on weights alone is made where it is read; partition the module again"
        )
    made: dict[int, Operator] = {}
    touches: dict[int, Operator] = {}
    for one in found:
        for source in (made[n] for n in one.reads if n in made):
            if set_of[source.number] > set_of[one.number]:
                raise ValueError(
                    f"call {one.name} of stage {set_of[one.number]} reads what {source.name} makes "
                    f"in stage {set_of[source.number]}; it can only come later"
                )
        for memory in one.memory:
            other = touches.setdefault(memory, one)
            if set_of[other.number] != set_of[one.number]:
                raise ValueError(
                    f"calls {other.name} and {one.name} touch memory that is written to, and must "
                    f"be in one stage; they are in {set_of[other.number]} and {set_of[one.number]}"
                )
        made |= dict.fromkeys(one.makes, one)
