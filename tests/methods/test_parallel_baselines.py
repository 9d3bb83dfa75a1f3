"""Baselines on several ranks train as plain training does, and end together whatever happens."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from baselines import data_parallel, zero_infinity, zero_offload
from baselines.pipeline import stages_of
from baselines.plain_training import train as train_plain
from baselines.stages import cut
from tests.methods import plain
from tests.methods.harness import Silent, assert_near, fork_ranks
from tests.methods.plain import made_up_profile
from tests.methods.torch_named import gpipe, interleaved, one_f_one_b, zero_bubble
from tests.runs.helpers import living
from workbench.core.model_spec import ModelSpec
from workbench.core.record import Outcome
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.ranks import launcher
from workbench.ranks.failures import RankFailed
from workbench.ranks.watchdog import Watchdog
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.schedule import validate
from workbench.schedule.action import Kind
from workbench.schedule.schedule import DEVICE
from workbench.training import trained_ranks

LOSS_TOLERANCE = 1e-6
"""Relative, in fp32. Seen were 3e-7."""
BF16_TOLERANCE = 2e-3
"""Sums of bf16 gradients round differently on every number of ranks. Seen were 4e-5."""
GPU_TOLERANCE = 1e-4
MODEL = ModelSpec(layers=5, hidden=32, heads=4, seq=16, vocab=256, dropout=0.1, tied=True)
PARAMETERS = make_model(MODEL).parameters_count()
KILLED = "ranks: one killed, until the run has ended"


def spec_for(**changes) -> RunSpec:
    values = {"model": MODEL, "batch": 6, "steps": 6, "lr_decay_steps": 20, "ranks": 2}
    return plain.spec_for(**{**values, **changes})


def assert_losses(spec: RunSpec, outcome: Outcome, tolerance: float = LOSS_TOLERANCE) -> None:
    expected = plain.judge(spec.with_(ranks=1, method="plain"))[0]
    assert len(outcome.losses) == len(outcome.step_seconds) == spec.steps
    for step, (ours, theirs) in enumerate(zip(outcome.losses, expected, strict=True)):
        assert abs(ours - theirs) <= tolerance * abs(theirs), (step, ours, theirs)


def assert_masters(spec: RunSpec, folder: Path) -> None:
    """Those of the newest checkpoint of a run."""
    _, expected = plain.judge(spec.with_(ranks=1, method="plain"))
    found, _ = newest_weights(folder)
    assert found.keys() == expected.keys()
    assert_near(found, expected)


def newest_weights(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and BatchNorm's statistics of a run's newest checkpoint."""
    newest = next(checkpoint.whole(folder / "checkpoints"))
    found = {
        label.removeprefix("weight/"): value
        for file in newest.path.glob("unit-*.safetensors")
        for label, value in load_file(file).items()
        if label.startswith("weight/")
    }
    return found, checkpoint.statistics(newest)


def children() -> set[psutil.Process]:
    """Those that still run: what other tests have not waited for yet is no process any more."""
    return {*living(psutil.Process().children(recursive=True))}


class Disturbing(Silent):
    """Does something once, when a step has been reported."""

    def __init__(self, at: int, what) -> None:
        super().__init__()
        self.at, self.what, self.did = at, what, 0.0

    def step(self, step: int, loss: float, seconds: float, grad_norm: float | None = None) -> None:
        super().step(step, loss, seconds)
        if step == self.at:
            self.did = time.monotonic()
            self.what()


@pytest.fixture
def forked(monkeypatch):
    """It is asked how ranks train."""
    fork_ranks(monkeypatch)


def kill(rank: int, how: signal.Signals = signal.SIGKILL) -> None:
    commands = {process: process.cmdline() for process in children()}
    ends = {process: words[-2:] for process, words in commands.items() if words[1:]}
    crew = {number: process for process, (folder, number) in ends.items() if "/ranks" in folder}
    os.kill(crew[str(rank)].pid, how)


# -- exactness -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked")
def test_data_parallelism_divides_unevenly_and_is_exact(tmp_path):
    """Micro-batches of 5 samples on 3 ranks, with parameters. In a worker, as the command line runs
    them, ranks are asked for in tests/runs."""
    spec = spec_for(method="data-parallel", batch=10, microbatches=2, ranks=3, save_every=6)
    outcome = data_parallel.train(spec, Silent(), tmp_path)
    assert_losses(spec, outcome)
    assert_masters(spec, tmp_path)
    assert all(norm > 0 for norm in outcome.grad_norms)
    assert max(outcome.grad_norms) > spec.clip
    weights = 4 * PARAMETERS
    assert 4 * weights < outcome.peak_bytes["device"]
    assert outcome.parameters == PARAMETERS
    assert outcome.engine.startswith("DistributedDataParallel of torch 2.")


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (gpipe, {"ranks": 1, "microbatches": 2, "activations": "keep", "steps": 4}),
        (one_f_one_b, {"ranks": 3, "batch": 8, "microbatches": 4}),
        (interleaved, {"microbatches": 2}),
        (zero_bubble, {"microbatches": 2}),
    ],
    ids=["GPipe, one stage", "1F1B, three stages", "interleaved", "zero bubble"],
)
@pytest.mark.usefixtures("forked")
def test_pipelines_are_exact(method, changes, tmp_path):
    spec = spec_for(**changes)
    assert_losses(spec, method.train(spec, Silent(), tmp_path))


