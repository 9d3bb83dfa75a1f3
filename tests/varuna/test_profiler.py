"""A user's module is measured slice by slice, and its shape is chosen from that."""

from __future__ import annotations

from math import inf

import pytest
import torch
import torch.distributed as dist

from tests.varuna import net
from tests.varuna.workers import Workers
from workbench.methods.pipeline.cutting import measured
from workbench.methods.pipeline.making import has_room
from workbench.methods.pipeline.network_timing import sizes_to, wire_of
from workbench.methods.pipeline.slice_sizes import stages_of
from workbench.methods.varuna import AutoConfig, Profiler
from workbench.model.slices import Slices
from workbench.profile.slice_timing import SliceBench
from workbench.profile.slices import Named, load, machine_of
from workbench.profile.timing import Sample
from workbench.runtime.memory.tiers import OutOfMemory


def test_two_ranks_measure_a_net_and_autoconfig_answers(tmp_path):
    with Workers() as workers:
        first, second = workers.run(
            "profiled", replicas=2, out=str(tmp_path), per_host=2, sizes=[1, 2]
        )
    assert first == second, (first, second)
    assert first["kept"], "one that fits is kept unless it is asked for anew"
    name, digest = first["model"]
    model = Named(name=name, digest=digest)
    profile = load(tmp_path, model, machine_of("cpu"))

    module = net.net()
    assert profile.samples == (1, 2)
    assert [each.parameters for each in profile.slices[1:-1]] == [304] * (net.BLOCKS - 1)
    assert profile.slices[0].parameters == module.embed.weight.numel()
    assert profile.slices[1].boundary_bytes == 4 * net.SEQ * (net.HIDDEN + 1), "x and the mask"
    for each in profile.slices:
        one, two = each.costs
        assert each.weight_bytes == 4 * each.parameters
        assert 2 * each.weight_bytes < each.state_bytes < 3 * each.weight_bytes, "AdamW's"
        assert min(one.forward_s, one.backward_s, two.forward_s, two.backward_s) > 0
        assert each.update_s > 0
        assert one.backward_scratch_bytes > 0
    for each in profile.slices[1:]:
        one, two = each.costs
        assert 0 < one.kept_bytes < two.kept_bytes
    assert 0 < profile.within.bytes_per_s < inf
    assert profile.between is None, "the ranks were those of one host"
    assert {each.ranks for each in profile.sums} == {2}
    assert all(each.seconds > 0 for each in profile.sums)

    found = AutoConfig(2, 2, 8, tmp_path, verbose=False, model=model)
    shapes = {(row.stages, row.replicas, row.micro) for row in found.candidates if not row.reason}
    assert shapes == {(p, d, m) for p, d in ((1, 1), (2, 1), (1, 2)) for m in (1, 2)}
    assert found.get_min()[2] > 0


def test_a_size_without_memory_is_left_out_and_named(tmp_path, monkeypatch):
    passes = SliceBench.passes

    def few(bench, inputs, samples):
        if samples > 1 and bench._stage.units.start == 2:
            raise OutOfMemory(tier="device", what="x", asked=9, in_use=1, budget=1)
        return passes(bench, inputs, samples)

    monkeypatch.setattr(SliceBench, "passes", few)
    profiler = Profiler(net.net(), net.batch, "cpu", out_folder=tmp_path)
    profiler.set_optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    profiler.profile_all([2, 1])
    found = load(tmp_path)
    assert (found.samples, found.lacking) == ((1,), (2,))
    assert {each.state_bytes for each in found.slices} == {0}, "SGD has none"
    with pytest.raises(ValueError, match="no memory for 2 samples"):
        profiler.profile_all([2])
    with pytest.raises(ValueError, match="numbers from 1 on"):
        profiler.profile_all([0, 1])
    dist.destroy_process_group()  # of this process alone, which a script's end would leave


def test_room_for_modules_is_known_before_a_process_has_joined(monkeypatch):
    """Later rounds of a job ask so."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (has_room(1), has_room(1 << 60)) == (True, False)


def test_a_cut_is_measured_on_one_slice_of_a_kind(monkeypatch):
    times, seen = {0: (1, 2), 1: (3, 4), 2: (2, 4.5), 4: (6, 1)}, []

    def seconds(bench: SliceBench) -> list[list[Sample]]:
        seen.append(bench._stage.units.start)
        forward, backward = times[seen[-1]]
        return [[Sample(each, each)] * 4 for each in (forward, forward, backward)]

    monkeypatch.setattr(SliceBench, "_seconds", seconds)
    slices, random = Slices(net.net(), net.batch), torch.random.get_rng_state()
    profile = measured(slices, 2, device=torch.device("cpu"), dtype=torch.float32)
    first, last = stages_of(profile, "varuna", 2, 2, 2, 7)
    assert (len(first), len(last), seen) == (2, 3, [*times]), "3, if the last one ran twice"
    assert torch.equal(torch.random.get_rng_state(), random)


def test_a_wire_is_told_from_round_trips():
    latency, rate, sd = 1e-3, 1e9, 2e-4
    draw = torch.Generator().manual_seed(0)
    trips = {
        nbytes: [
            2 * (latency + nbytes / rate) + sd * float(torch.randn(2, generator=draw).abs().sum())
            for _ in range(300)
        ]
        for nbytes in sizes_to(16 << 20)
    }
    wire = wire_of(trips)
    assert wire.latency_s == pytest.approx(latency, rel=0.05)
    assert wire.bytes_per_s == pytest.approx(rate, rel=0.02)
    assert wire.jitter.sd_s == pytest.approx(sd, rel=0.1)
