"""Recorded passes: when there are any, that they change no bit, and what memory they are given."""

from __future__ import annotations

import gc
import random
import threading
import time
from dataclasses import replace

import pytest
import torch

from baselines import l2l
from baselines.swapping.division import build as swapping
from baselines.swapping.division import divided
from tests.methods.harness import Silent, assert_equals_plain
from tests.methods.plain import MODEL, judge, made_up_profile, spec_for
from tests.methods.taped import on_tapes
from tests.methods.test_planner_quick import question
from tests.methods.test_ranks import MODEL as SMALL
from tests.methods.test_ranks import PACKS, schedule_for, sizes_for
from tests.methods.test_ranks import spec_for as spec_of_ranks
from workbench.core.division import packs_of
from workbench.methods import stronghold
from workbench.methods.offload import resident
from workbench.methods.pipeline import planner as pipeline
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.orders import lists
from workbench.methods.pipeline.program import Program
from workbench.profile.cuda_graphs import replays
from workbench.profile.footprint import give_back_workspaces
from workbench.profile.profile import RECORDED_BELOW_S
from workbench.profile.server import records
from workbench.profile.units import RECORDED_CHECKPOINT, Variant
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.passes import recorded_blocks
from workbench.schedule import buffers as name
from workbench.schedule.action import Kind
from workbench.training.rank_processes import RankTraining
from workbench.training.run import Training

PURE = replace(MODEL, dropout=0.0)


def on_gpu(profile, **changes):
    """The profile, of a GPU."""
    return replace(profile, hardware=replace(profile.hardware, **{"device": "cuda", **changes}))


def started(method, spec, folder, perturb=None):
    plan = method.plan(spec, on_gpu(made_up_profile(spec)))
    return Training(spec, plan, folder, perturb=perturb)


def trained(method, spec, folder, perturb=None):
    return to_the_end(started(method, spec, folder, perturb))


def trained_as(method, spec, profile, folder):
    """By a plan for this profile."""
    return to_the_end(Training(spec, method.plan(spec, profile), folder))


def to_the_end(training):
    try:
        training.run(Silent())
        return training, training.parameters()
    finally:
        training.close()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (stronghold, {"window": 2, "resident": 0}),
        (stronghold, {"window": 2, "resident": 1, "pulled": 2, "microbatches": 2}),
        (stronghold, {"window": 3, "resident": 2, "pulled": 1, "clip": 1e6}),
        (stronghold, {"window": 2, "resident": 1, "clip": None, "microbatches": 2}),
        (stronghold, {"window": 2, "resident": 1, "kept": 2, "activations": "auto"}),
        (stronghold, {"window": 2, "resident": 0, "activations": "host"}),
        (stronghold, {"window": 2, "resident": 5, "pulled": 0}),
        (l2l, {"microbatches": 2}),
        (resident, {"method": "megatron-lm", "microbatches": 2}),
        (resident, {"method": "megatron-lm", "microbatches": 2, "activations": "keep"}),
    ],
)
def test_results_are_equal_to_the_bit(tmp_path, method, changes, dtype):
    spec = spec_for(device="cuda", model=PURE, steps=6, dtype=dtype, **changes)
    launched, expected = trained(method, spec.with_(replay="off"), tmp_path / "launched")
    replayed, found = trained(method, spec.with_(replay="on"), tmp_path / "replayed")
    assert name.REPLAYS in replayed.plan.schedule.buffers
    assert name.REPLAYS not in launched.plan.schedule.buffers
    assert replayed.history.losses == launched.history.losses
    assert replayed.history.grad_norms == launched.history.grad_norms
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    if dtype == "fp32":
        losses, _ = judge(spec)
        for ours, plain in zip(replayed.history.losses, losses, strict=True):
            assert abs(ours - plain) <= 1e-6 * abs(plain)


