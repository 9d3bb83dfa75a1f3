"""However a run ends, it ends: with the cause, and with nothing left behind."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from baselines import l2l
from tests.methods import plain
from tests.methods.harness import Silent, assert_equals_plain, run, start
from tests.methods.plain import MODEL, made_up_profile
from tests.runs.helpers import HANG_S
from workbench.methods import stronghold
from workbench.model.gpt import GPT
from workbench.runtime.executor.board import Stopped
from workbench.runtime.memory.memory import Memory
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import DEVICE
from workbench.training.run import Training

LANES = ("compute", "h2d", "d2h", "host", "host.1", "disk-in", "disk-out")
EVERY_LANE = {
    "model": replace(MODEL, layers=4),
    "window": 2,
    "resident": 0,
    "activations": "host",
    "optimizer_tier": "disk",
    "host_workers": 2,
    "microbatches": 2,
    "clip": None,
    "steps": 6,
}
"""Settings whose schedule has something to do on every lane."""


class Broken(Exception):
    """What a test lets happen."""


class Ended:
    """Looks at what a run took from the process, and whether all of it came back."""

    def __init__(self, folder, answered) -> None:
        self.answered, self.start_s = answered, time.perf_counter()
        self.folder, self.files = folder, len(os.listdir("/proc/self/fd"))

    def by(
        self, error: Any, training: Training, *, match: str | None = None,
        in_autograd: bool = False,
    ) -> Any:  # fmt: skip
        """Run until it fails, close it and look; the error."""
        with pytest.raises(error, match=match) as caught:
            training.run(Silent())
        training.close()
        self.check(training, in_autograd=in_autograd)
        return caught.value

    def check(self, training: Training, *, in_autograd: bool = False) -> None:
        """Call after `close`. Torch itself never frees the graph of some backward passes that an
        exception from Python left (`in_autograd`), so the device's count says nothing then.
        """
        took_s = time.perf_counter() - self.start_s
        self.answered.enter("runs: made to fail, until all is given back", 10, took_s)
        assert [t.name for t in threading.enumerate() if t.name.startswith("lane")] == []
        assert training.memory.host.held() == {}
        assert list(self.folder.glob("scratch/*")) == []
        if training.device.type == "cuda":  # one counter for all, and files of the driver's own
            return
        assert training.meter.now == 0 or in_autograd
        assert len(os.listdir("/proc/self/fd")) == self.files


@pytest.fixture
def ended(tmp_path, answered):
    return Ended(tmp_path, answered)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("lane", LANES)
def test_a_lane_that_fails_ends_the_run(spec_for, tmp_path, ended, lane, seed):
    """At any action, before or after its work, in any step."""
    calls = random.Random(f"{lane} {seed}").randrange(24)

    def fail(action, step):
        nonlocal calls
        if action.lane == lane:
            if calls == 0:
                raise Broken(action.name)
            calls -= 1

    training = start(stronghold, spec_for(**EVERY_LANE), tmp_path, perturb=fail)
    ended.by(Broken, training)


def test_the_first_failure_is_the_one_that_is_raised(spec_for, tmp_path, ended):
    """Lanes that fail because another did, or after it, do not hide the cause."""

    def fail(action, step):
        if step == 2 and action.name == "B3.0":
            raise Broken("first")
        if step == 2 and action.lane == "host":
            raise Broken("later")

    training = start(stronghold, spec_for(**EVERY_LANE), tmp_path, perturb=fail)
    ended.by(Broken, training, match="first")


def test_no_more_threads_to_be_had(spec_for, tmp_path, ended, monkeypatch):
    training = start(stronghold, spec_for(**EVERY_LANE), tmp_path)
    begin = threading.Thread.start

    def refuse(thread):
        if thread.name == "lane host":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ended.by(RuntimeError, training, match="can't start new thread")


def test_stopping_from_another_thread(spec_for, tmp_path, ended):
    begun = threading.Event()
    training = start(
        stronghold, spec_for(**EVERY_LANE).with_(steps=10_000), tmp_path,
        perturb=lambda action, step: begun.set(),
    )  # fmt: skip

    def stop():
        begun.wait()
        time.sleep(0.2)
        training.executor.stop()

    other = threading.Thread(target=stop)
    other.start()
    ended.by(Stopped, training, match="the run was stopped")
    other.join()


def test_a_failure_while_weights_are_made(spec_for, tmp_path, ended, monkeypatch):
    training = start(stronghold, spec_for(**EVERY_LANE), tmp_path)
    training.close()

    def fail(model, unit, module, *, seed):
        if unit == 3:
            raise Broken

    closed = []
    monkeypatch.setattr(GPT, "initialize", fail)
    close = Memory.close
    monkeypatch.setattr(Memory, "close", lambda memory: (closed.append(memory), close(memory)))
    with pytest.raises(Broken):
        Training(training.spec, training.plan, tmp_path)
    assert [memory.host.held() for memory in closed] == [{}]
    ended.check(training)


# -- Ctrl-C ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A first run imports half of torch, and an import that is interrupted cannot be repeated."""
    run(stronghold, plain.spec_for(**EVERY_LANE).with_(steps=1), tmp_path_factory.mktemp("first"))


