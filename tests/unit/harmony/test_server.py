"""Devices that share a resource are slowed as was measured, or as one link allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.methods.plain import made_up_profile, spec_for
from tests.unit.harmony.made_up import Layers
from tests.unit.harmony.test_search import SERVER
from workbench.core.division import PP, packs_of
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.step_time import StepTimeEstimate
from workbench.model import make_model
from workbench.profile.alone import Setting
from workbench.profile.budgets import Budgets
from workbench.profile.footprint import footprints
from workbench.profile.measure import kind_costs
from workbench.profile.profile import Wires
from workbench.profile.server import ServerCosts, server_of
from workbench.profile.unit_costs import profiled_sizes
from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import Buffer, Schedule
from workbench.schedule.simulate import simulate


def test_stashed_inputs_and_weights_share_a_link():
    """Two copies of 0.6 MB at 0.6 MB/s end after two seconds, and not after one."""
    buffers = {name: Buffer(tier="device", nbytes=600_000) for name in ("w1", "x1.0")}
    schedule = Schedule(
        name="two copies",
        num_units=2,
        num_microbatches=1,
        buffers=buffers,
        actions=(
            Action(kind=Kind.LOAD, unit=1, lane="h2d", nbytes=600_000, takes=("w1",)),
            Action(
                kind=Kind.FETCH, unit=1, microbatch=0, lane="h2d.1", nbytes=600_000,
                takes=("x1.0",),
            ),
            Action(
                kind=Kind.FORWARD, unit=1, microbatch=0, lane="compute",
                after=("L1", "T1.0"), frees=("w1", "x1.0"),
            ),
        ),
    )  # fmt: skip
    costs = ServerCosts(Layers([10, 10]), SERVER, shared_updates=False)
    ends = {event.name: event.end_s for event in simulate(schedule, costs, steps=1).events}
    assert abs(ends["L1"] - 2.0) < 1e-9
    assert abs(ends["T1.0"] - 2.0) < 1e-9


def test_a_message_has_a_latency():
    assert SERVER.message_seconds(10_000_000) == 1.0


def test_lanes_disturb_each_other_as_pairs_do_and_two_of_a_link_as_one():
    slowdowns = {"host|h2d": 1.5, "compute|host": 1.2, "compute|h2d": 1.1, "h2d|host": 1.25}
    costs = ServerCosts(
        Layers([10, 10]), replace(SERVER, slowdowns=slowdowns), shared_updates=False
    )
    assert costs.slowdown("host", ["h2d"]) == costs.slowdown("host", ["h2d", "h2d"]) == 1.5
    assert costs.slowdown("compute", ["h2d", "host"]) == pytest.approx(1.32)
    assert costs.slowdown("h2d", ["h2d", "host"]) == 2.5
    assert costs.slowdown("d2h", ["h2d", "host"]) == 1.0


def test_updates_meet_the_transfers_of_all_ranks():
    """Twice as much is in their way where two links run at full speed, as far as one GPU that was
    measured alone tells; compute has its own."""
    slowdowns = {"host|h2d": 1.2, "host|d2h": 1.1, "host|d2h+h2d": 1.3, "compute|host": 1.4}
    hardware = replace(
        made_up_profile(spec_for()).hardware,
        device="cuda", slowdowns=slowdowns, h2d_bytes_per_s=2e9, d2h_bytes_per_s=2e9,
        host_copy_bytes_per_s=2e9,
    )  # fmt: skip
    spec = spec_for(method="harmony-pp", ranks=2, batch=4, device_memory=1 << 30)
    profile = replace(made_up_profile(spec), hardware=hardware)
    found = server_of(profile, spec).slowdowns
    expected = {"host|h2d": 1.4, "host|d2h": 1.2, "host|d2h+h2d": 1.6, "compute|host": 1.4}
    assert found == pytest.approx(expected)
    cpu = replace(profile, hardware=replace(profile.hardware, device="cpu"))
    assert not server_of(cpu, spec).slowdowns


def test_what_all_ranks_were_measured_with_goes_before_what_one_was():
    """Of lanes at the host's memory and of updates there; passes keep what a single GPU has."""
    hardware = replace(
        made_up_profile(spec_for()).hardware,
        device="cuda", host_adam_params_per_s=5e9, slowdowns={"host|h2d": 1.2, "compute|host": 1.4},
    )  # fmt: skip
    wires = Wires(
        ranks=2, load_bytes_per_s=2e9, store_bytes_per_s=2e9, message_bytes_per_s=1e9,
        reduce_bytes_per_s=1e9, message_latency_s=0.0, host_adam_params_per_s=7e9,
        slowdowns={"host|h2d": 1.1},
    )  # fmt: skip
    spec = spec_for(method="harmony-pp", ranks=2, batch=4, device_memory=1 << 30)
    profile = replace(made_up_profile(spec), hardware=replace(hardware, wires=wires))
    found = server_of(profile, spec)
    assert (found.host_adam_params_per_s, found.slowdowns) == (
        7e9, {"host|h2d": 1.1, "compute|host": 1.4},
    )  # fmt: skip
    assert server_of(profile, spec.with_(ranks=4)).host_adam_params_per_s == 5e9