@pytest.mark.parametrize("clip", [0.5, None])
def test_blocks_that_all_keep_are_one_chain(tmp_path, monkeypatch, clip):
    """A micro-batch passes all blocks before the next one, as recordings need it."""
    monkeypatch.setattr(recorded_blocks, "Replays", on_tapes(monkeypatch))
    stay = {"window": 5, "resident": 5, "pulled": 0, "activations": "keep"}
    spec = spec_for(model=PURE, steps=4, clip=clip, microbatches=2, replay="on", **stay)
    training, found = trained_as(stronghold, spec, on_gpu(made_up_profile(spec)), tmp_path)
    assert_equals_plain(spec, training, found)
    assert training.plan.schedule.buffers[name.REPLAYS].permanent


RECORDED = {"window": 2, "resident": 1, "pulled": 1, "microbatches": 2, "replay": "on"}


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4))
def test_random_delays_change_no_bit(tmp_path, seed):
    """On every stream and in every lane's thread."""
    choose, lock = random.Random(seed), threading.Lock()

    def delay(action, step):
        with lock:
            cycles, seconds = int(choose.random() * 1e7), choose.random() * 2e-3
        torch.cuda._sleep(cycles)
        time.sleep(seconds)

    spec = spec_for(device="cuda", model=PURE, steps=6, **RECORDED)
    calm, expected = trained(stronghold, spec, tmp_path / "calm")
    delayed, found = trained(stronghold, spec, tmp_path / "delayed", delay)
    assert delayed.history.losses == calm.history.losses
    assert all(torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.gpu
def test_a_recorded_step_that_is_not_finite_is_skipped(tmp_path):
    spec = spec_for(device="cuda", model=PURE, steps=3, **RECORDED)
    training = started(stronghold, spec, tmp_path)

    def poison(action, step):
        if action.name == "B4.0" and step == 1 and (4, 0) in training.engine._output_grads:
            training.engine._output_grads[4, 0][0].fill_(float("nan"))

    training.executor._perturb = poison
    training.run(Silent())
    after = training.parameters()
    training.close()
    assert training.history.skipped == [1]
    assert all(torch.isfinite(value).all() for value in after.values())
    whole, _ = trained(stronghold, spec, tmp_path / "whole")
    assert training.history.losses[:2] == whole.history.losses[:2]


@pytest.mark.gpu
def test_a_recorded_run_goes_on_from_its_checkpoint(tmp_path):
    spec = spec_for(device="cuda", model=PURE, steps=6, lr_decay_steps=20, save_every=3, **RECORDED)
    whole, expected = trained(stronghold, spec, tmp_path / "whole")
    trained(stronghold, spec.with_(steps=3), tmp_path / "parts")
    again, found = trained(stronghold, spec, tmp_path / "parts")
    assert again.executor.step_numbers == [3, 4, 5]
    assert again.history.losses == whole.history.losses
    assert all(torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.gpu
@pytest.mark.parametrize("activations", ["recompute", "host"])
def test_a_recorded_run_moves_what_was_planned(tmp_path, activations):
    spec = spec_for(device="cuda", model=PURE, activations=activations, steps=4, **RECORDED)
    training, _ = trained(stronghold, spec, tmp_path)
    assert training.outcome("test").moved_bytes == training.plan.moved_bytes


@pytest.mark.gpu
@pytest.mark.parametrize("replay", ["on", "off"])
def test_trainings_in_one_process_leave_no_more_than_the_first_ones(tmp_path, replay):
    """The next one takes the streams of the last, with their workspaces of matrix products."""
    spec = spec_for(device="cuda", model=PURE, steps=2, **RECORDED | {"replay": replay})
    give_back_workspaces(torch.device("cuda"))
    left = []
    for number in range(5):
        trained(stronghold, spec, tmp_path / str(number))
        gc.collect()
        torch.cuda.empty_cache()
        left.append(torch.cuda.memory_reserved())
    assert left[4] < left[1] + (8 << 20), left


PACKED = {
    "one rank": {"ranks": 1},
    "unequal micro-batches": {"ranks": 1, "forward_size": 4, "backward_size": 3},
    "one pack": {"ranks": 1, "forward": (), "backward": packs_of([6])},
    "layers that stay": {
        "ranks": 1, "forward": packs_of([2, 3]), "backward": packs_of([2, 3, 1]),
        "mirrored": True, "resident": frozenset({1, 3}),
    },
    "two ranks": {},
    "two ranks, shares": {"mode": "dp", "forward_size": 3, "backward_size": 1},
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("how", PACKED)
def test_packs_are_recorded(tmp_path, one_kernel, how, dtype):
    packs = replace(PACKS, **PACKED[how])
    spec = spec_for_ranks(packs.ranks, dtype)
    assert_equal_to_the_bit(spec, tmp_path, lambda on: schedule_for(packs, spec, replay=on))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("mode", "ranks"), [("dp", 1), ("dp", 2), ("pp", 2)])
def test_swapped_layers_are_recorded(tmp_path, one_kernel, mode, ranks, dtype):
    spec = spec_for_ranks(ranks, dtype)
    stages = packs_of([3, 3]) if mode == "pp" else (range(6),) * ranks
    line, sizes = divided(mode, 6, 2, stages, own=(1,) * ranks), sizes_for(spec)
    assert_equal_to_the_bit(spec, tmp_path, lambda on: swapping(replace(line, replay=on), sizes))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("order", "ranks", "activations"),
    [
        ("varuna", 2, "recompute"), ("varuna", 1, "keep"), ("1f1b", 2, "checkpoint"),
        ("interleaved", 2, "checkpoint"),
    ],
)  # fmt: skip
def test_pipelines_are_recorded(tmp_path, one_kernel, order, ranks, activations, dtype):
    spec = spec_for_ranks(ranks, dtype)
    chunks = 2 if order == "interleaved" else 1
    stages = packs_of({1: [6], 2: [3, 3], 4: [2, 1, 2, 1]}[ranks * chunks])
    line = Pipeline(
        method=order, passes=lists(order, ranks, 6, chunks), stages=stages,
        micro_size=1, activations=activations,
    )  # fmt: skip
    assert line.recordable

    def schedule(on):
        return Program(replace(line, replay=on), sizes_for(spec)).schedule()

    assert_equal_to_the_bit(spec, tmp_path, schedule)


@pytest.mark.parametrize("short", [True, False])
def test_short_passes_of_a_pipeline_are_planned_as_recordings(short):
    """Where a profile says that a backward pass from a checkpoint can be one; and what a step
    takes, and needs, is then foreseen by the times of recordings."""
    spec = spec_of_ranks(device="cuda", method="1f1b", model=replace(SMALL, dropout=0.0), ranks=2,
                         microbatches=4, activations="recompute", dtype="bf16")  # fmt: skip
    profile = on_gpu(made_up_profile(spec), source="measured")
    found = []
    for back in ((), (Variant(name=RECORDED_CHECKPOINT, seconds=(4e-6,)),)):
        variants = (Variant(name="recorded", seconds=(2e-6, 2e-6, 3e-6)), *back)
        forward = 1e-5 if short else RECORDED_BELOW_S
        units = tuple(replace(c, forward_s=forward, variants=variants) for c in profile.units)
        found.append(
            pipeline.plan(spec, {profile.microbatch: replace(profile, units=units)}, mode="1f1b")
        )
    launched, recorded = found
    assert not records(launched.schedule)
    assert records(recorded.schedule) is short
    assert (recorded.step_seconds < launched.step_seconds) is short


def spec_for_ranks(ranks, dtype):
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} CUDA devices")
    model = replace(SMALL, dropout=0.0)
    return spec_of_ranks(device="cuda", model=model, dtype=dtype, ranks=ranks)


