"""Plans of data parallelism, GPipe and 1F1B on several devices.

Their schedules (`parallel_step`) are proved and simulated like ours. Of the links between devices
no more is known than what Harmony's plans take (`profile.server.server_of`), so predictions
compare with those. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baselines.parallel_step import Divided, Step, line_of
from baselines.stages import check_shares, stages_for
from workbench.core.bytesize import format_bytes
from workbench.core.spec import RunSpec
from workbench.methods.offload.evaluate import STEPS
from workbench.methods.pipeline.orders import lists, one_f_one_b
from workbench.model import make_model
from workbench.profile.budgets import Budgets
from workbench.profile.match import check_profile
from workbench.profile.profile import Profile
from workbench.profile.server import ServerCosts, server_of
from workbench.schedule.action import COMPUTE
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER
from workbench.schedule.simulate import Simulation, simulate
from workbench.schedule.validate import validate


def data_parallel(spec: RunSpec, profile: Profile) -> Plan:
    """The whole model on every device; every rank has its share of every micro-batch.

    Raises ValueError where a share is empty.
    """
    check_profile(profile, spec)
    check_shares(spec.microbatch, spec.ranks)
    passes = [[*one_f_one_b(0, 1, spec.microbatches)]] * spec.ranks
    whole = [range(len(profile.units))] * spec.ranks
    return plan_of(Step(spec, profile, line_of(spec, passes, whole, Divided)))


def pipeline(spec: RunSpec, profile: Profile, order: str) -> Plan:
    """A stage on every device, and passes in the order of that name."""
    check_profile(profile, spec)
    flops, parameters = zip(*((unit.flops, unit.parameters) for unit in profile.units), strict=True)
    stages = stages_for(spec, flops, parameters)
    passes = lists(order, spec.ranks, spec.microbatches)
    shared = _shared(spec, stages) * profile.weight_bytes if spec.model.decomposed else None
    return plan_of(Step(spec, profile, line_of(spec, passes, stages), shared=shared))


def _shared(spec: RunSpec, stages: Sequence[range]) -> int:
    """Values of the weights of a module that the first stage owns and the last one has, too. Raises
    ValueError where others share some, whose messages no schedule has."""
    model = make_model(spec.model, spec.seed)
    stage_of = {unit: number for number, own in enumerate(stages) for unit in own}
    found: dict[tuple[int, str], int] = {}
    for (unit, _), (owner, name) in model.tied().items():
        pair = stage_of[owner], stage_of[unit]
        if pair[0] == pair[1]:
            continue
        if pair != (0, len(stages) - 1):
            raise ValueError(
                f"stages {pair[0]} and {pair[1]} share a weight, and {spec.method} is planned with "
                "those of the first and the last stage alone; a run measures it"
            )
        found[owner, name] = model.shapes(owner)[name].numel()
    return sum(found.values())


def plan_of(step: Step, library: str = "torch") -> Plan:
    """Prove and simulate."""
    spec, profile = step.spec, step.profile
    schedule = step.schedule()
    server = server_of(profile, spec.with_(ranks=schedule.mesh.processes))
    proved = validate(schedule).peak_bytes
    adam = step.updaters * profile.hardware.device_adam_params_per_s
    costs = ServerCosts(step.sizes, server, shared_updates=False, device_adam=adam)
    simulated = simulate(schedule, costs, steps=STEPS)
    fullest = max(proved, key=lambda rank: proved[rank][DEVICE])
    peak = {DEVICE: proved[fullest][DEVICE], HOST_TIER: 0, DISK: 0}
    budgets = Budgets(device=server.device_bytes, host=server.host_bytes)
    lacking = budgets.lacking(peak)
    return Plan(
        method=spec.method,
        fits=lacking is None,
        schedule=schedule if lacking else replace(schedule, budgets=budgets.to_dict()),
        step_seconds=simulated.step_seconds,
        peak_bytes=peak,
        moved_bytes=schedule.moved_bytes(),
        binding=_binding(simulated, len(proved)) if lacking is None else (
            f"device memory: rank {fullest} needs {format_bytes(peak[DEVICE])}, the budget is "
            f"{format_bytes(budgets.device)}"
        ),
        lacking=lacking,
        settings=dict(schedule.settings),
        notes=(
            f"predicted from {library}'s schedule; the library plans for itself",
            "messages between devices as in Harmony's plans: at the rate of the host's link",
        ),
    )  # fmt: skip


def _binding(simulated: Simulation, ranks: int) -> str:
    """Names the rank whose compute takes longest, and how much of a step it waits."""
    seconds = simulated.step_seconds
    busy = {rank: simulated.busy_seconds(COMPUTE, rank) for rank in range(ranks)}
    rank = max(busy, key=busy.get)
    words = f"compute of rank {rank}: busy {busy[rank] / seconds:.0%} of a step of {seconds:.4g} s"
    return words if ranks == 1 else f"{words}, else waiting for other ranks"
