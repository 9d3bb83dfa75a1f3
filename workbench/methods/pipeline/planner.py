"""Plans of pipelines: stages balanced by what was measured, and recomputation where memory asks.

Every plan is proved (bytes of every rank too) and simulated before it runs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workbench.core.bytesize import format_bytes
from workbench.core.spec import RunSpec
from workbench.methods.pipeline.draft import Pipeline
from workbench.methods.pipeline.orders import ORDERS, Pass, in_flight, lists
from workbench.methods.pipeline.program import Program
from workbench.methods.rank_plans import binding
from workbench.model import make_model, units_of
from workbench.partition.stages import min_max_stages
from workbench.profile.budgets import Budgets
from workbench.profile.match import check_profiles
from workbench.profile.profile import Profile
from workbench.profile.server import ServerCosts, server_of
from workbench.profile.unit_costs import ProfiledSizes, profiled_sizes
from workbench.schedule.build.division import packs_of
from workbench.schedule.plan import DoesNotFit, Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, Schedule
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate

STEPS = 3
RECOMPUTE = {"auto": (False, True), "keep": (False,), "recompute": (True,)}
"""`activations` of a spec -> whether they are recomputed, as it is tried."""


def check(spec: RunSpec, mode: str) -> None:
    """Raise ValueError, before anything is measured, for what no plan can take."""
    if spec.activations not in RECOMPUTE:
        raise ValueError(
            f"activations is {spec.activations!r}; a pipeline keeps or recomputes them: give keep, "
            "recompute or auto"
        )
    passes = _passes(spec, mode)
    stages, units = len(passes) * spec.options.chunks, units_of(spec.model)
    if stages > units:
        raise ValueError(
            f"{stages} stages need a unit each, and the model has {units}: its layers, the "
            "embedding and the head"
        )
    given = spec.options.given_stages
    if given and (len(given), sum(given)) != (stages, units):
        raise ValueError(
            f"stages {spec.options.stages!r} are {len(given)} of {sum(given)} units; the ranks "
            f"have {stages} stages and the model {units} units"
        )


def plan(spec: RunSpec, profiles: Mapping[int, Profile], *, mode: str) -> Plan:
    """The first plan that fits: with activations kept, else recomputed. Raises DoesNotFit where
    none does, ValueError for profiles of another model."""
    model = make_model(spec.model)
    check_profiles(profiles, spec, model)
    profile = profiles[min(profiles)]
    sizes, server = profiled_sizes(model, spec, profiles), server_of(profile, spec)
    device = server.device_bytes - Budgets.launched(spec, profile)
    budgets = Budgets(device=device, host=server.host_bytes)
    lacking: list[tuple[str, int]] = []
    apart = ORDERS[mode].halved or ORDERS[mode].recomputes
    again = "recompute" if apart else "checkpoint"
    tries = RECOMPUTE[spec.activations]
    if ORDERS[mode].recomputes:  # its last stage keeps them, which may be the only one
        tries = (spec.ranks > spec.options.replicas,)
    for recompute in tries:
        activations = again if recompute else "keep"
        schedule = _schedule(spec, sizes, mode, device, activations)
        proved = validate(schedule).peak_bytes
        peak = {
            DEVICE: max(peaks[DEVICE] for peaks in proved.values()),
            HOST_TIER: schedule.mapped_bytes,
            DISK: 0,
        }
        if tier := budgets.lacking(peak):
            lacking.append((tier, peak[tier]))
            continue
        costs = ServerCosts(sizes, server, shared_updates=False)
        simulated = simulate(schedule, costs, steps=STEPS)
        moved = {way: n * schedule.replicas for way, n in schedule.moved_bytes().items()}
        return Plan(
            method=mode,
            fits=True,
            schedule=replace(schedule, budgets=budgets.to_dict()),
            step_seconds=simulated.step_seconds,
            peak_bytes=peak,
            moved_bytes=moved,
            binding=binding(simulated, schedule.num_ranks),
            settings=dict(schedule.settings),
        )
    tier, needed = min(lacking, key=lambda one: one[1])
    raise DoesNotFit(
        f"{format_bytes(needed)} of {tier} memory are needed, "
        f"{format_bytes(budgets.to_dict()[tier])} are there",
        tier=tier,
    )


def rehearsal(spec: RunSpec, profile: Profile) -> Schedule:
    """The 1F1B schedule of a small model, to rehearse."""
    return plan(spec, {profile.microbatch: profile}, mode="1f1b").schedule


def _passes(spec: RunSpec, mode: str) -> list[list[Pass]]:
    return lists(mode, spec.ranks // spec.options.replicas, spec.microbatches, spec.options.chunks)


def _schedule(
    spec: RunSpec, sizes: ProfiledSizes, mode: str, device_bytes: int, activations: str
) -> Schedule:
    passes = _passes(spec, mode)
    pipeline = Pipeline(
        method=mode,
        passes=passes,
        stages=(),
        micro=max(spec.options.micro_sizes(spec)),
        samples=spec.options.samples(spec),
        replicas=spec.options.replicas,
        activations=activations,
        clipped=spec.clip is not None,
    )
    given = spec.options.given_stages
    stages = packs_of(given) if given else _balanced(spec, sizes, pipeline, device_bytes)
    return Program(replace(pipeline, stages=stages), sizes).schedule()


def _balanced(
    spec: RunSpec, sizes: ProfiledSizes, pipeline: Pipeline, device_bytes: int
) -> tuple[range, ...]:
    """Stages by the seconds of all passes over a unit; where one has a device to itself, within its
    memory, by what it keeps for each micro-batch in flight. The proof has the last word."""
    units, micro, chunks = units_of(spec.model), pipeline.micro, spec.options.chunks
    inner, order = range(1, units - 1), ORDERS[pipeline.method]
    halved, listed = order.halved, order.recomputes and pipeline.ranks > 1
    costs = [sizes.cost(unit, micro) for unit in range(units)]
    if pipeline.activations == "checkpoint":
        costs = [c.from_checkpoint() if u in inner else c for u, c in enumerate(costs)]
    recomputes = pipeline.activations == "recompute" and not order.recomputes
    again = [recomputes and unit in inner for unit in range(units)]
    in_last = [c.recompute_s + c.backward_s for c in costs] if listed else None
    seconds = [
        (c.forward_s if listed or repeated else 0.0)
        + c.recompute_s
        + (sum(c.halves) if halved else c.backward_s)
        for c, repeated in zip(costs, again, strict=True)
    ]
    flights = [in_flight(passes) for passes in pipeline.passes]

    def nbytes(unit: int, flight: int) -> int:
        cost, always = costs[unit], 2 * sizes.visit_bytes(unit) + sizes.state_bytes(unit)
        each = sizes.input_bytes(unit, micro) + (0 if again[unit] else cost.kept_bytes)
        return always + flight * (each + (cost.half_bytes if halved else 0))

    def fits(stage: int, stretch: range) -> bool:
        flight, waiting = flights[stage % pipeline.ranks], 0
        if listed:  # micro-batches wait as the stage's input, and activations are those of one
            waiting, flight = flight * sizes.input_bytes(stretch.start, micro), 1
        needed = waiting + sum(nbytes(u, flight) for u in stretch)
        return chunks > 1 or needed <= device_bytes

    count = pipeline.ranks * chunks
    found = min_max_stages(seconds, count, fits, in_last)
    return found or min_max_stages(seconds, count, lambda stage, stretch: True, in_last)
