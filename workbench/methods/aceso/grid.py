"""The best uniform plan, of a grid as Megatron-LM's users try it (Aceso, EuroSys'24 artifact).

Stages have equal numbers of layers, devices, tp and dp; all operators are recomputed, or none. GPT
and T5 are cut only where every stage has as many layers; T5's stages belong to its encoder or its
decoder; what is left of a Wide-ResNet's blocks goes to the last stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

from workbench.methods.aceso.plan import Plan, Stage
from workbench.methods.aceso.search import Found, Step
from workbench.methods.aceso.searches import Outcome
from workbench.methods.aceso.space import MOST_OF_STAGE, Space, uniform


def grid(space: Space, counts: range) -> Outcome:
    """The best point of each number of stages, and how many there are."""
    outcome = Outcome(space=space)
    for count in counts:
        for micro, stages in points(space, count):
            rated = space.rated(micro, stages)
            found = outcome.found.setdefault(count, Found(best=rated))
            found.explored += 1
            if space.rank(rated) <= space.rank(found.best):
                found.best = rated
                if space.fits(rated.cost):
                    found.curve.append(Step(found.explored, rated.cost.time))
    outcome.whole = True
    return outcome


def as_megatron(plan: Plan) -> dict[str, int | str]:
    """Fields of a run by which the real Megatron-LM trains a point of the grid.

    Raises ValueError for a model of which it runs here no stages.
    """
    first, subject = plan.stages[0], plan.subject
    if subject.model != "gpt":
        raise ValueError(f"the plan is of {subject.model}; Megatron-LM trains its gpt here")
    return {
        "ranks": plan.gpus, "tp": first.tp[0], "pp": len(plan.stages), "batch": subject.batch,
        "microbatches": subject.batch // plan.micro,
        "activations": "recompute" if any(map(any, (s.recompute for s in plan.stages))) else "keep",
    }  # fmt: skip


def points(space: Space, count: int) -> Iterator[tuple[int, tuple[Stage, ...]]]:
    """Plans of the grid with `count` stages."""
    gpus, rest = divmod(space.cluster.gpus, count)
    if rest or gpus > MOST_OF_STAGE:
        return
    sizes = [2**k for k in range(gpus.bit_length()) if gpus % 2**k == 0]
    for cuts, tp, micro, again in product(cuts_of(space, count), sizes, space.micros, (0, 1)):
        stages = tuple(
            _flagged(space, uniform(b - a, tp, gpus // tp), a, again) for a, b in pairwise(cuts)
        )
        if space.legal(micro, stages):
            yield micro, stages


def cuts_of(space: Space, count: int) -> Iterator[list[int]]:
    """First operators of `count` stages, and the number of all."""
    operators = space.costs.operators
    layers, towers, total = operators.layers, operators.towers, len(operators)
    uneven = space.subject.model == "resnet"
    if len(towers) == 1 or count == 1:
        each, rest = divmod(len(layers), count)
        if each and (uneven or not rest or count == 1):
            yield [0, *(layers[each * i] for i in range(1, count)), total]
        return
    first, second = towers
    for left in range(1, count):
        right = count - left
        if first % left or second % right:
            continue
        middle = layers[first] - 1  # the decoder's embedding
        head = [layers[first // left * i] for i in range(1, left)]
        tail = [layers[first + second // right * i] for i in range(1, right)]
        yield [0, *head, middle, *tail, total]


def _flagged(space: Space, stage: Stage, first: int, again: int) -> Stage:
    """All recomputed but for a transformer's embedding and head."""
    flags = bytearray([again]) * len(stage.tp)
    if again and space.subject.model != "resnet":
        if first == 0:
            flags[0] = 0
        if first + len(flags) == len(space.costs.operators):
            flags[-1] = 0
    return stage._replace(recompute=bytes(flags))