@pytest.fixture
def one_kernel(monkeypatch):
    """torch's compiler times variants of a kernel, keeps one, and they round differently: ranks
    that do so at a time may choose others. So it chooses without a clock."""
    monkeypatch.setenv("TORCHINDUCTOR_DETERMINISTIC", "1")


def assert_equal_to_the_bit(spec, folder, schedule_of):
    """Two runs, whose schedules are made with recordings and without."""

    def run(replay: bool):
        there = folder / str(replay)
        crew = RankTraining(spec, schedule_of(replay), there, device="cuda")
        try:
            crew.run(Silent())
            return crew.history, checkpoint.parameters(crew.model, crew.states, crew.flats)
        finally:
            crew.close()

    (launched, expected), (replayed, found) = run(False), run(True)
    assert replayed.losses == launched.losses
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    if spec.dtype == "fp32":
        losses, _ = judge(spec.with_(ranks=1))
        for ours, plain in zip(replayed.losses, losses, strict=True):
            assert abs(ours - plain) <= 1e-6 * abs(plain)


@pytest.mark.parametrize(
    ("changes", "hardware", "expected"),
    [
        ({}, {}, True),
        ({}, {"device": "cpu"}, False),
        ({}, {"source": "published"}, False),
        ({"replay": "off"}, {}, False),
        ({"replay": "on"}, {"source": "published"}, True),
        ({"model": MODEL}, {}, False),
    ],
)
def test_recorded_where_it_pays_and_can_be(changes, hardware, expected):
    spec = spec_for(**{"model": PURE, **changes})
    profile = on_gpu(made_up_profile(spec), **{"source": "measured", **hardware})
    assert replays(spec, profile) is expected