@pytest.fixture
def interrupt(monkeypatch, imported):
    """Raises KeyboardInterrupt in this thread, by a signal, after each of some delays.

    Python drops one that lands in a finalizer, and says so; then it is sent again, as a person
    would press the keys again, unless the run has ended since.
    """
    armed = threading.Event()

    def handler(*_):
        if armed.is_set():
            raise KeyboardInterrupt

    def shoot(*delays_s: float) -> threading.Thread:
        main = threading.main_thread().ident

        def fire() -> None:
            for delay_s in delays_s:
                time.sleep(delay_s)
                signal.pthread_kill(main, signal.SIGUSR1)

        armed.set()
        guns.append(threading.Thread(target=fire))
        guns[-1].start()
        return guns[-1]

    told = sys.unraisablehook

    def dropped(what) -> None:
        if what.exc_type is KeyboardInterrupt:
            if armed.is_set():
                shoot(0.02)
        else:
            told(what)

    monkeypatch.setattr(sys, "unraisablehook", dropped)

    @contextmanager
    def interrupts():
        try:
            yield shoot
        except KeyboardInterrupt:
            armed.clear()
        else:
            pytest.fail("the run ended before it was interrupted")

    guns: list[threading.Thread] = []
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield interrupts
    finally:
        armed.clear()
        for gun in guns:
            gun.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("seed", range(6))
def test_ctrl_c_at_any_moment(spec_for, tmp_path, ended, interrupt, seed):
    """In a wait, in an operation, in autograd, in the meter: wherever the signal lands."""
    training = start(stronghold, spec_for(**EVERY_LANE).with_(steps=10_000), tmp_path)
    with interrupt() as after:
        after(random.Random(seed).uniform(0.01, 0.2))
        training.run(Silent())
    training.close()
    ended.check(training, in_autograd=True)


def test_ctrl_c_while_a_lane_is_started(spec_for, tmp_path, ended, monkeypatch):
    """The system begins a thread when it likes, on a busy machine after its start was left."""
    training = start(stronghold, spec_for(**EVERY_LANE), tmp_path)
    begin, late = threading.Thread.start, []

    def interrupted(thread):
        if thread.name != "lane host":
            begin(thread)
            return
        late.append(thread)
        begin(threading.Timer(0.2, begin, (thread,)))
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    ended.by(KeyboardInterrupt, training)
    assert [(t.ident is not None, t.is_alive()) for t in late] == [(True, False)]


def test_ctrl_c_twice_waits_for_the_lanes_all_the_same(spec_for, tmp_path, ended, interrupt):
    """The second comes while the first waits for a slow update: no memory may go before its end.
    The first lands between two passes, which torch frees all of."""
    working, between = threading.Event(), threading.Event()

    def slow(action, step):
        if action.lane == "compute" and working.is_set():
            between.set()
            time.sleep(HANG_S)
        if action.lane == "host" and not working.is_set():
            working.set()
            assert between.wait(HANG_S)
            after(0.1, 0.1).join()
            time.sleep(0.3)
            working.clear()
            raise Stopped

    training = start(stronghold, spec_for(**EVERY_LANE), tmp_path, perturb=slow)
    with interrupt() as after:
        training.run(Silent())
    assert not working.is_set()
    training.close()
    ended.check(training)


# -- running out ----------------------------------------------------------------------------------


def test_out_of_device_memory_in_the_middle_of_a_step(tmp_path, ended):
    """One byte less than it takes ends the run in some operation; that byte more, and it goes."""
    spec = plain.spec_for(window=2, resident=0, steps=3)
    whole, _ = run(stronghold, spec, tmp_path)
    peak = whole.outcome("test").peak_bytes["device"]
    plan = whole.plan
    training = Training(spec.with_(device_memory=peak - 1), plan, tmp_path)
    words = "the device tier is out of memory"
    assert ended.by(OutOfMemory, training, match=words, in_autograd=True).tier == "device"
    again = Training(spec.with_(device_memory=peak), plan, tmp_path)
    again.run(Silent())
    again.close()
    assert again.history.losses == whole.history.losses
    assert again.memory.peak_bytes()["device"] == peak


