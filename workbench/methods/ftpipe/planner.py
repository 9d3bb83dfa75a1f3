"""FTPipe's plan: the stages, the schedule that runs, proved and simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from workbench.core.bytesize import format_bytes
from workbench.core.division import packs_of
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.orders import SYNCHRONOUS, passes
from workbench.methods.ftpipe.parts import cut_and_map, partitioned
from workbench.methods.ftpipe.stage_sizes import FP32, StageSizes, sizes_of
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous, Loan
from workbench.model import make_model
from workbench.profile.budgets import Budgets
from workbench.profile.match import check_profile
from workbench.profile.profile import Profile
from workbench.profile.server import ServerCosts, server_of
from workbench.schedule.action import COMPUTE, Kind, lane_kind
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, Schedule
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate

STEPS = 12
"""Steps that are simulated: a pipeline of sixteen stages is full after some of them."""
TRIES = 8
"""Times that a partitioner is asked for stages within a budget."""


def stages_of(spec: RunSpec, units: int) -> tuple[range, ...]:
    """The units of each stage of the spec's cut. Raises ValueError for stages that the model cannot
    have."""
    stages = packs_of(spec.options.sizes)
    if (found := sum(map(len, stages))) != units:
        raise ValueError(f"cut is {spec.options.cut!r}, {found} units; the model has {units}")
    return stages


def loans_of(spec: RunSpec, stages: Sequence[range]) -> list[Loan]:
    """Weights that stages borrow of others, all of a pair of stages together."""
    stage_of = {unit: number for number, own in enumerate(stages) for unit in own}
    found: dict[tuple[int, int], list[int]] = {}
    model = make_model(spec.model, spec.seed)
    lent = {(stage_of[unit], *owner) for (unit, _), owner in model.tied().items()}
    for borrower, owner, name in lent:
        if borrower != stage_of[owner]:
            nbytes = model.shapes(owner)[name].numel() * FP32
            counts = found.setdefault((stage_of[owner], borrower), [0, 0])
            counts[not model.learns(owner, name)] += nbytes
    return [Loan(*pair, *counts) for pair, counts in sorted(found.items())]


def with_stages(spec: RunSpec, profile: Profile) -> RunSpec:
    """The spec with a cut and a map: those that it has, or those that its partitioner finds. Graphs
    of units know no scratch memory: where stages pass the budget by their schedule, others are
    asked for within as much less, and the first are kept where there are none. Raises ValueError
    where the partitioner finds none."""
    if spec.options.sizes:
        return spec
    sizes = sizes_of(profile)
    server, found = server_of(profile, spec), list[RunSpec]()
    left = server.device_bytes
    while len(found) < TRIES:
        try:
            one = partitioned(spec, profile, sizes, replace(server, device_bytes=left))
        except ValueError:
            if not found:
                raise
            break
        cut, ranks = cut_and_map(one)
        found.append(spec.with_(cut=cut, map=ranks))
        needs = _needs(_made(found[-1], profile)[0], found[-1])
        if max(needs.values()) <= server.device_bytes:
            return found[-1]
        unknown = max(needs[device] - known for device, known in enumerate(one.memory_bytes))
        left = int(min(server.device_bytes - unknown, max(one.memory_bytes) - 1))
    return found[0]


def pipeline_of(spec: RunSpec, stages: Sequence[range], sizes: StageSizes) -> Asynchronous:
    """The pipeline of a spec."""
    positions = spec.options.processes(len(stages), spec.ranks)
    return line_of(spec, positions, sizes, loans_of(spec, stages))


def line_of(
    spec: RunSpec, positions: Sequence[int], sizes: StageSizes, loans: Sequence[Loan]
) -> Asynchronous:
    """The pipeline of stages at these positions, which lend each other weights. Raises ValueError
    for loans that the options do not allow."""
    options, micros = spec.options, spec.microbatches
    depths, every = options.depths(len(positions), spec.ranks), range(len(positions))
    made = [passes(options.stage_order, depth, micros, micros) for depth in depths]
    kinds = {"F": Kind.FORWARD, "B": Kind.BACKWARD}
    turns = [[(kinds[each.kind], each.micro) for each in own] for own in made]
    lent = [loan for loan in loans if loan.nbytes]
    if lent and (options.prediction != "none" or options.gap_aware):
        raise ValueError(
            f"stage {lent[0].borrower} borrows a weight of stage {lent[0].owner}, whose updates "
            "it does not know: it can neither predict them nor tell their gap; use a model whose "
            "weights are not tied (of a run --set tied=false), a cut with both in one stage, or "
            "neither prediction nor gap_aware"
        )
    line = Asynchronous(
        label=options.stage_order,
        positions=positions,
        depths=depths,
        passes=turns if options.synchronous else (),
        micros=micros,
        samples=-(-spec.batch // micros),
        sizes=sizes,
        recompute=spec.activations != "keep",
        loans=loans,
        update_bytes=[
            sizes.update_bytes(stage, optimizer=options.optimizer, device=spec.device)
            for stage in every
        ],
        predict_bytes=[sizes.predict_bytes(stage) for stage in every],
        stashes=options.weight_stashing,
        predicts=options.prediction != "none",
        nesterov=options.prediction == "nag",
        averages=options.gap_aware,
    )
    for stage in every:
        own = [each for each in line.lends if each.borrower == stage]
        here = [each for each in own if line.positions[each.owner] == line.positions[stage]]
        if len({line.late(each) for each in here}) > 1:
            owners = " and ".join(str(each.owner) for each in here)
            raise ValueError(
                f"stage {stage} borrows weights of stages {owners} on its own rank, whose versions "
                "would differ: give a map with them on another rank, a partition with fewer stages "
                "on a rank, or a synchronous order"
            )
    return line


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The plan. Raises ValueError for stages that cannot be."""
    check_profile(profile, spec)
    spec = with_stages(spec, profile)
    made, line, sizes = _made(spec, profile)
    shared, server, needs = made, server_of(profile, spec), _needs(made, spec)
    adam = server.device_adam_params_per_s
    costs = ServerCosts(sizes, server, shared_updates=False, device_adam=adam)
    if spec.options.process_per_stage:  # is predicted as one process a device
        positions = spec.options.positions(made.num_units, spec.ranks)
        shared = schedule(replace(line, positions=positions))
    simulated = simulate(shared, costs, steps=STEPS)
    [(fullest, most)] = needs.most_common(1)
    peak = {DEVICE: most, HOST_TIER: 0, DISK: 0}
    budgets = Budgets(device=server.device_bytes, host=server.host_bytes)
    lacking = budgets.lacking(peak)
    step = simulated.step_seconds
    slowest, busy = _busiest(shared, costs)
    need = f"{format_bytes(peak[DEVICE])}, the budget is {format_bytes(budgets.device)}"
    return Plan(
        method=spec.method,
        fits=lacking is None,
        schedule=made if lacking else replace(made, budgets=budgets.to_dict()),
        step_seconds=step,
        peak_bytes=peak,
        moved_bytes=made.moved_bytes(),
        binding=f"device memory: rank {fullest} needs {need}"
        if lacking
        else f"passes of rank {slowest}: {min(1.0, busy / step):.0%} of a step of {step:.4g} s",
        lacking=lacking,
        settings={
            "cut": spec.options.cut, "map": shared.settings["positions"],
            "processes": made.num_ranks,
        },
        notes=tuple(notes_of(made, spec)),
    )  # fmt: skip


