"""What a run on several ranks asks of its planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


class Planner(Protocol):
    """A module that plans from profiles."""

    def check(self, spec: RunSpec, mode: str) -> None: ...

    def plan(self, spec: RunSpec, profiles: Mapping[int, Profile], *, mode: str) -> Plan: ...
