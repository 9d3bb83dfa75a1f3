"""Questions before running: does it fit, with which method and settings, how fast, and what binds?

Nothing trains and nothing is measured here. The costs come from this machine's stored profile where
there is one, else from the constants of published hardware, and the answer says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workbench.core import methods
from workbench.core.model_spec import GPT_FAMILY
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.runs.store import Store
from workbench.schedule.plan import DoesNotFit, Plan


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One method's plan and the machine it holds for."""

    plan: Plan
    spec: RunSpec
    hardware: str
    source: str
    """``measured`` on this machine, ``published`` constants, or those of a ``datasheet``."""

    @property
    def samples_per_second(self) -> float | None:
        seconds = self.plan.step_seconds
        return self.spec.batch / seconds if seconds and self.plan.fits else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the plan's fields, its throughput, and where the costs come from."""
        return {
            **self.plan.to_dict(),
            "samples_per_second": self.samples_per_second,
            "hardware": self.hardware,
            "profile": self.source,
        }


def answer(spec: RunSpec, store: Store, *, machine: str | None = None) -> Answer:
    """The plan of the spec's method; `fits` is False where nothing fits. Raises ValueError.

    `machine` names one that is known; None is this machine, or a published one where this was not
    measured.
    """
    methods.check_model(methods.find(spec.method), spec.model)
    heard: list[str] = []
    profiles = choose_profiles(spec, store, machine, heard.append)
    profile = profiles[min(profiles)]
    hardware = profile.hardware
    try:
        plan = plan_from(spec, profiles)
    except DoesNotFit as refusal:
        plan = Plan(
            method=spec.method,
            fits=False,
            schedule=None,
            step_seconds=None,
            peak_bytes={},
            moved_bytes={},
            binding=str(refusal),
            lacking=refusal.tier,
        )
    counted = spec.model.family != GPT_FAMILY
    if hardware.source == "datasheet" or hardware.source == "published" and counted:
        plan = replace(plan, notes=(*plan.notes, profile.note))
    notes = (*plan.notes, *dict.fromkeys(heard))
    plan = replace(plan, notes=notes, spread=hardware.spread)
    return Answer(plan=plan, spec=spec, hardware=hardware.name, source=hardware.source)


def answer_all(
    specs: list[RunSpec], store: Store, *, machine: str | None = None
) -> tuple[list[Answer], dict[str, str]]:
    """The answers of several methods, and why others cannot be planned so. Raises ValueError where
    none can."""
    answers, not_planned = [], {}
    for spec in specs:
        try:
            answers.append(answer(spec, store, machine=machine))
        except ValueError as error:
            if spec is specs[-1] and not answers:
                raise
            not_planned[spec.method] = str(error)
    return answers, not_planned


def plan_from(spec: RunSpec, profiles: Mapping[int, Profile]) -> Plan:
    """The plan of the spec's method from profiles by samples in a micro-batch; its notes say where
    a run would have more of them. Raises ValueError, DoesNotFit where nothing fits."""
    from workbench.profile.several import in_proportion

    module = methods.load(spec.method)
    if not hasattr(module, "plan_sizes"):
        (profile,) = profiles.values()
        return module.plan(spec, profile)
    plan = module.plan_sizes(spec, profiles)
    note = in_proportion(spec, profiles)
    return replace(plan, notes=(*plan.notes, note)) if note else plan


def fits(spec: RunSpec, store: Store) -> bool:
    """Whether the spec's method has a plan within the budgets. Raises ValueError."""
    module = methods.load(spec.method)
    if hasattr(module, "fits"):
        return module.fits(spec, choose_profile(spec, store, None))
    return answer(spec, store).plan.fits


def choose_profiles(
    spec: RunSpec, store: Store, machine: str | None, echo: Callable[[str], object]
) -> dict[int, Profile]:
    """By samples in a micro-batch: `stored_sizes`, else the one of `choose_profile`."""
    found = stored_sizes(spec, store) if machine is None else {}
    return found or {spec.microbatch: choose_profile(spec, store, machine, echo)}


def stored_sizes(spec: RunSpec, store: Store) -> dict[int, Profile]:
    """Stored profiles of this machine that a run would take, for a method that chooses its own
    micro-batches; none of another method."""
    from workbench.profile.several import stored_profiles

    several = hasattr(methods.load(spec.method), "plan_sizes")
    return stored_profiles(spec, store.root) if several else {}


def choose_profile(
    spec: RunSpec,
    store: Store,
    machine: str | None,
    echo: Callable[[str], object] = lambda text: None,
) -> Profile:
    """This machine's stored profile of the model, else one from a published machine's constants;
    `echo` hears why one that is stored is not used."""
    from workbench.profile.store import stored_profile
    from workbench.published.hardware import published_profile

    if machine is not None:
        return published_profile(spec, machine)
    return stored_profile(spec, store.root, echo) or published_profile(spec)


def recommend(answers: list[Answer]) -> Answer:
    """The fastest that fits; where none does, the last one asked."""
    fitting = [a for a in answers if a.plan.fits and a.plan.step_seconds is not None]
    return min(fitting, key=lambda a: a.plan.step_seconds) if fitting else answers[-1]
