"""Entry points of methods on several ranks of this runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.profile.table import Echo
from workbench.schedule.plan import Plan

if TYPE_CHECKING:
    from workbench.training.ranks import Planner


class OnRanks(NamedTuple):
    """A method on several ranks."""

    check: Callable[[RunSpec], None]
    plan: Callable[[RunSpec, Profile], Plan]
    plan_sizes: Callable[[RunSpec, Mapping[int, Profile]], Plan]
    train: Callable[[RunSpec, Reporter, Path], Outcome]
    measure: Callable[[RunSpec, Path, Echo], object]


def on_ranks(planner: Planner, mode: str) -> OnRanks:
    """A mode of a planner, as a method."""

    def plan(spec: RunSpec, profile: Profile) -> Plan:
        """The plan from one profile; other micro-batch sizes in proportion."""
        return plan_sizes(spec, {profile.microbatch: profile})

    def plan_sizes(spec: RunSpec, profiles: Mapping[int, Profile]) -> Plan:
        """The plan from profiles by samples in a micro-batch, as a run makes it."""
        planner.check(spec, mode)
        return planner.plan(spec, profiles, mode=mode)

    def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
        """Train on the spec's ranks."""
        from workbench.training.ranks import train

        return train(planner, spec, report, folder, mode=mode)

    def measure(spec: RunSpec, results: Path, echo: Echo) -> object:
        """Profile the layers at the sizes that a long run would, and rehearse ranks that share a
        processor."""
        from workbench.training.ranks import profiles_for

        planner.check(spec, mode)
        told = SimpleNamespace(event=lambda kind, text: echo(text))
        return profiles_for(planner, spec, results, told, always=True)

    return OnRanks(partial(planner.check, mode=mode), plan, plan_sizes, train, measure)
