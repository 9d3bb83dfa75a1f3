"""A rank that fails or hangs, wherever, is named, ends the run, and leaves nothing behind.

One that is killed is started as a run starts it. Others are forked (rank_server.py): how they were
started makes no difference to the question.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from tests.methods.harness import Silent, assert_equals_plain
from tests.methods.plain import judge
from tests.methods.test_ranks import PACKS, crew_of, schedule_for, spec_for
from tests.runs.helpers import HANG_S, wait_for
from workbench.core.division import packs_of
from workbench.core.model_spec import ModelSpec
from workbench.ranks import launcher
from workbench.ranks import watchdog as watching
from workbench.ranks.failures import RankFailed
from workbench.ranks.watchdog import LIMITS, Watchdog
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.executor import board as boards
from workbench.runtime.executor.board import AHEAD, KEPT, Board, Stage
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.schedule.action import MEETING
from workbench.training import rank_host
from workbench.training import rank_processes as trainings
from workbench.training.history import History
from workbench.training.rank_processes import RankTraining

REPLICAS = replace(PACKS, mode="dp", forward=packs_of([3]), backward=packs_of([3, 3]))
LOSES_ITS_PEER = """
import json, os, signal, sys, time
folder, rank = sys.argv[1:]
if rank == "0":
    while not os.path.exists(f"{folder}/here"):
        time.sleep(0.01)
    told = {"type": "RuntimeError", "message": "Connection closed by peer"}
    with open(f"{folder}/failure-0.json", "w") as file:
        json.dump({**told, "time": time.monotonic(), "lost_peer": True}, file)
    sys.exit(1)
open(f"{folder}/here", "w").close()
time.sleep(0.4)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Rank 0 says what rank 1's end led to, before that is seen to have ended."""
ALONE = replace(PACKS, ranks=1)


@pytest.fixture
def clock(monkeypatch):
    """That of the process which watches the ranks; a test lets it go ahead of theirs."""
    clock = SimpleNamespace(ahead_s=0.0, sleep=time.sleep, perf_counter=time.perf_counter)
    clock.monotonic = lambda: time.monotonic() + clock.ahead_s
    clock.time = lambda: time.time() + clock.ahead_s
    for module in (boards, launcher, trainings, watching):
        monkeypatch.setattr(module, "time", clock)
    return clock


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def assert_fails(message, packs, folder, what, error=RankFailed, *, forked=True, **changes):
    """A run ends with this error, and all its processes with it."""
    before = children()
    with (
        pytest.raises(error, match=message),
        crew_of(packs, spec_for(**changes), folder, what, forked=forked) as crew,
    ):
        crew.run(Silent())
    assert children() <= before


def test_a_rank_without_room_is_out_of_memory_and_named(tmp_path):
    message = r"device tier .* a tensor of rank \d needs"
    assert_fails(message, PACKS, tmp_path, "", OutOfMemory, device_memory=100_000)


def test_what_the_system_said_to_a_rank_out_of_memory_is_told(tmp_path):
    message = r"a lock of rank 1 needs 1 KiB, and 0 B are in use \(error 2\)"
    assert_fails(message, PACKS, tmp_path, "1:LOAD:1:fill", OutOfMemory)


def test_where_there_is_no_room_for_ranks_nothing_is_left_open(tmp_path, monkeypatch):
    make_shared, made = launcher.make_shared, []

    def full(_):
        raise OutOfMemory(tier="host", what="all ranks", asked=1, in_use=0, budget=None)

    def kept(nbytes, what):
        made.extend(make_shared(nbytes, what))
        return list(made)

    monkeypatch.setattr(launcher, "make_shared", kept)
    monkeypatch.setattr(rank_host, "make_shared", full)
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(OutOfMemory, match="all ranks needs"):
        RankTraining(spec_for(), schedule_for(PACKS, spec_for()), tmp_path, device="cpu")
    assert {child.pid for child in psutil.Process().children()} <= before
    assert made
    for descriptor in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_rank_that_raises_tells_its_cause(tmp_path):
    message = r"rank 0: a made-up failure \(RuntimeError\)"
    assert_fails(message, PACKS, tmp_path, "0:LOAD:2:raise")


def test_a_replica_that_is_killed_is_named_and_the_run_goes_on(tmp_path):
    spec = spec_for(save_every=3, ranks=2)
    what = "1:BACKWARD:4:kill"
    told, changes = "rank 1 was killed by SIGKILL", {"save_every": 3, "ranks": 2}
    assert_fails(told, REPLICAS, tmp_path, what, forked=False, **changes)
    with crew_of(REPLICAS, spec, tmp_path, forked=True) as again:
        again.run(Silent())
        assert again.results()[0]["steps"] == 3
        parameters = checkpoint.parameters(again.model, again.states, again.flats)
    assert_equals_plain(spec, again, parameters)


