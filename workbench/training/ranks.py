"""Training on several ranks: profile at several sizes, plan, run all ranks, collect results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import torch

from workbench.core.bytesize import format_bytes
from workbench.core.record import Outcome
from workbench.core.reporter import COMPILING, Reporter, Untold
from workbench.core.spec import RunSpec
from workbench.profile.limits import limits_for
from workbench.profile.probe import NoRoom
from workbench.profile.profile import Profile
from workbench.profile.rehearsal import with_overhead
from workbench.profile.server import server_of
from workbench.profile.several import of_size, pinned_sizes, sizes_of
from workbench.profile.store import hardware, profile_for, silent
from workbench.profile.table import Echo
from workbench.runtime.checkpoint.continues import check_start
from workbench.runtime.memory.shared import host_layout
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.memory.traffic import counted_parts, planned_parts
from workbench.schedule.plan import DoesNotFit, Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, Schedule
from workbench.schedule.simulate import Event
from workbench.training.rank_processes import RankTraining, launcher_of
from workbench.training.run import check_data, told_of, write_timeline


class Planner(Protocol):
    """A module that plans for several ranks, from profiles by samples in a micro-batch."""

    def check(self, spec: RunSpec, mode: str) -> None:
        """Raise ValueError for a spec that the method cannot train."""

    def plan(self, spec: RunSpec, profiles: Mapping[int, Profile], *, mode: str) -> Plan:
        """The best plan for profiles by samples in a micro-batch. Raises ValueError where none
        fits."""

    def rehearsal(self, spec: RunSpec, profile: Profile) -> Schedule:
        """A schedule of a small model, which has four units a rank (profile/rehearsal.py)."""


def train(planner: Planner, spec: RunSpec, report: Reporter, folder: Path, *, mode: str) -> Outcome:
    """Plan from this machine's profile, then train on as many ranks as the spec has."""
    model = check_data(spec, report, folder)
    planner.check(spec, mode)
    check_start(spec, folder, model)
    report.phase("profiling")
    profiles = profiles_for(planner, spec, folder.parents[1], report)
    report.phase("planning")
    with closing(launcher_of(folder, spec.ranks, device=spec.device)) as launcher:
        launcher.prepare()  # ranks import meanwhile
        made = planner.plan(spec, profiles, mode=mode)
        made = replace(made, spread=profiles[min(profiles)].hardware.spread)
        report.event("plan", **made.to_dict())
        report.phase(f"laying out {format_bytes(made.peak_bytes[HOST_TIER])} of host memory")
        training = RankTraining(spec, made.schedule, folder, device=spec.device, launcher=launcher)
        with closing(training):
            training.run(report)
            if found := training.results():
                slowest = max(
                    (each["start"] for each in found), key=lambda parts: sum(parts.values())
                )
                report.event("ranks", parts=slowest)
                later = max(each["compile_s"] - each["start"][COMPILING] for each in found)
                report.event("compiled", took=later)
            return outcome(training, made, folder)


def profiles_for(
    planner: Planner, spec: RunSpec, results: Path, report: Reporter, *, always: bool = False
) -> dict[int, Profile]:
    """By samples in a micro-batch: stored ones, or measured now. Of the pinned sizes; else up to
    the largest that a device has room for, or to a part of it where timing takes more room than
    training. `always`: rehearsed also for a short run.

    Raises DoesNotFit where the fewest samples are too many.
    """

    def tell(text: str) -> None:
        report.event("profile", text=text)

    return with_overhead(
        by_size(spec, results, tell),
        spec,
        results,
        tell,
        scheduled=planner.rehearsal,
        trained=_step_seconds,
        always=always,
    )


def _step_seconds(spec: RunSpec, schedule: Schedule) -> list[float]:
    """Train under a schedule on this machine's processor; returns the seconds of each step."""
    with (
        TemporaryDirectory(prefix="rehearsal-") as folder,
        closing(RankTraining(spec, schedule, Path(folder), device="cpu")) as training,
    ):
        training.run(Untold())
        return training.history.step_seconds


def by_size(spec: RunSpec, results: Path, tell: Echo) -> dict[int, Profile]:
    """Profiles by samples in a micro-batch, stored or measured now, without the cost of passes
    where all ranks train. Raises as `profiles_for` does."""

    def profiled(size: int) -> Profile:
        return profile_for(of_size(spec, size), results, tell)

    if pinned_sizes(spec):
        return {size: profiled(size) for size in sizes_of(spec, None)}
    try:
        limits = limits_for(spec, results, _device_bytes(spec, results, tell), tell)
    except NoRoom as error:
        raise DoesNotFit(str(error), tier=DEVICE) from error
    found = up_to_room(sizes_of(spec, limits), profiled, tell)
    return {size: replace(profile, limits=limits) for size, profile in found.items()}


def up_to_room(
    sizes: Sequence[int], profiled: Callable[[int], Profile], tell: Echo = silent
) -> dict[int, Profile]:
    """Profiles of micro-batches of these sizes, in their order; where a device has no room to time
    the largest, of its half, its quarter, ... Raises DoesNotFit where the first is too large."""
    *smaller, size = sizes
    found = {size: profiled(size) for size in smaller}
    while size > max(found, default=0):
        try:
            found[size] = profiled(size)
        except (OutOfMemory, torch.OutOfMemoryError) as error:
            if size == sizes[0]:
                text = f"layers cannot be timed in micro-batches of {size}: {error}"
                raise DoesNotFit(text, tier=DEVICE) from error
            tell(f"a micro-batch of {size} is more than the device has room to time")
            size //= 2
    return found


def _device_bytes(spec: RunSpec, results: Path, tell: Echo) -> int:
    """Bytes that a rank's device may hold."""
    there = hardware(spec, results, tell)
    bare = Profile(hardware=there, units=(), microbatch=1, seq=spec.model.seq)
    return server_of(bare, spec).device_bytes


def outcome(training: RankTraining, made: Plan, folder: Path) -> Outcome:
    """Outcome from the measurements of all ranks; writes their timeline into the run's folder."""
    results, history = training.results(), training.history
    steps = max((result["steps"] for result in results), default=0)
    events = [Event(*row) for result in results for row in result["events"]]
    notes = [*made.notes, *history.notes]
    try:
        write_timeline(folder, made, events, history.grad_norms[1:], training.spec.clip)
    except OSError as error:  # the training is done, whatever the disk says
        notes.append(f"the timeline was not written: {error}")
    settled = Counter()
    for result in results:
        settled.update(result["settled"])
    if settled.total():
        notes.insert(0, told_of(settled))
    ways = ("load", "store", "read", "write")
    moved = {way: sum(result["moved_bytes"][way] for result in results) for way in ways}
    return Outcome(
        **history.measured(),
        peak_bytes={
            DEVICE: max((result["device_peak"] for result in results), default=None),
            HOST_TIER: host_layout(made.schedule)[1],
            DISK: 0,
        },
        moved_bytes={way: total // steps if steps else None for way, total in moved.items()},
        moved_parts=counted_parts((result["moved_parts"] for result in results), steps),
        parameters=training.model.parameters_count(),
        predicted=made.predicted(history.grad_norms[1:], training.spec.clip)
        | {"moved_parts": planned_parts(made.schedule, training.spec.batch)},
        engine="workbench",
        notes=notes,
    )
