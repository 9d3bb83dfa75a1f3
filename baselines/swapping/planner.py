"""Plans of data and pipeline parallelism with swapping: micro-batches and places, the best of few.

A baseline is run at its best: for each size of micro-batch as many layers have a place of their own
as the device has room for, and the simulator says which size is fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from baselines.swapping.division import build, divided
from workbench.core.bytesize import format_bytes
from workbench.core.division import DP, PP, micro_batches
from workbench.core.spec import RunSpec
from workbench.methods.options import Visits
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.rank_plans import binding, check_shares, check_states
from workbench.model import make_model, units_of
from workbench.partition.chain import min_max_partition
from workbench.profile.budgets import Budgets
from workbench.profile.cuda_graphs import recorded_below_s
from workbench.profile.match import check_profiles
from workbench.profile.profile import Profile
from workbench.profile.server import Server, ServerCosts, records, server_of
from workbench.profile.unit_costs import Sizes, longest_forward_s, profiled_sizes
from workbench.schedule.plan import DoesNotFit, Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, Schedule
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate

STEPS = 3


def check(spec: RunSpec, mode: str) -> None:
    """Raise ValueError, before anything is measured, for what no plan can take."""
    asked: Visits = spec.options
    if asked.backward_size not in ("auto", asked.forward_size):
        raise ValueError(
            f"forward_size is {asked.forward_size}, backward_size {asked.backward_size}; without "
            "packs both passes have the same micro-batches"
        )
    check_shares(spec, mode)


def plan(spec: RunSpec, profiles: Mapping[int, Profile], *, mode: str) -> Plan:
    """The fastest plan that fits, from profiles by samples in a micro-batch. Raises DoesNotFit
    where none does, ValueError for profiles of another model."""
    sizes, server, budgets = asked_of(spec, profiles)
    found: list[Plan] = []
    lacking: dict[str, int] = {}
    for line, device in lines(spec, profiles, sizes, budgets, mode):
        schedule, peak = fitted(line, sizes, device)
        if tier := budgets.lacking(peak):
            lacking = lacking or {tier: peak[tier]}
            continue
        costs = ServerCosts(sizes, server, shared_updates=mode == DP, recorded=records(schedule))
        simulated = simulate(schedule, costs, steps=STEPS)
        found.append(
            Plan(
                method=line.method,
                fits=True,
                schedule=schedule,
                simulated=simulated.events,
                step_seconds=simulated.step_seconds,
                peak_bytes=peak,
                moved_bytes=schedule.moved_bytes(),
                binding=binding(simulated, spec.ranks),
                settings=dict(schedule.settings),
            )
        )
    if not found:
        ((tier, needed),) = lacking.items()
        raise DoesNotFit(
            f"{format_bytes(needed)} of {tier} memory are needed, "
            f"{format_bytes(budgets.to_dict()[tier])} are there",
            tier=tier,
        )
    return min(found, key=lambda one: one.step_seconds)


def fits(spec: RunSpec, profile: Profile, *, mode: str) -> bool:
    """Whether there is a plan: one whose micro-batches are the smallest, and in which no unit has
    a place of its own, needs the least. Raises ValueError as `plan` does."""
    check(spec, mode)
    profiles = {profile.microbatch: profile}
    try:
        sizes, _, budgets = asked_of(spec, profiles)
    except DoesNotFit:
        return False
    line, _ = next(lines(spec, profiles, sizes, budgets, mode))
    schedule = build(line, sizes)
    return budgets.lacking(peak_of(schedule, validate(schedule).peak_bytes)) is None


def asked_of(spec: RunSpec, profiles: Mapping[int, Profile]) -> tuple[Sizes, Server, Budgets]:
    """Costs by micro-batch, the machine and the budgets. Raises DoesNotFit where the host cannot
    hold the states."""
    model = make_model(spec.model)
    check_profiles(profiles, spec, model)
    sizes = profiled_sizes(model, spec, profiles)
    server = server_of(profiles[min(profiles)], spec)
    budgets = Budgets(device=server.device_bytes, host=server.host_bytes)
    check_states(sizes, units_of(spec.model), budgets.host)
    return sizes, server, budgets


def rehearsal(spec: RunSpec, profile: Profile) -> Schedule:
    """The schedule of a small model as a pipeline, to rehearse."""
    return plan(spec, {profile.microbatch: profile}, mode=PP).schedule


def lines(
    spec: RunSpec, profiles: Mapping[int, Profile], sizes: Sizes, budgets: Budgets, mode: str
) -> Iterator[tuple[Pipeline, int]]:
    """With micro-batches of 1, 2, 4, ... samples up to the largest that was profiled, or of the
    size that the spec pins, each with the device's bytes for it; no unit has a place of its own
    yet."""
    profile = profiles[min(profiles)]
    least = profile.limits.smallest if profile.limits else 1
    if spec.options.forward_size != "auto":
        tried = [spec.options.forward_size]
    else:
        parts = spec.ranks if mode == DP else 1
        tried = micro_batches(spec.batch, parts, least=least, most=max(profiles))
    for size in tried:
        cut = stages(sizes, units_of(spec.model), spec.ranks, size, mode)
        line = divided(mode, spec.batch, size, cut, clipped=spec.clip is not None)
        longest = longest_forward_s(sizes, units_of(spec.model), size)
        replay = longest < recorded_below_s(spec, profile)
        launched = 0 if replay else Budgets.launched(spec, profile)
        yield replace(line, replay=replay), budgets.device - launched


def stages(sizes: Sizes, units: int, ranks: int, size: int, mode: str) -> tuple[range, ...]:
    """The units of each rank: all, or those with which the slowest stage is fastest."""
    if mode == DP:
        return (range(units),) * ranks
    costs = [sizes.cost(unit, size) for unit in range(units)]
    work = [cost.forward_s + cost.recompute_s + cost.backward_s for cost in costs]
    return min_max_partition(work, ranks, lambda first, last: True)


def fitted(line: Pipeline, sizes: Sizes, device_bytes: int) -> tuple[Schedule, dict[str, int]]:
    """With as many places of their own as the device has room for; the schedule, and its peaks."""
    schedule = build(line, sizes)
    peaks = validate(schedule).peak_bytes
    nbytes = [sizes.visit_bytes(unit) for unit in range(line.head + 1)]
    own = []
    for rank, places in enumerate(line.places):
        room = device_bytes - peaks[rank][DEVICE] + 2 * places.nbytes(nbytes)
        roomy = (
            count
            for count in range(len(places.units), 0, -1)
            if 2 * replace(places, own=count).nbytes(nbytes) <= room
        )
        own.append(next(roomy, 0))
    while True:  # where all places are taken at once, it may be one too many
        places = [replace(each, own=n) for each, n in zip(line.places, own, strict=True)]
        schedule = build(replace(line, places=places), sizes)
        peaks = validate(schedule).peak_bytes
        over = [rank for rank, peak in peaks.items() if peak[DEVICE] > device_bytes and own[rank]]
        if not over:
            break
        for rank in over:
            own[rank] -= 1
    return schedule, peak_of(schedule, peaks)


def peak_of(schedule: Schedule, peaks: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """Bytes of each tier, from those of each rank: of the fullest device, and of all hosts."""
    device = max(peak[DEVICE] for peak in peaks.values())
    return {DEVICE: device, HOST_TIER: schedule.mapped_bytes, DISK: 0}