def test_the_norm_is_made_by_one_rank_with_its_part_of_the_memory():
    """Four passes over 26 MB where all ranks together move 26 bytes for each of 1e9 parameters."""
    norm = Action(kind=Kind.NORM, unit=0, lane="host", nbytes=26_000_000)
    for ranks in (1, 4):
        server = replace(SERVER, ranks=ranks, host_adam_params_per_s=1e9)
        costs = ServerCosts(Layers([10, 10]), server, shared_updates=True)
        assert costs.seconds(norm) == pytest.approx(ranks * 4e-3)


def test_passes_of_ranks_that_share_a_processor_take_longer_each():
    """Every pass by as much, in the simulator and in estimates; copies and updates do not."""
    crowded = replace(SERVER, pass_overhead_s=0.5)
    alone, beside = (
        ServerCosts(Layers([10, 10]), server, shared_updates=False) for server in (SERVER, crowded)
    )
    for kind in Kind:
        action = Action(kind=kind, unit=1, microbatch=0, lane="compute", samples=(0, 4), nbytes=8)
        try:
            before = alone.seconds(action)
        except ValueError:  # nothing that several ranks do
            continue
        halves = (Kind.INPUT_GRAD, Kind.WEIGHT_GRAD)
        passes = kind in (Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD, *halves)
        assert beside.seconds(action) == pytest.approx(before + 0.5 * passes)
    packs = Packs(
        mode=PP, ranks=2, minibatch=4, forward_size=2, backward_size=4,
        forward=packs_of([1]), backward=packs_of([1, 1]),
    )  # fmt: skip
    least = [
        StepTimeEstimate(Layers([10, 10]), server, 2).least_seconds(packs)
        for server in (SERVER, crowded)
    ]
    # Rank 0: two forward passes, a repeated and a backward one. Rank 1: the last two alone.
    assert least[1] == pytest.approx(least[0] + 4 * 0.5)


def test_what_was_rehearsed_is_planned_with_for_as_many_ranks():
    wires = Wires(
        ranks=2, load_bytes_per_s=2e9, store_bytes_per_s=2e9, message_bytes_per_s=1e9,
        reduce_bytes_per_s=1e9, message_latency_s=0.0, pass_overhead_s=1e-3,
    )  # fmt: skip
    spec = spec_for(method="harmony-pp", ranks=2, batch=4)
    profile = made_up_profile(spec)
    profile = replace(profile, hardware=replace(profile.hardware, wires=wires))
    assert server_of(profile, spec).pass_overhead_s == 1e-3
    assert server_of(profile, spec.with_(ranks=4)).pass_overhead_s == 0.0
    never = replace(profile.hardware, wires=replace(wires, pass_overhead_s=None))
    assert server_of(replace(profile, hardware=never), spec).pass_overhead_s == 0.0


@pytest.mark.parametrize(
    ("device", "source", "mib", "expected"),
    [
        ("cuda", "measured", 1024, 120 - 51.2),
        ("cuda", "measured", 256, 32 - 12.8),
        ("cuda", "measured", 11 * 1024, 0),
        ("cuda", "published", 1024, 0),
        ("cpu", "measured", 1024, 0),
    ],
)
def test_launched_passes_leave_a_part_of_a_small_gpu(device, source, mib, expected):
    spec = spec_for(device_memory=mib << 20)
    profile = made_up_profile(spec)
    profile = replace(profile, hardware=replace(profile.hardware, device=device, source=source))
    assert Budgets.launched(spec, profile) == pytest.approx(expected * 2**20, abs=1)


def test_what_the_ends_of_a_measured_decoder_return_is_counted_once_and_whole():
    """As much as a rank has there, which holds all gradients of a layer at once."""
    size = (2, 64)
    spec = RunSpec(
        method="harmony-pp", batch=2,
        model=ModelSpec(layers=2, hidden=64, heads=4, seq=64, vocab=256, dropout=0.0),
    )  # fmt: skip
    model = make_model(spec.model)
    setting = Setting.of_tokens(model, size, dtype="fp32", device="cpu")
    found, _ = footprints(setting)
    made_up = made_up_profile(spec)
    units = [replace(unit, **found[unit.kind]) for unit in made_up.units]
    hardware = replace(made_up.hardware, source="measured")
    sizes = profiled_sizes(
        model, spec, {2: replace(made_up, units=tuple(units), hardware=hardware)}
    )
    real, _ = kind_costs(setting)
    for unit in (0, 1, model.head):
        cost, there = sizes.cost(unit, 2), real[model.kind(unit)]
        counted = cost.kept_bytes + cost.backward_scratch_bytes + sizes.fresh_bytes(unit)
        needed = there.kept_bytes + there.backward_scratch_bytes + sizes.weight_bytes(unit)
        needed -= cost.output_bytes  # there the gradient of the output was made within the pass
        assert needed <= counted <= needed + 4096, model.kind(unit)
