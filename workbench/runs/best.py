"""Each method at its best: the fastest answer, and the largest model.

A method that keeps or recomputes activations as it is told is asked both ways, where the question
leaves that open: those that choose by themselves would else be compared with others' default.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from workbench.core.spec import MOST_PASSES, RunSpec
from workbench.runs.planning import Answer, answer, rank
from workbench.runs.search import at_layers, planned_largest
from workbench.runs.store import Store

DEEPEST = 512
"""Layers; deeper models are not asked about."""


def ways(spec: RunSpec) -> list[RunSpec]:
    """The spec, and one that keeps activations, where it leaves them open and its method can."""
    try:
        return [spec, spec.with_(activations="keep")] if spec.activations == "auto" else [spec]
    except ValueError:
        return [spec]


def fastest(spec: RunSpec, store: Store, *, machine: str | None = None) -> Answer:
    """The method's best answer. Raises ValueError."""
    first, *others = ways(spec)
    found = [answer(first, store, machine=machine)]
    for way in others:
        with suppress(ValueError):
            found.append(answer(way, store, machine=machine))
    return min((a for a in found if a.plan.fits), key=lambda a: rank(a.plan), default=found[0])


def largest(spec: RunSpec, store: Store, *, machine: str | None = None) -> Answer:
    """The answer for the most layers that fit with the method, of those the fastest; for one layer
    where not even that fits. Raises ValueError for a model that has no number of layers to vary."""
    if spec.model.decomposed:
        raise ValueError(f"layers of {spec.model.family} are not alike: --largest is for decoders")
    limit = min(DEEPEST, MOST_PASSES // max(spec.microbatches, spec.ranks))
    sizes = {way: planned_largest(way, store, limit=limit, machine=machine) for way in ways(spec)}
    most = max(sizes.values())
    found = [
        answer(at_layers(way, max(1, most)), store, machine=machine)
        for way, layers in sizes.items()
        if layers == most
    ]
    return min(found, key=lambda a: rank(a.plan))


def answer_all(
    specs: list[RunSpec],
    store: Store,
    *,
    machine: str | None = None,
    ask: Callable[..., Answer] = fastest,
) -> tuple[list[Answer], dict[str, str]]:
    """The answers of several methods, `fastest` or `largest`, and why others cannot be planned so.
    Raises ValueError where none can."""
    answers, not_planned = [], {}
    for spec in specs:
        try:
            answers.append(ask(spec, store, machine=machine))
        except ValueError as error:
            if spec is specs[-1] and not answers:
                raise
            not_planned[spec.method] = str(error)
    return answers, not_planned


def recommend(answers: list[Answer]) -> Answer:
    """The largest model that fits; of equal ones the first by `rank`. Where none fits, the last
    one asked."""

    def order(each: Answer) -> tuple[float, ...]:
        return -each.spec.model.layers, *rank(each.plan)

    return min((each for each in answers if each.plan.fits), key=order, default=answers[-1])