@pytest.mark.parametrize(
    ("method", "tied"),
    [pytest.param(data_parallel, False, marks=pytest.mark.thorough), (one_f_one_b, True)],
    ids=["DP, untied", "1F1B"],
)
@pytest.mark.usefixtures("forked")
def test_bf16_follows_plain_bf16(method, tied, tmp_path):
    model = replace(MODEL, tied=tied)
    spec = spec_for(model=model, batch=4, microbatches=2, dtype="bf16", steps=6)
    expected = train_plain(spec.with_(ranks=1), Silent(), tmp_path / "plain")
    outcome = method.train(spec, Silent(), tmp_path / "ranks")
    for ours, theirs in zip(outcome.losses, expected.losses, strict=True):
        assert abs(ours - theirs) <= BF16_TOLERANCE * theirs


@pytest.mark.deepspeed
@pytest.mark.usefixtures("forked")
def test_zero_infinity_on_two_ranks(tmp_path):
    """Exact; and what the ranks have and move adds up to what one would."""
    spec = spec_for(batch=4, microbatches=2)
    outcome = zero_infinity.train(spec, Silent(), tmp_path)
    assert_losses(spec, outcome)
    weights = 4 * PARAMETERS
    assert outcome.peak_bytes["host"] == 6 * weights  # see test_zero
    assert outcome.moved_bytes["store"] == weights
    assert 1.9 * weights < outcome.moved_bytes["load"] < 2 * weights  # once for each micro-batch
    assert outcome.peak_bytes["device"] < 2 * weights
    assert outcome.engine.startswith("deepspeed 0.")


@pytest.mark.thorough
@pytest.mark.deepspeed
@pytest.mark.usefixtures("forked")
def test_zero_offload_on_two_ranks(tmp_path):
    """Exact; each rank has all weights, and its share of the optimizer's states on the host."""
    spec = spec_for(batch=4, microbatches=2)
    outcome = zero_offload.train(spec, Silent(), tmp_path)
    assert_losses(spec, outcome)
    weights = 4 * PARAMETERS
    assert outcome.peak_bytes["device"] > weights
    assert 6 * weights < outcome.peak_bytes["host"] < 6.5 * weights  # one copy, and padding
    assert 2 * weights < outcome.moved_bytes["load"] < 2.1 * weights  # a share, then the others'
    assert outcome.engine.startswith("deepspeed 0.")


def test_the_judge_can_say_no(tmp_path):
    spec = spec_for(batch=4, steps=6)
    outcome = train_plain(spec.with_(lr=1.1e-3, ranks=1), Silent(), tmp_path)
    with pytest.raises(AssertionError):
        assert_losses(spec, outcome)


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked")
def test_a_killed_rank_is_named_and_nothing_is_left(tmp_path, answered):
    before = children()
    report = Disturbing(2, lambda: kill(0))
    spec = spec_for(microbatches=2, steps=500)
    with pytest.raises(RankFailed, match="rank 0 was killed by SIGKILL"):
        data_parallel.train(spec, report, tmp_path)
    answered.enter(KILLED, 10, time.monotonic() - report.did)
    assert children() <= before


@pytest.fixture
def hurry(monkeypatch):
    """Shortens, when called, how long the ranks of a run may begin nothing."""
    watches = []
    monkeypatch.setattr(
        trained_ranks, "Watchdog", lambda *args: watches.append(Watchdog(*args)) or watches[0]
    )
    monkeypatch.setattr(trained_ranks, "HANG_STEPS", 0)
    return lambda: setattr(watches[0], "_limits", replace(trained_ranks.LIMITS, hang_s=2.0))


def test_a_stopped_stage_is_named_and_nothing_is_left(hurry, tmp_path, answered):
    before = children()
    report = Disturbing(2, lambda: (kill(1, signal.SIGSTOP), hurry()))
    told = "rank 1 hangs: it is stopped, and nobody has begun anything for 2 s"
    with pytest.raises(RankFailed, match=told):
        one_f_one_b.train(spec_for(microbatches=2, steps=500), report, tmp_path)
    answered.enter(
        "ranks: one stopped, for two seconds and until the run has ended",
        20,
        time.monotonic() - report.did,
    )
    assert children() <= before