def _made(spec: RunSpec, profile: Profile) -> tuple[Schedule, Asynchronous, StageSizes]:
    """The schedule of a spec with stages, its pipeline, and the sizes of these."""
    stages = stages_of(spec, len(profile.units))
    sizes = StageSizes(sizes_of(profile), stages, spec.options.state_values)
    line = pipeline_of(spec, stages, sizes)
    return schedule(line), line, sizes


def _needs(made: Schedule, spec: RunSpec) -> Counter[int]:
    """Bytes that a schedule needs of each device, by its proof."""
    found, devices = Counter[int](), spec.options.devices(made.num_units, spec.ranks)
    for process, peak in validate(made).peak_bytes.items():
        found[devices[process]] += peak[DEVICE]
    return found


def budgets_of(spec: RunSpec, made: Schedule) -> list[int | None]:
    """Bytes that each process may take of its device: those that it needs, and an even part of what
    all of that device leave of the budget."""
    devices = spec.options.devices(made.num_units, spec.ranks)
    if spec.device_memory is None or not spec.options.process_per_stage:
        return [spec.device_memory] * len(devices)
    proved = validate(made).peak_bytes
    needs = [proved[process][DEVICE] for process in range(made.num_ranks)]
    left = dict.fromkeys(devices, spec.device_memory)
    for device, own in zip(devices, needs, strict=True):
        left[device] -= own
    pairs = zip(devices, needs, strict=True)
    return [own + left[device] // devices.count(device) for device, own in pairs]


def notes_of(made: Schedule, spec: RunSpec) -> list[str]:
    """Notes of a plan and of its run: versions of weights, and processes that share devices."""
    notes = [_staleness_note(made), *_weights_notes(spec)]
    if spec.options.process_per_stage:
        notes.append(
            f"a process a stage: {made.num_units} on {spec.ranks} devices, each with a context of "
            "its own, which no budget counts; predicted as one process a device, whose stages take "
            "turns"
        )
    return notes


def _busiest(made: Schedule, costs: ServerCosts) -> tuple[int, float]:
    """The rank whose passes and updates take longest alone, and how long, in seconds."""
    busy = dict.fromkeys(range(made.num_ranks), 0.0)
    for action in made.actions:
        if lane_kind(action.lane) == COMPUTE:
            busy[action.rank] += costs.seconds(action)
    slowest = max(busy, key=busy.get)
    return slowest, busy[slowest]


def _staleness_note(made: Schedule) -> str:
    """How stale the weights of forward passes are, in words."""
    stale = [action.stale for action in made.actions if action.kind is Kind.FORWARD]
    if not max(stale):
        how = "synchronous" if made.name in SYNCHRONOUS else "asynchronous"
        return f"{how}: no forward pass reads weights that lack an update"
    return (
        f"asynchronous: forward passes read weights that lack up to {max(stale)} updates, "
        f"{sum(stale) / len(stale):.3g} on the mean"
    )


def _weights_notes(spec: RunSpec) -> list[str]:
    """The weights that passes read, in words, where they are not the published default's."""
    options, notes = spec.options, []
    if options.prediction != "none":
        notes.append(f"forward passes read weights that {options.prediction} predicts")
    if options.weight_stashing:
        notes.append("weight stashing: backward passes read the weights of their forward passes")
    elif spec.activations == "keep":
        notes.append(
            "gradients mix two versions of weights: kept activations are of the forward pass, "
            "weights of the backward pass"
        )
    if options.gap_aware:
        notes.append("gradients are divided by their gap-aware penalty")
    return notes
