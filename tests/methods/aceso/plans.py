"""Plans of small models, by what each stage says of its operators."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.methods import plain
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.aceso.plan import Plan, Stage, Subject
from workbench.model.named import LISTS, SHAPE, bottlenecks_of
from workbench.model.operators import published_sizes

MODEL = ModelSpec(layers=2, hidden=16, heads=4, seq=8, vocab=256, dropout=0.1, tied=True)
T5 = ModelSpec(
    family="megatron-t5", layers=2, hidden=16, heads=4, head_size=8, feed_forward=24, seq=12,
    target_seq=6, vocab=258, dropout=0.1, tied=True,
)  # fmt: skip
PICTURES = ModelSpec(
    family="wide-resnet-imagenet", layers=4, hidden=4, heads=1, seq=64, vocab=10, width_factor=3,
    tied=False,
)  # fmt: skip
OPERATORS, T5_OPERATORS, PICTURE_OPERATORS = 29, 73, 38
KEYS = {**SHAPE, "max_position_embeddings": "seq"}
"""Sizes in a plan's file -> fields of a model."""
Rule = Callable[[int], tuple[int, int, bool]]
"""Number of an operator -> its tp, partition dimension, and whether it is computed again."""


def even(tp: int = 1, algo: int = 0, *, again: bool = False) -> Rule:
    """All operators of a stage alike."""
    return lambda at: (tp, algo, again)


def some(tp: int = 1, algo: int = 0) -> Rule:
    """Two of three operators computed again."""
    return lambda at: (tp, algo, at % 3 > 0)


def turns(*tps: int) -> Rule:
    """tp, partition dimension and recomputation that change in turn."""
    return lambda at: (tps[at // 2 % len(tps)], at // 3 % 2, at % 5 > 2)


def drawn(seed: int, gpus: int) -> Rule:
    """All of it drawn by lot."""

    def rule(at: int) -> tuple[int, int, bool]:
        lot = random.Random(1000 * seed + at)
        return (
            lot.choice([tp for tp in (1, 2, 4) if tp <= gpus]),
            lot.randrange(2),
            lot.random() < 0.5,
        )

    return rule


def plan(
    stages: Sequence[tuple[int, int, Rule]], *, micro: int = 4, batch: int = 10,
    model: ModelSpec = MODEL, algos: int = 2, subject: Subject | None = None,
) -> Plan:  # fmt: skip
    """`stages`: processes, first operator of the stage behind, and rule of each; `algos` are the
    partition dimensions that the model has. `subject` where that is no model of our own."""
    made, first = [], 0
    for gpus, end, rule in stages:
        tps, own, again = zip(*map(rule, range(first, end)), strict=True)
        dps = bytes(gpus // tp for tp in tps)
        made.append(
            Stage(
                gpus, bytes(tps), dps, bytes(algo % algos for algo in own), bytes(map(int, again))
            )
        )
        first = end
    if subject is not None:
        return Plan(subject=replace(subject, batch=batch), micro=micro, stages=tuple(made))
    name = LISTS[model.family]
    layers = bottlenecks_of(model.layers) if name == "resnet" else model.layers
    shape = [
        (key, getattr(model, KEYS[key])) for key in next(iter(published_sizes(name).values())).shape
    ]
    subject = Subject(model=name, size="tiny", layers=layers, shape=tuple(shape), batch=batch)
    return Plan(subject=subject, micro=micro, stages=tuple(made))


def spec_of(made: Plan, folder: Path, **changes: Any) -> RunSpec:
    """A run of a plan, whose file is put into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "plan.json"
    file.write_text(made.to_json())
    values = {"method": "aceso", "model": MODEL, "batch": made.subject.batch, "ranks": made.gpus}
    return plain.spec_for(**{**values, "activations": "auto", "plan": str(file), **changes})
