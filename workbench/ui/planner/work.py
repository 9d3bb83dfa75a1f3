"""Work of the planner's page (control.py) in the helper process (helper_process.py).

One question is worked on at a time, in slices. Its stages, the most wanted first:

1. a first plan of the method asked for; for *any*, of the one that was the fastest last time
2. the plans of all other methods, which are quick
3. what would help, where nothing fits
4. a better plan of a method that searches, the largest model, and the plan of `workbench plan`
5. the largest models of the other methods, and the timeline

A slice that runs out of time ends where it is. The next one goes through the stages again and finds
what was done: every piece of work is kept under a name until another question comes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from workbench.core import methods
from workbench.core.spec import MOST_PASSES, RunSpec
from workbench.profile.profile import Profile
from workbench.profile.several import at_depth
from workbench.runs.best import DEEPEST, divisions, ways
from workbench.runs.planning import (
    checked_against,
    choose_profile,
    on_machine,
    plan_from,
    rank,
    stored_sizes,
)
from workbench.runs.resolve import check_method
from workbench.runs.search import at_layers, next_probe
from workbench.runs.store import Store
from workbench.schedule.plan import DoesNotFit, Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, TIERS
from workbench.schedule.simulate import Occupied
from workbench.ui.planner.control import ANY, Question, Row
from workbench.ui.planner.memory import parts_of
from workbench.ui.timeline.data import timeline_data

WARM_UP, SHOWN = 1, 2
"""Simulated steps before those of a timeline, and its own."""
FINENESS, MOST = 32, 2048
"""Unit in which more memory is counted, as a part of a budget, and the most units tried."""
STAGES = ("", "first", "better", "full")
_, FIRST, BETTER, FULL = STAGES


ROOMIEST = "stronghold"
"""On one device, what fits with any method fits with this one."""


class TimeUp(Exception):
    """Raised when the time of a slice is over."""


def work_on(question: dict[str, Any], root: str, seconds: float) -> dict[str, Any]:
    """Work on the question for about `seconds`; returns the fields of a `control.Reply`.

    A new question is worked on until there is a first answer, however long that takes. Raises
    ValueError for a question that cannot be planned.
    """
    return _work_for(root).work_on(Question.from_dict(question), seconds)


@lru_cache(maxsize=1)
def _work_for(root: str) -> PlannerWork:
    return PlannerWork(Store(root))


class PlannerWork:
    """Works through the stages of one question after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._planners: dict[str, Any] = {}
        """Method -> its planner object, which plans a question near the last one quicker; or
        None."""
        self._largest: dict[str, int] = {}
        """Layers, as last found."""
        self._fastest = ROOMIEST
        self._question: Question | None = None
        self._ready = False
        self._done: dict[tuple, Any] = {}
        self._plans: dict[str, Plan] = {}
        self._began, self._least, self._pieces = 0.0, math.inf, 0

    def work_on(self, question: Question, seconds: float) -> dict[str, Any]:
        """Work on the question for about `seconds`; returns the fields of a `control.Reply`."""
        if question != self._question or not self._ready:
            self._begin(question)
        self._began, self._least, self._pieces = time.perf_counter(), seconds, 0
        try:
            self._stages()
            self._reply["done"] = True
        except TimeUp:
            pass
        return {**self._reply, "rows": [asdict(row) for row in self._rows.values()]}

    def check(self) -> None:
        """Raise TimeUp at the end of a slice. A slice does one piece of work at least, and goes on
        until the first answer; called before every piece. A search that was left begins anew: a
        slice works for as long again as it takes to come to where the one before it was."""
        took = time.perf_counter() - self._began
        if self._ready and self._pieces and took >= self._least:
            raise TimeUp
        self._least = self._least if self._pieces else max(self._least, 2 * took)
        self._pieces += 1

    def _begin(self, question: Question) -> None:
        """Begin a question. Raises ValueError where nothing is known of the machine."""
        self._question, self._ready, self._done, self._plans = question, False, {}, {}
        spec = question.spec
        own = choose_profile(spec.with_(link_bytes_per_s=None), self._store, question.machine)
        self._profile = own.with_link(spec.link_bytes_per_s)
        self._rows = {
            name: Row(method=name, label=methods.find(name).label) for name in question.names()
        }
        hardware = self._profile.hardware
        capacity = {DEVICE: hardware.device_bytes, HOST_TIER: hardware.host_bytes}
        asked = {DEVICE: spec.device_memory, HOST_TIER: spec.host_memory, DISK: spec.disk_memory}
        self._reply = {
            "hardware": hardware.name,
            "source": hardware.source,
            "here": hardware.here,
            "device": hardware.device,
            "note": own.note,
            "parameters": sum(unit.parameters for unit in own.units),
            "capacity": capacity,
            "budgets": {**capacity, **{t: n for t, n in asked.items() if n is not None}},
            "link_bytes_per_s": hardware.h2d_bytes_per_s,
            "own_link_bytes_per_s": own.hardware.h2d_bytes_per_s,
            "chosen": question.spec.method,
            "helps": [],
            "timeline": None,
            "done": False,
        }

    def _stages(self) -> None:
        lead = self._question.spec.method if self._question.method != ANY else self._fastest
        lead = lead if lead in self._rows else next(iter(self._rows))
        self._plan(lead)
        if not self._rows[lead].fits and self._question.method == ANY and ROOMIEST in self._rows:
            self._plan(ROOMIEST)
        self._choose()
        self._ready = True
        for method in self._rows:
            self._plan(method)
        self._choose()
        chosen = self._reply["chosen"]
        if not self._rows[chosen].fits:
            self._reply["helps"] = [*self._helps(chosen)]
        searched = [method for method in self._rows if self._planner(method)]
        for method in searched:
            self._plan(method, enough=(BETTER, FULL))
        self._choose()
        self._find_largest(self._reply["chosen"])
        for method in searched:
            self._plan(method, enough=(FULL,))
        self._choose()
        for method in self._rows:
            self._find_largest(method)
        self._draw(self._reply["chosen"])

    # -- plans -------------------------------------------------------------------------------------

    def _plan(self, method: str, enough: tuple[str, ...] = (FIRST, BETTER, FULL)) -> None:
        """Plan with a method until its plan is good enough."""
        known = self._rows[method].stage
        if known in enough:
            return
        try:
            spec = on_machine(self._question.spec.with_(method=method), self._profile.hardware)
            check_method(spec, gpus=self._question.machine is None)
            for stage, way, plan in self._planned(spec):
                if STAGES.index(stage) > STAGES.index(known):  # others are gone through once more
                    self._take(way, stage, plan)
                if stage in enough:
                    return
        except ValueError as refusal:
            lacking = refusal.tier if isinstance(refusal, DoesNotFit) else None
            self._rows[method] = replace(
                self._rows[method], stage=FULL, fits=False, binding=str(refusal), lacking=lacking
            )

    def _planned(self, spec: RunSpec) -> Iterator[tuple[str, RunSpec, Plan]]:
        planner = self._planner(spec.method)
        if planner is None:
            asked = [way for each in (spec, *divisions(spec)) for way in ways(each)]
            answers = [(way, self._answer(way)) for way in asked]
            found = [each for each in answers if isinstance(each[1], Plan)]
            if not found:
                raise answers[-1][1]
            fitting = (each for each in found if each[1].fits)
            yield FULL, *min(fitting, key=lambda each: rank(each[1]), default=found[0])
            return
        plans = planner.plans(spec, self._profile)
        plan = next(plans)
        yield FIRST, spec, plan
        for better in plans:
            yield BETTER, spec, plan
            plan = better
        yield FULL, spec, plan

    def _answer(self, spec: RunSpec) -> Plan | ValueError:
        """The plan, or why there is none; made once a question."""
        key = ("plan", spec.method, spec.microbatches, spec.activations)
        if key not in self._done:
            self.check()
            try:
                self._done[key] = self._plan_of(spec, self._profile_of(spec))
            except ValueError as refusal:
                self._done[key] = refusal
        return self._done[key]

    def _profile_of(self, spec: RunSpec) -> Profile:
        """The profile at the spec's micro-batch."""
        if spec.microbatch == self._profile.microbatch:
            return self._profile
        return choose_profile(spec, self._store, self._question.machine)

    def _plan_of(self, spec: RunSpec, profile: Profile, soon: bool = False) -> Plan:
        """The plan from a profile, or from those of several micro-batches that are stored."""
        stored = {} if self._question.machine else stored_sizes(spec, self._store)
        plan = plan_from(spec, stored or {profile.microbatch: profile}, soon=soon)
        return checked_against(plan, profile.hardware, spec.ranks)

    def _planner(self, method: str) -> Any:
        if method not in self._planners:
            make = getattr(methods.load(method), "Planner", None)
            self._planners[method] = make and make(check=self.check)
        return self._planners[method]

    def _take(self, spec: RunSpec, stage: str, plan: Plan) -> None:
        """Enter the plan of a spec as the row of its method."""
        method, label = spec.method, methods.find(spec.method).label
        kept = spec.activations == "keep" != self._question.spec.activations
        parts = spec.microbatches != self._question.spec.microbatches
        label += ", activations kept" * kept + f", {spec.microbatches} micro-batches" * parts
        plan = checked_against(plan, self._profile.hardware, self._question.spec.ranks)
        self._plans[method] = plan
        seconds, settings = plan.step_seconds, plan.settings
        tiers = [tier for tier in TIERS if plan.peak_bytes.get(tier)]
        self._rows[method] = replace(
            self._rows[method],
            label=label,
            activations=spec.activations,
            microbatches=spec.microbatches,
            stage=stage,
            fits=plan.fits,
            step_seconds=seconds,
            samples_per_second=self._question.spec.batch / seconds
            if seconds and plan.fits
            else None,
            peak={tier: plan.peak_bytes[tier] for tier in tiers},
            parts={tier: parts_of(plan.schedule, tier, plan.peak_bytes[tier]) for tier in tiers}
            if plan.schedule
            else {},
            binding=plan.binding,
            lacking=plan.lacking,
            settings={"window": plan.window, "resident": plan.resident, **settings},
            notes=plan.notes,
        )

    def _choose(self) -> None:
        """The method that the answer is about, as `workbench plan` recommends one."""
        if self._question.method != ANY:
            return
        fitting = [method for method, row in self._rows.items() if row.fits]
        if fitting:
            self._fastest = min(fitting, key=lambda method: rank(self._plans[method]))
            self._reply["chosen"] = self._fastest
        else:
            self._reply["chosen"] = [*self._rows][-1]

    # -- what fits ---------------------------------------------------------------------------------

    def _fits(self, method: str, layers: int | None = None, **budgets: int) -> bool:
        """Whether the question would fit with other layers or budgets."""
        key = (method, layers, *sorted(budgets.items()))
        if key not in self._done:
            self.check()
            parts = self._rows[method].microbatches or self._question.spec.microbatches
            memory = {f"{tier}_memory": nbytes for tier, nbytes in budgets.items()}
            spec = self._question.spec.with_(method=method, microbatches=parts, **memory)
            profile = self._profile_of(spec)
            if layers is not None:
                spec, profile = at_layers(spec, layers), at_depth(profile, layers)
            planner, module = self._planner(method), methods.load(method)
            quick = getattr(planner, "fits", None) or getattr(module, "fits", None)
            soon = layers is not None
            try:
                if quick:
                    stored = {} if self._question.machine else stored_sizes(spec, self._store)
                    found = quick(spec, stored[min(stored)] if stored else profile)
                else:
                    found = self._plan_of(spec, profile, soon).fits
            except ValueError:
                found = False
            self._done[key] = found
        return self._done[key]

    def _find_largest(self, method: str) -> None:
        """The most layers that fit, starting from what was found last, or of another method."""
        row, layers = self._rows[method], self._question.spec.model.layers
        if row.largest_layers is not None or at_depth(self._profile, 1) is None:
            return
        if row.refused:
            return
        parts = row.microbatches or self._question.spec.microbatches
        limit = max(min(DEEPEST, MOST_PASSES // parts), layers)
        known = {layers: row.fits}
        past = self._largest.get(method) or max(self._largest.values(), default=layers)
        for guess in (past, past + 1):
            if 1 <= guess <= limit and guess not in known:
                known[guess] = self._fits(method, guess)
        while (probe := next_probe(known, guess=layers, limit=limit)) is not None and probe > 0:
            if known.get(probe) is False:  # not even one layer fits
                break
            known[probe] = self._fits(method, probe)
        largest = max((n for n, fits in known.items() if fits), default=0)
        self._largest[method] = largest
        units = at_depth(self._profile, max(1, largest)).units
        self._rows[method] = replace(
            row,
            largest_layers=largest,
            largest_parameters=sum(unit.parameters for unit in units) if largest else 0,
            largest_open=largest == limit,
        )

    def _helps(self, method: str) -> Iterator[dict[str, int]]:
        """Changes each of which is enough: more of one memory, or else of two; fewer layers."""
        budgets = {t: n for t, n in self._reply["budgets"].items() if t != DISK}
        alone = False
        for tier, budget in budgets.items():
            more = self._more(budget, lambda n, tier=tier: self._fits(method, **{tier: n}))
            if more:
                alone = True
                yield {tier: more}
        if not alone and len(budgets) > 1:
            yield from self._both(method, budgets)
        disk = self._reply["budgets"].get(DISK, 0)
        if self._profile.hardware.disk_read_bytes_per_s:
            unit = _unit(budgets[HOST_TIER])
            more = self._more(disk, lambda n: self._fits(method, **{DISK: n}), unit)
            if more:
                yield {DISK: more}
        self._find_largest(method)
        if largest := self._rows[method].largest_layers:
            yield {"layers": largest}

    def _both(self, method: str, budgets: dict[str, int]) -> Iterator[dict[str, int]]:
        """More of the device's and of the host's memory, where neither helps alone."""
        device, host = budgets[DEVICE], budgets[HOST_TIER]
        most = host + MOST * _unit(host)
        found = self._more(device, lambda n: self._fits(method, **{DEVICE: n, HOST_TIER: most}))
        if not found:
            return
        there = device + found
        more = self._more(host, lambda n: self._fits(method, **{DEVICE: there, HOST_TIER: n}))
        if more:
            yield {DEVICE: found, HOST_TIER: more}

    def _more(self, budget: int, fits: Callable[[int], bool], unit: int = 0) -> int:
        """Bytes beyond the budget that are enough, in whole units; 0 where nothing is."""
        unit, lacks = unit or _unit(budget), {}
        while (units := next_probe(lacks, guess=1, limit=MOST)) is not None:
            lacks[units] = not fits(budget + units * unit)
        most = max((units for units, lack in lacks.items() if lack), default=0)
        return 0 if most == MOST else (most + 1) * unit

    # -- the timeline ------------------------------------------------------------------------------

    def _draw(self, method: str) -> None:
        """The predicted steps of the chosen plan, where it fits."""
        plan, row = self._plans.get(method), self._rows[method]
        if plan is None or plan.schedule is None or not row.fits or plan.step_seconds is None:
            return
        self.check()
        shown = [e for e in plan.simulated if WARM_UP <= e.step < WARM_UP + SHOWN]
        if not shown:  # of torch's pipelines, whose schedule is our guess
            return
        layers = self._question.spec.model.layers
        self._reply["timeline"] = timeline_data(
            predicted=shown,
            title=f"{row.label}, {layers} layers",
            memory=Occupied.of(plan.schedule),
            layers=layers,
        )


def _unit(budget: int) -> int:
    """A round number of bytes, at most the part of the budget that FINENESS says."""
    return 1 << max(0, (budget // FINENESS).bit_length() - 1)
