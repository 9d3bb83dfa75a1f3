"""Each method at its best: the fastest answer, and the largest model.

A method that keeps or recomputes activations as it is told is asked both ways, where the question
leaves that open, and on several ranks with several numbers of micro-batches: those that choose by
themselves would else be compared with others' default.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from workbench.core import methods
from workbench.core.model_spec import GPT_FAMILY
from workbench.core.spec import MOST_PASSES, RunSpec
from workbench.runs.expected import with_record
from workbench.runs.index import Index
from workbench.runs.planning import Answer, answer, rank
from workbench.runs.search import at_layers, planned_largest
from workbench.runs.store import Store

DEEPEST = 512
"""Layers; deeper models are not asked about."""


def ways(spec: RunSpec) -> list[RunSpec]:
    """The spec, and one that keeps activations, where it leaves them open and its method can."""
    found = [spec]
    if spec.activations == "auto":
        with suppress(ValueError):
            found.append(spec.with_(activations="keep"))
    return found


def divisions(spec: RunSpec) -> list[RunSpec]:
    """The spec with more micro-batches, where nothing says how many and its method takes what it is
    told: a pipeline with a single one has nothing to overlap, or refuses."""
    told = spec.options.micro_sizes(spec) or not hasattr(methods.load(spec.method), "plan_sizes")
    if spec.ranks == 1 or spec.microbatches > 1 or not told:
        return []
    counts = (spec.ranks, 4 * spec.ranks)
    return [spec.with_(microbatches=count) for count in counts if not spec.batch % count]


def fastest(spec: RunSpec, store: Store, machine: str | None, *, soon: bool = False) -> Answer:
    """The method's best answer, `soon` by a part of a long search. Raises ValueError."""
    found, refusals = [], []
    for way in (*ways(spec), *(way for divided in divisions(spec) for way in ways(divided))):
        try:
            found.append(answer(way, store, machine=machine, soon=soon))
        except ValueError as error:
            refusals += [error] if way.activations == spec.activations else []
    if not found:
        raise refusals[-1]
    return min((a for a in found if a.plan.fits), key=lambda a: rank(a.plan), default=found[0])


def largest(spec: RunSpec, store: Store, machine: str | None) -> Answer:
    """The answer for the most layers that fit with the method, of those the fastest; for one layer
    where not even that fits. Raises ValueError for a model that has no number of layers to vary."""
    if (family := spec.model.family) != GPT_FAMILY:
        raise ValueError(f"{family} has layers of its own: --largest is for --hidden and --heads")
    limit = min(DEEPEST, MOST_PASSES // max(spec.microbatches, spec.ranks))
    most = max(planned_largest(way, store, limit=limit, machine=machine) for way in ways(spec))
    return fastest(at_layers(spec, max(1, most)), store, machine, soon=True)


def searching(specs: list[RunSpec]) -> list[str]:
    """Methods among them that choose packs or places by a search, seconds at each depth."""
    return [spec.method for spec in specs if hasattr(spec.options, "forward_size")]


def answer_all(
    specs: list[RunSpec],
    store: Store,
    machine: str | None,
    ask: Callable[[RunSpec, Store, str | None], Answer] = fastest,
) -> tuple[list[Answer], dict[str, str]]:
    """The answers of several methods, `fastest` or `largest`, and why others cannot be planned so.
    Raises ValueError where none can."""
    answers, not_planned = [], {}
    for spec in specs:
        try:
            answers.append(ask(spec, store, machine))
        except ValueError as error:
            if spec is specs[-1] and not answers:
                raise
            not_planned[spec.method] = str(error)
    if machine is None and any(each.source != "measured" for each in answers):
        rows = Index(store).rows()
        answers = [with_record(each, rows) for each in answers]
    return answers, not_planned


def recommend(answers: list[Answer]) -> Answer:
    """The largest model that fits; of equal ones the first by `rank`. Where none fits, the last
    one asked."""
    fitting = (each for each in answers if each.plan.fits)
    return min(fitting, key=lambda a: (-a.spec.model.layers, *rank(a.plan)), default=answers[-1])