def test_layers_are_recorded_that_a_profile_has_recorded_passes_of():
    """Whatever family they are of: those that vary have none."""
    spec = spec_for(model=MODEL)
    profile = on_gpu(made_up_profile(spec), source="measured")
    own = (Variant(name="recorded", seconds=(2e-6, 2e-6, 3e-6)),)
    units = [replace(cost, variants=own) for cost in profile.units]
    assert replays(spec, replace(profile, units=tuple(units)))
    units[2] = profile.units[2]
    assert not replays(spec, replace(profile, units=tuple(units)))


def test_long_passes_are_launched():
    spec = spec_for(model=PURE)
    profile = on_gpu(made_up_profile(spec), source="measured")
    units = tuple(replace(cost, forward_s=RECORDED_BELOW_S) for cost in profile.units)
    assert not replays(spec, replace(profile, units=units))


@pytest.mark.parametrize(
    ("changes", "device", "why"),
    [({}, "cpu", "the device is cpu"), ({"model": MODEL}, "cuda", "dropout 0.1")],
)
def test_what_cannot_be_recorded_is_refused(changes, device, why):
    spec = spec_for(**{"model": PURE, "replay": "on", **changes})
    with pytest.raises(ValueError, match=f"replay is on, and .*{why}.*must be auto or off"):
        replays(spec, on_gpu(made_up_profile(spec), device=device))


def test_recordings_work_in_memory_of_their_own():
    """What they work in is there once, instead of whenever one of them runs."""
    spec, profile = question(layers=6, batch=4)
    pins = {"resident": 2, "pulled": 1, "window": 2, "kept": 1}
    plan = stronghold.plan(spec.with_(replay="on", **pins), profile)
    buffers, block = plan.schedule.buffers, profile.units[1]
    own = buffers[name.REPLAYS]
    assert own.permanent
    assert own.nbytes > block.kept_bytes + block.parameters * profile.weight_bytes
    for action in plan.schedule.actions:
        alone = [label for label in action.takes if name.is_scratch(label)]
        kept = name.kept(action.unit, action.microbatch or 0) in action.takes
        if action.kind is Kind.RECOMPUTE and action.unit:
            assert not action.takes
        elif action.kind in (Kind.FORWARD, Kind.BACKWARD) and 0 < action.unit < 6:
            assert not alone
            assert not kept
        elif action.kind is Kind.FORWARD and action.unit in (0, 6, 7):
            assert alone
