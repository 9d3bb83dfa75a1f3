"""Entry points of methods on one device of this runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from workbench.core.record import Outcome
from workbench.core.reporter import PROFILING, Reporter
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


def trained_by(
    planner: Callable[[RunSpec, Profile], Plan], engine: str = "workbench"
) -> Callable[[RunSpec, Reporter, Path], Outcome]:
    """`train` of a method on one device."""

    def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
        """Plan from this machine's profile (measured now if it is not stored yet), then train.

        `folder` is the run's own, ``RESULTS/runs/KEY``; profiles are kept in RESULTS for all runs.
        """
        from workbench.profile.store import profile_for
        from workbench.runtime.checkpoint.continues import check_start
        from workbench.training.run import check_data, train_planned  # imports torch

        # What cannot be trained should be said before minutes of measuring, not after.
        make_model(spec.model, spec.seed).check_shared()
        check_start(spec, folder, check_data(spec, report, folder))
        report.phase(PROFILING)
        profile = profile_for(
            spec, folder.parents[1], lambda text: report.event("profile", text=text)
        )
        plan = planner(spec, profile.with_link(spec.link_bytes_per_s))
        plan = replace(plan, spread=profile.hardware.spread)
        if plan.fits:  # else the smallest layout stands there, which does not run
            report.event("plan", **plan.to_dict())
        return train_planned(spec, plan, report, folder, engine=engine)

    return train