def test_a_rank_that_is_stopped_before_its_first_step_is_named(hurry, monkeypatch, tmp_path):
    before = children()
    launch = launcher.subprocess.Popen

    def started(command, **how):
        """Of which the second one stops when it can answer, before the two have met."""
        process = launch(command, **how)
        if command[-1] == "1":
            for file in ("stack-0.txt", "stack-1.txt"):
                while not (tmp_path / "ranks" / file).exists():
                    time.sleep(0.01)
            process.send_signal(signal.SIGSTOP)
            hurry()
        return process

    monkeypatch.setattr(launcher.subprocess, "Popen", started)
    with pytest.raises(RankFailed, match="rank 1 hangs: it is stopped, and has been for 2 s"):
        data_parallel.train(spec_for(microbatches=2), Silent(), tmp_path)
    assert children() <= before


@pytest.mark.usefixtures("forked")
def test_a_pipeline_whose_rank_was_killed_goes_on_where_it_was(tmp_path, answered):
    """Tied over two stages, an odd number of micro-batches, without a limit on the norm."""
    before = children()
    spec = spec_for(microbatches=3, save_every=3, clip=None, activations="keep", steps=24)
    report = Disturbing(4, lambda: kill(1))
    with pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL"):
        gpipe.train(spec, report, tmp_path)
    answered.enter(KILLED, 10, time.monotonic() - report.did)
    assert children() <= before
    report = Silent()
    outcome = gpipe.train(spec, report, tmp_path)
    kinds = [kind for kind, _ in report.events]
    assert "resumed" in kinds
    assert 0 < kinds.count("step") < spec.steps
    assert_losses(spec, outcome)
    assert_masters(spec, tmp_path)


