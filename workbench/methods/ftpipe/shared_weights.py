"""Weights that several stages use: the first of them owns one, the others have copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.nn import Parameter

from workbench.model.base import LayeredModel
from workbench.runtime.passes.unit_stage import UnitStage
from workbench.runtime.transport.neighbours import group
from workbench.runtime.updates.stage_loans import StageLoans
from workbench.runtime.updates.step_end import Tie


def loans(
    model: LayeredModel, stages: Sequence[range], here: Mapping[int, UnitStage]
) -> StageLoans:
    """Weights that the stages of this process, which are `here`, lend to others and borrow."""
    stage_of = _stage_of(stages)
    lent: dict[tuple[int, int], dict[tuple[int, str], Parameter]] = {}
    borrowed: dict[tuple[int, int], list[Parameter]] = {}
    for (unit, _), (owner, name) in model.tied().items():
        pair = stage_of[owner], stage_of[unit]
        if pair[0] != pair[1] and pair[0] in here:
            weight = here[pair[0]].modules[owner].get_parameter(name)
            lent.setdefault(pair, {})[owner, name] = weight
    for stage, own in here.items():
        for (owner, _), copy in own.borrowed.items():
            borrowed.setdefault((stage_of[owner], stage), []).append(copy)
    return StageLoans({pair: [*own.values()] for pair, own in lent.items()}, borrowed)


def ties(
    model: LayeredModel, stages: Sequence[range], here: Mapping[int, UnitStage],
    positions: Sequence[int], rank: int,
) -> list[Tie]:  # fmt: skip
    """Trained weights, whose gradients are added up at the end of a step, of all stages that use
    them. Every rank asks, since groups are made."""
    stage_of = _stage_of(stages)
    users: dict[tuple[int, str], set[int]] = {}
    for (unit, _), lender in model.tied().items():
        if model.learns(*lender):
            users.setdefault(lender, {stage_of[lender[0]]}).add(stage_of[unit])
    found = []
    for (owner, lent), held in users.items():
        ranks = {positions[stage] for stage in held}
        others = group(ranks, "gloo") if len(held) > 1 else None
        if rank not in ranks or len(held) == 1:
            continue
        copies = [own.borrowed.get((owner, lent)) for own in here.values()]
        grads = [copy.grad for copy in copies if copy is not None]
        if owns := stage_of[owner] in here:
            module = here[stage_of[owner]].modules[owner]
            grads.insert(0, module.get_parameter(lent).grad)
        found.append(Tie(grads[0], others, grads[1:], owns))
    return found


def _stage_of(stages: Sequence[range]) -> dict[int, int]:
    return {unit: number for number, own in enumerate(stages) for unit in own}