@pytest.mark.parametrize(
    ("packs", "what", "message"),
    [
        (PACKS, "1:FORWARD:2:hang", r"rank 1 hangs: it began 1:F\d\.\d of step 2, and nobody"),
        (PACKS, "0:FORWARD:2:hang", r"rank 0 hangs: it began F\d\.\d of step 2, and nobody"),
        (REPLICAS, "1:FORWARD:2:hang", r"rank 1 hangs: it began 1:F\d\.\d of step 2, and nobody"),
        pytest.param(
            ALONE, "0:UPDATE:2:hang", r"rank 0 hangs: it began U\d(\+1)? of step 2, and nobody",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["the last stage", "the first stage", "a replica", "the only one"],
)  # fmt: skip
def test_a_rank_that_hangs_is_named(packs, what, message, tmp_path, clock, monkeypatch):
    """Not one that waits for it, in a message or a sum. Time flies while only it is at work."""
    rank, kind, step, _ = what.split(":")
    look = Watchdog._look

    def looked(watch):
        look(watch)
        begun = [(watch._schedule.actions[a], at) for _, a, at in watch._board.unfinished()]
        at_work = [(a.rank, a.kind.name, at) for a, at in begun if a.kind not in MEETING]
        if at_work == [(int(rank), kind, int(step))]:
            clock.ahead_s += watching.LOOK_S / 2  # a leap would be this process standing still

    monkeypatch.setattr(Watchdog, "_look", looked)
    assert_fails(message, packs, tmp_path, what)


@pytest.mark.parametrize(
    ("packs", "where", "stages", "message"),
    [
        (PACKS, "import", (Stage.READY, Stage.ABSENT), "rank 1 has .*: still importing"),
        (REPLICAS, "meet", (Stage.HERE,) * 2, "ranks 0, 1 have .*: still meeting the others"),
    ],
    ids=["importing", "joining the process group"],
)
def test_a_rank_that_does_not_start_is_named(packs, where, stages, message, tmp_path, monkeypatch):
    """With those that are no further. Time flies as soon as the other has come as far as it can."""
    look = Watchdog._look

    def looked(watch):
        look(watch)
        if tuple(map(watch._board.stage, range(2))) == stages:
            watch._started_s -= LIMITS.start_s

    monkeypatch.setattr(Watchdog, "_look", looked)
    message = message.replace(".*", "not started after 600 s")
    assert_fails(message, packs, tmp_path, f"1:hangs:{where}")


def test_a_rank_that_does_not_end_is_named(tmp_path, monkeypatch):
    """Time flies as soon as the other one has ended."""
    still_there = Watchdog.still_there

    def asked(watch, running):
        if watch._done_s is not None and set(running) == {1}:
            watch._done_s -= LIMITS.end_s
        return still_there(watch, running)

    monkeypatch.setattr(Watchdog, "still_there", asked)
    message = "rank 1 does not end, 60 s after the last action"
    assert_fails(message, PACKS, tmp_path, "1:hangs:end", steps=2)


def test_a_checkpoint_may_take_longer_than_any_action(tmp_path, clock, monkeypatch):
    save, ended = History.save, Board.ended

    def slow(*args):
        clock.ahead_s += LIMITS.hang_s + LIMITS.end_s
        save(*args)

    def ready(board, step):
        assert {board.stage(rank) for rank in range(2)} == {Stage.READY}, "to start is no step"
        allow(board, step)

    allow = Board.allow
    monkeypatch.setattr(Board, "allow", ready)
    here = lambda *which: (ended(*which)[0], ended(*which)[1] + clock.ahead_s)  # noqa: E731
    monkeypatch.setattr(Board, "ended", here)
    monkeypatch.setattr(History, "save", slow)
    spec = spec_for(save_every=2, steps=4)
    with crew_of(PACKS, spec, tmp_path, forked=True) as crew:
        crew.run(Silent())
        parameters = checkpoint.parameters(crew.model, crew.states, crew.flats)
    assert_equals_plain(spec, crew, parameters)
    assert max(crew.history.step_seconds) < LIMITS.hang_s, "to save is no step"


@pytest.mark.parametrize("clip", [1.0, pytest.param(None, marks=pytest.mark.thorough)])
def test_ranks_wait_for_whoever_reports(clip, tmp_path, clock):
    """Longer than an action may take, and for more steps than the board keeps."""

    class Slow(Silent):
        def step(self, step, loss, seconds, grad_norm=None):
            super().step(step, loss, seconds)
            if step == 3:
                wait_for(lambda: crew.board.steps == step + AHEAD)
                clock.ahead_s += LIMITS.hang_s

    model = ModelSpec(layers=1, hidden=16, heads=1, seq=8, vocab=256)
    packs = replace(PACKS, minibatch=2, forward=packs_of([2]), backward=packs_of([2, 1]))
    spec = spec_for(model=model, batch=2, steps=3 * KEPT, clip=clip)
    with crew_of(packs, spec, tmp_path, forked=True) as crew:
        crew.run(Slow())
    expected, _ = judge(spec)
    assert crew.history.losses == pytest.approx(expected, rel=1e-4)


def test_what_ranks_that_have_ended_did_not_tell_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(RankTraining, "_known", lambda crew, step: step < 2)
    assert_fails("all ranks have ended, and step 2 of 6 has not", PACKS, tmp_path, "")


@pytest.mark.parametrize("looks", range(6))
def test_a_cause_that_ends_between_any_two_looks_is_seen(looks, tmp_path, clock):
    dead = SimpleNamespace(poll=lambda: 1)
    ends = SimpleNamespace(poll=iter([*[None] * looks, *[-signal.SIGKILL] * 99]).__next__)
    ranks = launcher.RankLauncher(tmp_path, "", 2, device="cpu")
    ranks.processes = [dead, ends]
    told = {"type": "RuntimeError", "message": "closed", "time": 0.0, "lost_peer": True}
    (tmp_path / "failure-0.json").write_text(json.dumps(told))
    with pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL"):
        ranks.check()


def test_the_cause_is_named_and_not_what_it_led_to(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "NOTICE_S", HANG_S)
    process = (sys.executable, "-c", LOSES_ITS_PEER)
    with (
        pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL"),
        crew_of(PACKS, spec_for(), tmp_path, process=process) as crew,
    ):
        crew.run(Silent())