@pytest.mark.usefixtures("forked")
def test_a_rank_out_of_memory_is_named(tmp_path, answered):
    """The first stage has the embedding with its states, and needs more than the second."""
    before = children()
    spec = spec_for(microbatches=3, steps=500, device_memory=800_000)
    with (
        answered("ranks: started with too little memory, until the run has ended", 20),
        pytest.raises(OutOfMemory, match=r"device tier is out of memory: .* of rank 0 ") as raised,
    ):
        gpipe.train(spec, Silent(), tmp_path)
    assert raised.value.budget == 800_000
    assert children() <= before


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (data_parallel, {"microbatches": 6}, "micro-batch of 1 samples leaves some of 2 ranks"),
        (data_parallel, {"activations": "host"}, "activations cannot be 'host', use 'recompute'"),
        (gpipe, {"activations": "host"}, "activations cannot be 'host', use 'recompute'"),
        (gpipe, {"ranks": 6}, "6 stages need a block each, and the model has 5; use 1 to 5 ranks"),
        (one_f_one_b, {}, "1F1B needs a micro-batch for each of 2 stages; microbatches is 1"),
        (zero_infinity, {"batch": 5}, "a micro-batch of 5 does not divide among 2 ranks"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(method, changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        method.train(spec_for(**changes), Silent(), tmp_path)
    assert not (tmp_path / "ranks").exists()


# -- stages and plans ----------------------------------------------------------------------------


def test_stages_are_balanced_by_operations_then_by_parameters():
    """A head of two blocks' work leaves its stage two blocks less; a heavy embedding one less where
    that slows nothing."""
    assert cut([0, 4, 4, 4, 4, 4, 4, 8], [0] * 8, 2, recompute=False) == (range(5), range(5, 8))
    light = cut([0, 4, 4, 4, 4, 4, 0], [1, 1, 1, 1, 1, 1, 0], 2, recompute=True)
    heavy = cut([0, 4, 4, 4, 4, 4, 0], [9, 1, 1, 1, 1, 1, 0], 2, recompute=True)
    assert [len(stage) for stage in heavy] == [3, 4]
    assert max(map(len, light)) == 4


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_unit_is_in_one_stage_and_every_stage_has_a_block(ranks):
    stages = stages_of(make_model(MODEL), spec_for(ranks=ranks))
    assert [unit for stage in stages for unit in stage] == list(range(MODEL.layers + 2))
    assert all(set(stage) & set(range(1, MODEL.layers + 1)) for stage in stages)


@pytest.mark.parametrize("method", [data_parallel, gpipe, one_f_one_b], ids=["DP", "GPipe", "1F1B"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_plans_are_proved(method, ranks, tied):
    spec = spec_for(
        model=replace(MODEL, tied=tied), batch=16, microbatches=4, ranks=ranks, method="plan"
    )
    found = method.plan(spec, made_up_profile(spec))
    validate(found.schedule)
    assert found.fits
    assert found.schedule.num_ranks == ranks
    assert set(found.moved_bytes.values()) == {0}
    assert found.peak_bytes[DEVICE] >= 16 * PARAMETERS / (1 if method is data_parallel else ranks)


def test_plans_show_bubbles_and_what_1f1b_saves():
    """With equal stages and free messages GPipe takes K + N - 1 turns for K micro-batches."""
    model = ModelSpec(layers=8, hidden=32, heads=4, seq=16, vocab=64, tied=False)
    spec = spec_for(model=model, batch=32, microbatches=8, ranks=4, activations="keep")
    profile = made_up_profile(spec)
    fast = replace(
        profile,
        hardware=replace(
            profile.hardware, device="cuda", h2d_bytes_per_s=1e15, device_adam_params_per_s=1e15
        ),
        units=tuple(
            replace(
                unit, flops=on, forward_s=1e-3 * on, recompute_s=1e-3 * on, backward_s=2e-3 * on
            )
            for unit in profile.units
            for on in [float(unit.kind == "block")]
        ),
    )
    all_first, in_turn = gpipe.plan(spec, fast), one_f_one_b.plan(spec, fast)
    slots = spec.microbatches + spec.ranks - 1
    assert all_first.step_seconds == pytest.approx(slots * 2 * 3e-3, rel=1e-3)
    assert in_turn.step_seconds == pytest.approx(all_first.step_seconds, rel=1e-3)
    assert in_turn.peak_bytes[DEVICE] < 0.8 * all_first.peak_bytes[DEVICE]
    order = [a for a in in_turn.schedule.actions if a.rank == 3 and a.unit == 8]
    kinds = [a.kind for a in order if a.kind in (Kind.FORWARD, Kind.BACKWARD)]
    assert all(one is not other for one, other in pairwise(kinds))


def test_a_plan_that_does_not_fit_says_which_rank():
    spec = spec_for(batch=16, microbatches=4, ranks=2, device_memory=500_000)
    found = gpipe.plan(spec, made_up_profile(spec))
    assert not found.fits
    assert found.lacking == DEVICE
    assert found.binding.startswith("device memory: rank 0 needs ")


# -- GPUs ----------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        (data_parallel, "fp32"),
        (data_parallel, "bf16"),
        (gpipe, "fp32"),
        (one_f_one_b, "bf16"),
        pytest.param(zero_offload, "bf16", marks=pytest.mark.deepspeed),
        pytest.param(zero_infinity, "fp32", marks=pytest.mark.deepspeed),
        pytest.param(zero_infinity, "bf16", marks=pytest.mark.deepspeed),
    ],
)
def test_on_gpus(method, dtype, tmp_path):
    """On as many as there are, up to four; with compiled blocks in bf16, where there is no dropout
    either."""
    ranks = min(4, torch.cuda.device_count())
    if ranks < 2:
        pytest.skip("one GPU is no several")
    model = ModelSpec(layers=4, hidden=256, heads=4, seq=64, vocab=1000)
    micro = ranks if method in (gpipe, one_f_one_b) else 2
    spec = spec_for(
        model=model, device="cuda", dtype=dtype, batch=8, microbatches=micro, ranks=ranks,
        device_memory=2 << 30,
    )  # fmt: skip
    outcome = method.train(spec, Silent(), tmp_path / "ranks")
    reference = spec.with_(ranks=1, device_memory=None)
    expected = train_plain(reference, Silent(), tmp_path / "plain").losses
    tolerance = GPU_TOLERANCE if dtype == "fp32" else 10 * BF16_TOLERANCE
    for ours, theirs in zip(outcome.losses, expected, strict=True):
        assert abs(ours - theirs) <= tolerance * theirs
    assert 0 < outcome.peak_bytes["device"] <= spec.device_memory


@pytest.mark.gpu
@pytest.mark.parametrize("method", [data_parallel, one_f_one_b], ids=["DP", "1F1B"])
def test_a_killed_rank_on_gpus(method, tmp_path, answered):
    """Its peers wait in a kernel that nobody will end."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU is no several")
    before = children()  # of compilers, which other tests of this process have started
    report = Disturbing(2, lambda: kill(1))
    spec = spec_for(device="cuda", microbatches=2, steps=5000)
    with pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL"):
        method.train(spec, report, tmp_path)
    answered.enter(f"{KILLED}, on GPUs", 20, time.monotonic() - report.did)
    assert children() <= before
