"""Training under Harmony: profile at several sizes, plan, run all ranks, tell what was measured."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from workbench.methods.harmony.crew import Crew
from workbench.methods.harmony.planner import check, plan
from workbench.methods.plan import Plan
from workbench.methods.train import load_batches, write_timeline
from workbench.model import make_model
from workbench.profile.profile import Profile
from workbench.profile.store import profile_for
from workbench.runs.record import Outcome
from workbench.runs.report import Reporter
from workbench.runs.spec import RunSpec
from workbench.runtime.shared import host_layout
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER
from workbench.schedule.simulate import Event

PROFILED = 3
"""Micro-batch sizes that are profiled: one sample, the most that a rank may see at once, and one
between."""


def train(spec: RunSpec, report: Reporter, folder: Path, *, mode: str) -> Outcome:
    """Plan from this machine's profile, then train on as many ranks as the spec has."""
    load_batches(spec, make_model(spec.model), folder / "cache")
    check(spec, mode)
    report.phase("profiling")
    profiles = profiles_for(spec, folder.parents[1], report)
    made = plan(spec, profiles, mode=mode)
    report.event("plan", **made.to_dict())
    with closing(Crew(spec, made.schedule, folder, device=spec.device)) as crew:
        crew.run(report)
        return outcome(crew, made, folder)


def profiles_for(spec: RunSpec, results: Path, report: Reporter) -> dict[int, Profile]:
    """By samples in a micro-batch: stored ones, or measured now."""
    pinned = {size for size in (spec.forward_size, spec.backward_size) if size != "auto"}
    most = spec.batch
    wanted = pinned or {1, most, max(1, round(most**0.5))}
    return {
        size: profile_for(
            spec.with_(batch=size, microbatches=1, forward_size="auto", backward_size="auto"),
            results,
            lambda text: report.event("profile", text=text),
        )
        for size in sorted(wanted)[:PROFILED]
    }


def outcome(crew: Crew, made: Plan, folder: Path) -> Outcome:
    """What all ranks measured, and the timeline of all in the run's folder."""
    results, history = crew.results(), crew.history
    steps = max((result["steps"] for result in results), default=0)
    events = [Event(*row) for result in results for row in result["events"]]
    notes = [*made.notes, *history.notes]
    try:
        write_timeline(folder, made.schedule, events)
    except OSError as error:  # the training is done, whatever the disk says
        notes.append(f"the timeline was not written: {error}")
    ways = ("load", "store", "read", "write")
    moved = {way: sum(result["moved_bytes"][way] for result in results) for way in ways}
    return Outcome(
        losses=history.losses,
        step_seconds=history.step_seconds,
        peak_bytes={
            DEVICE: max((result["device_peak"] for result in results), default=None),
            HOST_TIER: host_layout(made.schedule)[1],
            DISK: 0,
        },
        moved_bytes={way: total // steps if steps else None for way, total in moved.items()},
        parameters=crew.model.parameters_count(),
        predicted={
            "step_seconds": made.step_seconds,
            "peak_bytes": made.peak_bytes,
            "moved_bytes": made.moved_bytes,
            "binding": made.binding,
            "settings": made.settings,
        },
        skipped_steps=history.skipped,
        grad_norms=history.grad_norms,
        engine="workbench",
        notes=notes,
    )
