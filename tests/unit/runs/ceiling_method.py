"""A method whose runs end well up to some number of layers, and a planner that may be wrong.

The spec's text is ``CEILING GUESS``.
"""

from __future__ import annotations

import os
from pathlib import Path

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


def plan(spec: RunSpec, profile: Profile) -> Plan:
    guess = int(spec.text.split()[1])
    return Plan(
        method=spec.method,
        fits=spec.model.layers <= guess,
        schedule=None,
        step_seconds=0.1,
        peak_bytes={},
        moved_bytes={},
        binding="made up",
        lacking="host",
    )


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    ceiling = spec.text.split()[0]
    if ceiling == "broken":
        raise KeyError("a bug")
    if spec.model.layers > int(ceiling):
        raise MemoryError(f"process {os.getpid()} has no memory")
    for step in range(spec.steps):
        report.step(step, 1.0, 0.01)
    return Outcome(
        losses=[1.0] * spec.steps,
        step_seconds=[0.01] * spec.steps,
        peak_bytes={"device": 1, "host": 1, "disk": 0},
        moved_bytes={"load": 0, "store": 0, "read": 0, "write": 0},
        parameters=spec.model.layers,
        engine="ceiling",
    )
