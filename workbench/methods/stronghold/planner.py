"""STRONGHOLD (SC'22): what stays on the device, layer by layer.

The published system slides a window of W layers over the model and promises to find the smallest
device-resident share that hides all transfers (abstract; the inequalities of its section III are
not public in its artifact, which takes W from the command line). Here the choice is made by what
the schedule will do: every candidate is proved to fit and simulated, so the conditions that the
paper writes as inequalities (loads behind forward, loads and gradients behind backward, updates
before the next load, one serial link per direction) all hold or fail in the simulated timeline,
together.

What is chosen:

* ``window``: weight slots that slide over the streamed layers, 2 to n. A load runs window - 1
  layers ahead of compute.
* ``resident``: the first layers, whose weights and optimizer states never leave the device. They
  are the ones whose gradients come last and whose weights are needed first, so they shield the
  host updates of all others. With a given window they are as many as the window, as published;
  with ``auto`` as many as the device budget holds.
* ``pulled``: the layers after them, whose weights stay on the device while their states visit it to
  be updated: where the link has room, that is work the host need not do.
* ``kept``: the last layers, which keep their activations instead of recomputing them. Resident
  layers relieve the host, kept ones relieve compute, and both take device memory: the best split
  is where neither waits for the other. They are the last ones because their activations are gone
  when the gradients of the first layers, which take memory until the norm is known, appear.
* whether the inputs of the other layers wait for the backward pass on the host.
* ``on disk``: where the host has no room, the last layers' states live on the disk, as few as
  possible.
* which host updates are eager, and which update weights first and moments later
  (methods/offload/updates.py).

Where passes are recorded, and all layers are resident and kept, each micro-batch passes all of them
in both directions before the next one comes: what recordings keep then has one place.

Unlike the published artifact: a slot is free once compute is done, parameters are ready once
updated (two promises, not one); clean weights are never written back; updates reach every
element, with one snapshot of the learning rate, and clipping is by the global norm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from workbench.core.spec import RunSpec
from workbench.methods.offload.evaluate import STEPS, Candidate, as_plan, evaluate
from workbench.methods.offload.module_layers import in_layers
from workbench.methods.offload.placement import Placement
from workbench.methods.stronghold.choice import Choice, placement_of
from workbench.methods.stronghold.evaluation_cache import STEPS as SEARCH_STEPS
from workbench.methods.stronghold.evaluation_cache import EvaluationCache, go_on
from workbench.methods.stronghold.search import Search
from workbench.methods.stronghold.space import EarlierChoice, SearchSpace
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Profile, ProfileCosts
from workbench.schedule.plan import CLIPPED, Plan
from workbench.schedule.simulate import simulate

__all__ = ["Choice", "Planner", "fits", "placement_of", "plan", "plan_roughly"]

RECENT = 8
"""Questions whose evaluations are kept."""


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The fastest choice within the budgets; the smallest window where times are equal."""
    space = _space(spec, profile)
    return _checked(space, Search(space).run())


def plan_roughly(spec: RunSpec, profile: Profile) -> Plan:
    """A good choice, found in a fifth of a second; not checked by all rules."""
    space = _space(spec, profile)
    *_, choice = Search(space).soon()
    return _sketch(space, choice)


def fits(spec: RunSpec, profile: Profile) -> bool:
    """Whether any choice is within the budgets, without a search for the fastest."""
    return _space(spec, profile).fits()


