"""Each method at its best: the fastest answer, and the largest model.

A method that keeps or recomputes activations as it is told is asked both ways, where the question
leaves that open, and on several ranks with several numbers of micro-batches: those that choose by
themselves would else be compared with others' default.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from workbench.core import methods
from workbench.core.model_spec import GPT_FAMILY
from workbench.core.spec import MOST_PASSES, RunSpec
from workbench.profile import dividing
from workbench.runs.answer import Answer
from workbench.runs.expected import with_record
from workbench.runs.index import Index
from workbench.runs.planning import answer, choose_profile, fits, one_memory, rank
from workbench.runs.search import at_layers, planned_largest
from workbench.runs.store import Store
from workbench.schedule.schedule import DEVICE, HOST_TIER

DEEPEST = 512
"""Layers; deeper models are not asked about."""
TRIED, SEARCHED = 10, 4
"""Divisions of one memory that are tried at a depth, and where each takes seconds of a search."""


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
    module = methods.load(spec.method)
    if spec.ranks == 1 or spec.microbatches != 1 or hasattr(module, "foreseen"):
        return []
    if hasattr(module, "plan_sizes") and not spec.options.micro_sizes(spec):
        return []
    counts = (spec.ranks, 4 * spec.ranks)
    return [spec.with_(microbatches=count) for count in counts if not spec.batch % count]


def fastest(spec: RunSpec, store: Store, machine: str | None, *, soon: bool = False) -> Answer:
    """The method's best answer, `soon` by a part of a long search. Raises ValueError."""
    found, refusals = [], []
    for each in (spec, *divisions(spec)):
        for way in ways(each):
            try:
                found.append(answer(way, store, machine=machine, soon=soon))
            except ValueError as error:
                refusals += [error] if way is each else []
            else:
                if not found[-1].plan.fits:  # to keep takes more memory
                    break
    if not found:
        raise refusals[-1]
    return min((a for a in found if a.plan.fits), key=lambda a: rank(a.plan), default=found[0])


def largest(spec: RunSpec, store: Store, machine: str | None) -> Answer:
    """The answer for the most layers that fit with the method, of those the fastest; for one layer
    where not even that fits. Raises ValueError for a model that has no number of layers to vary."""
    if (family := spec.model.family) != GPT_FAMILY:
        raise ValueError(f"{family} has layers of its own: --largest is for --hidden and --heads")
    asked, spec = spec, _finest(spec, store, machine)
    limit = min(DEEPEST, MOST_PASSES // max(spec.microbatches, spec.ranks))
    found = [at_layers(spec, 1)]

    def fitting(way: RunSpec) -> bool:
        fit = divided(way, store, machine, found[-1])
        found.extend([] if fit is None else [fit])
        return fit is not None

    for way in ways(spec):
        planned_largest(way, store, limit=limit, fitting=fitting)
    most = max(found, key=lambda each: each.model.layers)
    best = most.with_(activations=spec.activations, microbatches=asked.microbatches)
    best = fastest(best, store, machine, soon=True)
    if one_memory(spec, choose_profile(most, store, machine).hardware):
        device, host = (f"{n >> 20}MiB" for n in (most.device_memory or 0, most.host_memory or 0))
        words = f"device and host share one memory: --device-memory {device} --host-memory {host}"
        best = replace(best, plan=replace(best.plan, notes=(*best.plan.notes, words)))
    return best


def _finest(spec: RunSpec, store: Store, machine: str | None) -> RunSpec:
    """The spec in the most micro-batches that its method takes, which need the least memory, where
    their number is open."""
    every = dividing.divisions(spec)
    for each in reversed(every):
        with suppress(ValueError):
            if each is not every[0]:
                answer(at_layers(each, 1), store, machine=machine, soon=True)
            return each
    return every[0]


def divided(spec: RunSpec, store: Store, machine: str | None, like: RunSpec) -> RunSpec | None:
    """The spec if it fits, else None. Where device and host share one memory, the spec with budgets
    that divide it so that both have room: the tier that lacks gets more, from those of `like`."""
    shared = one_memory(spec, choose_profile(spec, store, machine).hardware)
    if not shared:
        return spec if fits(spec, store, machine, soon=True) else None
    ranks, quick = spec.ranks, hasattr(methods.load(spec.method), "fits")
    most = min(spec.device_memory or shared, shared // ranks) >> 20
    least = max(0, shared - (spec.host_memory or shared)) // ranks >> 20
    # A method that chooses what stays on the device may need the host for nothing.
    places, seen = [(like.device_memory or 0) >> 20, *[most - 1] * quick], []
    for _ in range(SEARCHED if searching([spec]) else TRIED):
        device = places.pop() if places else 0
        device = device if least < device < most else (least + most) // 2
        if device == least:
            break
        budgets = {"device_memory": device << 20, "host_memory": shared - (ranks * device << 20)}
        tried = spec.with_(**budgets)
        if quick and fits(tried, store, machine):
            return tried
        plan = answer(tried, store, machine=machine, soon=True).plan
        if plan.fits:
            return tried
        if plan.lacking == HOST_TIER:
            most = min(most, device)
        else:
            least = max(least, device)
        needs = plan.peak_bytes.get(DEVICE, 0), plan.peak_bytes.get(HOST_TIER, 0)
        spare = shared - ranks * needs[0] - needs[1]
        if needs[0] and spare <= 0 and needs in seen:
            break  # they do not depend on how the memory is divided
        seen.append(needs)
        if needs[0] and spare > 0:
            places.append(needs[0] + spare // (ranks + 1) >> 20)
    return None


def searching(specs: list[RunSpec]) -> list[str]:
    """Methods among them that choose packs or places by a search, seconds at each depth."""
    return [spec.method for spec in specs if hasattr(spec.options, "forward_size")]


def answer_all(
    specs: list[RunSpec],
    store: Store,
    machine: str | None,
    ask: Callable[[RunSpec, Store, str | None], Answer] = fastest,
    tell: Callable[[str], object] = lambda text: None,
) -> tuple[list[Answer], dict[str, str]]:
    """The answers of several methods, `fastest` or `largest`, and why others cannot be planned so;
    `tell` hears whose turn it is. Raises ValueError where none can."""
    answers, not_planned = [], {}
    for place, spec in enumerate(specs, start=1):
        if specs[1:]:
            tell(f"planning {spec.method}, {place} of {len(specs)}")
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
