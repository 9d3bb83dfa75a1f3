"""The shape of a user's model on so many GPUs, from a profile of its slices."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from workbench.core.sealed import read_sealed
from workbench.methods.pipeline.slice_sizes import cut_of, stages_of
from workbench.methods.varuna import AutoConfig, autoconfig
from workbench.profile.slices import (
    Deviation,
    Named,
    RingSum,
    Slice,
    SliceProfile,
    Tied,
    Wire,
    load,
)
from workbench.profile.units import UnitCost
from workbench.schedule.plan import DoesNotFit

SIZES = (1, 2, 4)
MIB = 1 << 20
WITHIN = Wire(latency_s=1e-5, bytes_per_s=1e10)
BETWEEN = Wire(latency_s=2e-3, bytes_per_s=5e8)


def slice_of(number: int) -> Slice:
    seconds = 2e-3 * (1 + number % 3)
    return Slice(
        weight_bytes=4 * MIB,
        state_bytes=8 * MIB,
        boundary_bytes=256 << 10,
        update_s=1e-4,
        costs=tuple(
            UnitCost(
                kind="slice",
                parameters=MIB,
                forward_s=seconds * (0.5 + 0.5 * size),
                recompute_s=seconds * (0.5 + 0.5 * size),
                backward_s=2 * seconds * (0.5 + 0.5 * size),
                kept_bytes=8 * MIB * size,
                backward_scratch_bytes=MIB * size,
            )
            for size in SIZES
        ),
    )


PROFILE = SliceProfile(
    model=Named(name="gpt", digest="1a"),
    machine=Named(name="H100", digest="2b"),
    device_bytes=1 << 30,
    samples=SIZES,
    slices=tuple(map(slice_of, range(6))),
    within=WITHIN,
    between=BETWEEN,
    sums=tuple(RingSum(ranks=2, nbytes=n, seconds=1e-4 + n / 1e9) for n in (MIB, 64 * MIB)),
)


@pytest.fixture
def config(tmp_path):
    """Makes an AutoConfig; changes of the profile are by name, those of the call too."""

    def make(gpus=8, per_vm=4, batch=24, profile=PROFILE, **changes) -> AutoConfig:
        profile.save(tmp_path)
        return AutoConfig(gpus, per_vm, batch, tmp_path, verbose=False, **changes)

    return make


def test_all_shapes_are_compared_one_stage_and_a_slice_a_stage_among_them(config):
    made = config()
    shapes = {(row.stages, row.replicas, row.micro) for row in made.candidates}
    assert shapes == {
        (stages, copies, micro)
        for stages in range(1, 7)
        for copies in range(1, 8 // stages + 1)
        for micro in (1, 2, min(4, -(-24 // copies)))
    }
    stages, micro, seconds = made.get_min()
    best = made.candidates[0]
    assert (best.stages, best.micro, best.seconds, best.proved) == (stages, micro, seconds, True)
    assert seconds == min(made.batch_times.values()) == made.batch_times[stages]
    assert made.micro_batch[stages] == micro
    assert set(made.batch_times) == set(range(1, 7))
    assert sum(map(len, made.stages)) == 6
    five = next(row for row in made.candidates if (row.replicas, row.micro) == (5, 4))
    assert five.microbatches == 2  # ceil(ceil(24 / 5) / 4)


def test_memory_is_proved_and_one_sample_may_be_too_many(config):
    roomy = config(gpus=1, gpu_memory_capacity="1GiB")
    assert roomy.get_min()[0] == 1
    need = roomy.candidates[0].device_bytes
    tight = config(gpus=1, gpu_memory_capacity=need - 1)
    assert tight.candidates[0].device_bytes < need
    assert tight.get_min()[2] >= roomy.get_min()[2]
    none = config(gpus=6, gpu_memory_capacity="16MiB")
    assert all("of device memory are needed, 16 MiB are there" in r.reason for r in none.candidates)
    assert none.batch_times == {}
    with pytest.raises(DoesNotFit, match="no shape of gpt fits 6 GPUs"):
        none.get_min()


def test_a_weight_of_two_slices_counts_once_where_both_are_in_one_stage(config):
    tied = replace(PROFILE, tied=(Tied(first=0, second=4, nbytes=2 * MIB),))
    for stages, less in ((6, 0), (1, 2 * MIB * (1 + 1 + 2))):  # weight, gradient, two states
        need = [config(gpus=stages, profile=each).candidates for each in (PROFILE, tied)]
        rows = [[row.device_bytes for row in of if row.stages == stages] for of in need]
        assert [one - less for one in rows[0]] == rows[1]
    asked = {"gpus": 1, "gpu_memory_capacity": min(rows[1])}
    assert config(profile=tied, **asked).get_min()[:2] == (1, 1), "foreseen, and proved"
    assert config(**asked).batch_times == {}


def test_a_given_shape_is_cut_by_time_within_memory():
    slices = tuple(
        replace(each, weight_bytes=weight, state_bytes=2 * weight)
        for each, weight in zip(PROFILE.slices, (200 * MIB, *[25 * MIB] * 5), strict=True)
    )
    for room, cut in ((2048 * MIB, "3 3"), (950 * MIB, "2 4"), (MIB, "3 3")):  # nothing fits these
        profile = replace(PROFILE, slices=slices, device_bytes=room)
        assert cut_of(stages_of(profile, "varuna", 2, 1, 1, 8)) == cut


@pytest.mark.parametrize("order", ["varuna", "1f1b", "gpipe", "interleaved"])
def test_a_schedule_of_few_micro_batches_tells_the_memory_of_many(config, monkeypatch, order):
    asked = {"gpus": 3, "batch": 80, "order": order}
    few = config(**asked)
    monkeypatch.setattr(autoconfig, "MORE", 1000)
    assert config(**asked).candidates == few.candidates


def test_deep_pipelines_are_for_memory_and_slow_links_for_few_of_them(config):
    """Copies whose sums cost little are faster; where weights are too many for a device, stages
    divide them; where sums are slow, stages take their place."""
    assert config(batch=32).get_min()[0] == 1
    slow = replace(PROFILE, sums=tuple(replace(s, seconds=20 * s.seconds) for s in PROFILE.sums))
    assert config(batch=32, profile=slow).get_min()[0] > 1
    assert config(batch=32, gpu_memory_capacity="100MiB").get_min()[0] > 1


def test_links_are_within_hosts_or_between_them(config):
    """Replicas of three stages on hosts of four: the second one's ranks 3 and 4 lie on two."""
    near, mixed, far = (config(gpus=6, per_vm=n) for n in (6, 4, 1))
    times = [
        next(r.seconds for r in made.candidates if (r.stages, r.replicas, r.micro) == (3, 2, 1))
        for made in (near, mixed, far)
    ]
    assert times[0] < times[1] < times[2]
    unknown = config(gpus=6, per_vm=4, profile=replace(PROFILE, between=None, sums=()))
    reasons = {(row.stages, row.replicas): row.reason for row in unknown.candidates}
    assert reasons[6, 1] == "messages between hosts were not profiled; profile on such ranks"
    assert reasons[2, 2].startswith("sums over copies were not profiled")
    assert not reasons[3, 1]