@pytest.mark.gpu
def test_out_of_device_memory_on_a_gpu(tmp_path, ended):
    model = replace(MODEL, layers=4, hidden=512, seq=256)
    spec = plain.spec_for(model=model, window=2, resident=0, steps=2, batch=16, device="cuda")
    plan = stronghold.plan(spec, made_up_profile(spec))
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    whole = Training(spec, plan, tmp_path)
    whole.run(Silent())
    used = whole.meter.reserved_peak - held
    whole.close()
    torch.cuda.empty_cache()
    least = plan.schedule.static_bytes(DEVICE)
    assert least < 0.7 * used
    training = Training(spec.with_(device_memory=held + (least + used) // 2), plan, tmp_path)
    assert ended.by(OutOfMemory, training).tier == "device"
    again = Training(spec, plan, tmp_path)
    again.run(Silent())
    again.close()
    assert again.history.losses == whole.history.losses


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_a_disk_that_fails_in_the_middle(spec_for, tmp_path, ended, monkeypatch, call):
    """A file system that cannot promise room runs full at a write; a bad block shows at a read."""
    training = start(stronghold, spec_for(**EVERY_LANE), tmp_path)
    real, left = getattr(os, call), 9
    number = errno.ENOSPC if call == "pwritev" else errno.EIO

    def fail(*args):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(number, os.strerror(number))
        return real(*args)

    monkeypatch.setattr(os, call, fail)
    error = ended.by((OutOfMemory, OSError), training)
    if call == "pwritev":
        assert error.tier == "disk"
        assert "No space left on device" in str(error)
    else:
        assert "Input/output error: slab 'do" in str(error)


# -- plans of other models ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": replace(MODEL, layers=6)}, "has 7 units, the model 8"),
        ({"model": replace(MODEL, hidden=64)}, "bytes for the weights of unit 0"),
        ({"model": replace(MODEL, tied=False)}, "bytes for the weights of unit 6"),
        ({"dtype": "bf16"}, "plan again for this model and torch.bfloat16"),
        ({"microbatches": 2}, "has 1 micro-batches, the run 2"),
        ({"batch": 8}, "for 8 samples of 16"),
    ],
)
def test_a_plan_for_another_run_is_refused(tmp_path, changes, sentence):
    spec = plain.spec_for(window=2, resident=0)
    plan = stronghold.plan(spec, made_up_profile(spec))
    with pytest.raises(ValueError, match=sentence):
        Training(spec.with_(**changes), plan, tmp_path)


def test_a_plan_with_an_action_that_nothing_performs_is_refused(tmp_path):
    spec = plain.spec_for(window=2, resident=0)
    plan = stronghold.plan(spec, made_up_profile(spec))
    evict = Action(kind=Kind.EVICT, unit=3, lane="d2h", after=("U3",))
    plan = replace(plan, schedule=replace(plan.schedule, actions=(*plan.schedule.actions, evict)))
    with pytest.raises(ValueError, match=r"nothing performs E3, a EVICT, on one device; it can be"):
        Training(spec, plan, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_plan_that_recomputes_holds_for_a_run_that_would_keep(tmp_path):
    """The schedule alone decides what is kept; the planner of L2L knows no keeping."""
    spec = plain.spec_for(method="l2l", steps=3, lr_decay_steps=20, activations="keep")
    kept, parameters = run(l2l, spec, tmp_path / "keep")
    recomputed, _ = run(l2l, spec.with_(activations="recompute"), tmp_path / "recompute")
    peaks = [t.memory.peak_bytes()["device"] for t in (kept, recomputed)]
    assert peaks[0] == peaks[1]
    assert_equals_plain(spec, kept, parameters)


# -- long runs ------------------------------------------------------------------------------------


class Blocks:
    """A reporter that keeps nothing but how many blocks Python's allocator held, now and then."""

    def __init__(self, at: tuple[int, ...]) -> None:
        self.at, self.blocks = at, {}

    def step(self, step: int, loss: float, seconds: float, grad_norm: float | None = None) -> None:
        if step in self.at:
            gc.collect()
            self.blocks[step] = sys.getallocatedblocks()

    def event(self, kind: str, **values) -> None: ...

    def phase(self, text: str) -> None: ...


def test_two_hundred_steps_hold_no_more_than_fifty(tmp_path):
    """But for what a record has of every step: loss, seconds, gradient norm, and its number."""
    model = replace(MODEL, layers=2, hidden=8, heads=1, seq=4, dropout=0.0)
    spec = plain.spec_for(
        model=model, window=2, resident=0, optimizer_tier="disk", batch=1, steps=200
    )
    training = start(stronghold, spec, tmp_path)
    report = Blocks((50, 190))
    try:
        training.run(report)
        engine, executor = training.engine, training.executor
        assert len(engine._steps) <= 4
        assert not engine._inputs
        assert not engine._graphs
        assert not engine._output_grads
        assert not executor._completions
        assert len(executor.events) == 3 * len(training.plan.schedule.actions)
    finally:
        training.close()
    assert len(training.history.losses) == 200
    growth = report.blocks[190] - report.blocks[50]
    assert growth / 140 < 6, growth


def test_completions_of_few_steps_are_kept(spec_for, tmp_path):
    """However far ahead a lane runs, which is at most what dependencies allow."""
    most = 0

    def look(action, step):
        nonlocal most
        most = max(most, len(training.executor._completions))
        if action.kind is Kind.UPDATE:
            time.sleep(2e-3)

    training = start(stronghold, spec_for(window=2, resident=0), tmp_path, perturb=look)
    training.run(Silent())
    training.close()
    assert most <= 4