class Planner:
    """Plans one question after the other, and is quick where a question is close to the last one.

    What was tried is kept: a question that was left in the middle goes on when it is asked again,
    and one that differs from an earlier one in its budgets alone starts with all that is known.
    """

    def __init__(self, *, check: Callable[[], None] = go_on) -> None:
        """`check` is called before every schedule that is built, and may raise to end the work."""
        self._check = check
        self._recent: deque[tuple[RunSpec, Profile, EvaluationCache]] = deque(maxlen=RECENT)
        self._asked: tuple[RunSpec, Profile] | None = None
        self._before: EarlierChoice | None = None
        self._chosen: EarlierChoice | None = None
        self._sketches: dict[Choice, Plan] = {}

    def plans(self, spec: RunSpec, profile: Profile) -> Iterator[Plan]:
        """Plans for one question, each to take the place of the one before: one at once, a good one
        in a fifth of a second, and the one that `plan` finds.

        The first ones fit and are simulated, but not checked by all rules.
        """
        if self._asked != (spec, profile):
            self._begin(spec, profile)
        space, shown = self._search.space, None
        for choice in self._search.soon():
            if choice == shown:
                continue
            shown = self._choose(choice)
            if choice not in self._sketches:
                self._sketches[choice] = _sketch(space, choice)
            yield self._sketches[choice]
        choice = self._choose(Search(space).run())
        self._check()
        yield _checked(space, choice)

    def _begin(self, spec: RunSpec, profile: Profile) -> None:
        cache = self._known(spec, profile)
        space = _space(spec, profile, cache, check=self._check)
        if cache is None:
            self._recent.append((_without_budgets(spec), profile, space.cache))
        self._asked = spec, profile
        self._before, self._chosen, self._sketches = self._chosen or self._before, None, {}
        self._search = Search(space, before=self._before, known=space.cache.known())

    def fits(self, spec: RunSpec, profile: Profile) -> bool:
        """Whether any plan fits the budgets; evaluations of earlier questions are used."""
        return _space(spec, profile, self._known(spec, profile)).fits()

    def _choose(self, choice: Choice) -> Choice:
        self._chosen = EarlierChoice(choice=choice, layers=self._search.layers)
        return choice

    def _known(self, spec: RunSpec, profile: Profile) -> EvaluationCache | None:
        """The cache of an earlier question that differed in nothing but its budgets, or None."""
        asked = _without_budgets(spec), profile
        return next((cache for *known, cache in self._recent if (*known,) == asked), None)


def _without_budgets(spec: RunSpec) -> RunSpec:
    return spec.with_(device_memory=None, host_memory=None, disk_memory=None)


def _space(
    spec: RunSpec,
    profile: Profile,
    cache: EvaluationCache | None = None,
    *,
    check: Callable[[], None] = go_on,
) -> SearchSpace:
    spec, profile = in_layers(spec, profile)
    budgets = Budgets.of(spec, profile, allocated=True)
    return SearchSpace(budgets, cache or EvaluationCache(spec, profile, check=check))


def _plan(space: SearchSpace, choice: Choice, candidate: Candidate) -> Plan:
    return as_plan(
        candidate,
        space.budgets,
        method="stronghold",
        window=choice.window,
        resident=choice.resident,
        whole=choice.resident == space.layers,
    )


def _checked(space: SearchSpace, choice: Choice) -> Plan:
    """The plan of a choice, checked by all rules and simulated with its events."""
    profile, placement = space.profile, placement_of(space.spec, space.profile, choice)
    settings = _settings(placement, choice)
    found = evaluate(placement, profile, space.budgets, settings)
    if not (placement.clipped and placement.eager):
        return _plan(space, choice, found)
    costs = ProfileCosts(profile, clips=True, recorded=placement.replay)
    clipped = simulate(found.schedule, costs, steps=STEPS)
    settings[CLIPPED] = clipped.step_seconds
    found = replace(found, schedule=replace(found.schedule, settings=settings))
    return replace(_plan(space, choice, found), simulated_clipped=clipped.events)


def _sketch(space: SearchSpace, choice: Choice) -> Plan:
    """The plan of a choice, simulated with its events, and with the memory that its trial
    proved."""
    cache, limits = space.cache, space.budgets.to_dict()
    placement = placement_of(space.spec, space.profile, choice)
    settings = _settings(placement, choice)
    if placement.clipped and placement.eager:
        stands, clips = cache.step_seconds(choice)
        settings[CLIPPED] = stands if clips is None else clips
    peak = cache.peaks(choice, limits)
    within = space.budgets.lacking(peak) is None
    schedule = replace(cache.schedule(choice), budgets=limits if within else {}, settings=settings)
    costs = ProfileCosts(space.profile, recorded=placement.replay)
    simulation = simulate(schedule, costs, steps=SEARCH_STEPS)
    found = Candidate(placement=placement, schedule=schedule, peak=peak, simulation=simulation)
    return _plan(space, choice, found)


def _settings(placement: Placement, choice: Choice) -> dict[str, int | float | str | bool | None]:
    return {
        "slots": placement.slots,
        "pulled_layers": choice.pulled,
        "kept_layers": choice.kept,
        "stashed_inputs": choice.stash,
        "ends_on_host": choice.hosted,
        "eager_updates": len(placement.eager),
        "moments_later": len(placement.moments_later),
        "disk_layers": len(placement.on_disk),
        "host_workers": placement.host_workers,
        "replayed": placement.replay,
    }