def test_measured_jitter_makes_steps_longer(config):
    shaky = replace(
        PROFILE,
        between=replace(BETWEEN, jitter=Deviation(sd_s=2e-2)),
        jitter=Deviation(sd_s=4e-3),
    )
    asked = {"per_vm": 1, "gpus": 3, "gpu_memory_capacity": "100MiB"}
    calm, shaken = config(**asked), config(**asked, profile=shaky)
    assert shaken.get_min()[0] == 3
    assert shaken.get_min()[2] > 1.05 * calm.get_min()[2]
    assert config(**asked, profile=shaky).get_min() == shaken.get_min()


def test_shapes_are_listed_by_their_seconds(config):
    shaky = replace(
        PROFILE,
        within=replace(WITHIN, jitter=Deviation(sd_s=4e-3)),
        between=replace(BETWEEN, jitter=Deviation(sd_s=2e-2)),
        jitter=Deviation(sd_s=4e-3),
    )
    made = config(gpus=4, per_vm=2, gpu_memory_capacity="100MiB", profile=shaky)
    fits = [row for row in made.candidates if not row.reason]
    assert fits == [*made.candidates[: len(fits)]] == sorted(fits, key=lambda row: row.seconds)
    proved = [row.proved for row in fits]
    assert proved != sorted(proved, reverse=True), "one is slower, with jitter, than was foreseen"


def test_other_orders_are_compared(config):
    every = config(gpus=4, order="auto", gpu_memory_capacity="160MiB")
    assert {row.order for row in every.candidates} >= {"varuna", "gpipe", "1f1b", "interleaved"}
    own = config(gpus=4, gpu_memory_capacity="160MiB")
    assert every.get_min()[2] <= own.get_min()[2]


def test_a_profile_is_read_as_it_was_written_and_others_are_refused(tmp_path, config):
    PROFILE.save(tmp_path)
    assert load(tmp_path, PROFILE.model, PROFILE.machine) == PROFILE
    other = Named(name="bert", digest="3c")
    with pytest.raises(ValueError, match=r"is of the model gpt \(1a\), not of bert \(3c\)"):
        config(model=other)
    with pytest.raises(ValueError, match=r"is of the machine H100 \(2b\), not of bert"):
        load(tmp_path, machine=other)
    data = read_sealed(tmp_path / "profile.json", "it")
    for change, sentence in (
        ({"samples": []}, "slices have costs of .. samples"),
        ({"slices": [data["slices"][0], data["slices"][0] | {"costs": []}]}, "slice 1 has 0 costs"),
        ({"within": {"latency_s": 1, "bytes_per_s": 0}}, "within is .*; its rate is positive"),
        ({"version": 1}, "is of version 1, not 2; profile anew"),
    ):
        (tmp_path / "profile.json").write_text(json.dumps(data | change))
        with pytest.raises(ValueError, match=sentence):
            load(tmp_path)
    with pytest.raises(ValueError, match="is not there; a Profiler writes it"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gpus": 0}, "num_gpus is 0; it must be 1 or more"),
        ({"order": "fastest"}, "order is 'fastest'; it must be one of gpipe,"),
        ({"gpu_memory_capacity": "3G"}, "'3G' is not an amount of memory"),
    ],
)
def test_what_cannot_be_is_one_sentence(config, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        config(**changes)
