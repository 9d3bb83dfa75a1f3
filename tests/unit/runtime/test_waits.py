"""Ranks wait for each other's counts, and never for what will not come."""

from __future__ import annotations

import platform
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.runs.helpers import HANG_S
from workbench.core import native
from workbench.runtime.executor.board import AHEAD, KEPT, Board, Failed
from workbench.runtime.memory import counts as counting
from workbench.runtime.memory.counts import SOURCE, Counts

SIZES = {"actions": 3, "ranks": 2, "units": 1}


@pytest.fixture
def boards(tmp_path: Path) -> tuple[Board, Board]:
    """One board as both ranks see it."""
    Board.make(tmp_path / "board", **SIZES)
    return tuple(Board(tmp_path / "board", rank=rank, **SIZES) for rank in range(2))


def later(what) -> list:
    """Filled before it is done."""
    done = []
    threading.Timer(0.2, lambda: (done.append(what), what())).start()
    return done


def test_a_wait_ends_when_the_other_is_done(boards, answered):
    mine, others = boards
    others.publish(1, 0)
    mine.wait(1, 0)  # it is
    done = later(lambda: others.publish(1, 1))
    with answered("board: a wait for what takes a fifth of a second", 5):
        mine.wait(1, 1)
    assert done


@pytest.mark.parametrize("who", ["the other rank", "this rank itself"])
def test_a_wait_ends_when_a_rank_fails(boards, who, answered):
    mine, others = boards
    later((others if who == "the other rank" else mine).fail)
    with answered("board: a wait for a rank that fails then", 5), pytest.raises(Failed):
        mine.wait(2, 0)


def test_who_waits_leaves_the_interpreter_alone(boards, monkeypatch):
    """It looks by itself whether anybody has failed: from Python only when its patience ends."""
    try:
        native.load(SOURCE)
    except native.CannotBuild:
        pytest.skip("there is no C++ compiler for what waits")
    mine, others = boards
    looks = []
    monkeypatch.setattr(counting, "PATIENCE_NS", int(HANG_S * 1e9))
    monkeypatch.setattr(mine, "check", lambda: looks.append(1))
    done = later(lambda: others.publish(0, 0))
    mine.wait(0, 0)
    assert (len(done), looks) == (1, [])


def test_a_norm_is_known_when_it_is_decided(boards):
    mine, others = boards
    assert others.norm_of(0) is None
    mine.decide(0, 2.5)
    assert others.norm_of(0) == 2.5
    assert others.norm_of(64) is None, "which lies where that of step 0 does"
    mine.decide(64, 3.5)
    assert (others.norm_of(0), others.norm_of(64)) == (None, 3.5)


def test_a_step_ends_when_the_last_rank_that_had_work_is_done(boards):
    """One without any may start late: it adds no seconds to a step."""
    busy, idle = boards
    busy.end_step(0, 1.5)
    done = time.monotonic()
    time.sleep(0.01)
    idle.end_step(0, 0.0, worked=False)
    loss, ended = busy.ended(0)
    assert loss == 1.5
    assert ended <= done
    idle.end_step(0, 0.25)
    loss, ended = busy.ended(0)
    assert loss == 1.75
    assert ended > done


def test_a_step_does_not_take_the_place_of_one_that_is_not_reported(boards):
    mine, run = boards
    for step in range(AHEAD):
        for board in boards:
            board.end_step(step, float(step))
    done = later(lambda: run.report(1))
    mine.end_step(AHEAD, 0.5)
    assert done
    run.end_step(AHEAD, 0.5)
    assert run.ended(1)[0] == 2.0
    assert run.ended(AHEAD)[0] == 1.0
    later(run.fail)
    with pytest.raises(Failed):
        mine.end_step(AHEAD + 1, 0.5)


def test_the_end_of_another_step_is_not_taken_for_it(boards):
    for board in boards:
        board.end_step(3, 1.5)
    with pytest.raises(AssertionError, match=f"the end of step {3 + KEPT} is not on the board"):
        boards[0].ended(3 + KEPT)


def test_a_count_is_stored_behind_what_it_stands_for(boards, tmp_path, monkeypatch):
    """By the release store, as all that the others wait for or look at."""
    _, others = boards
    load, store, wait = counting._calls()
    seen = []

    def stored(address, value):
        seen.append((value, float(others._ends[0, 0, 0]), float(others._norms_of[0, 0])))
        store(address, value)

    monkeypatch.setattr(counting, "_calls", lambda: (load, stored, wait))
    mine = Board(tmp_path / "board", rank=0, **SIZES)
    mine.publish(1, 4)
    mine.end_step(0, 2.5)
    mine.decide(0, 1.5)
    for count, tell in enumerate((mine.report, mine.allow, mine.drain), 7):
        tell(count)
    mine.stop()
    values = [5, 1, 1, 7, 8, 9, -2]
    assert seen == [(v, 2.5 * (n > 0), 1.5 * (n > 1)) for n, v in enumerate(values)]


def test_without_a_compiler_only_processors_that_keep_the_order_will_do(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(counting, "_calls", counting._calls.__wrapped__)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    row, nobody = Counts(np.zeros(3, np.int64)), Counts(np.full(1, -1))
    row[1] = 3
    assert (row[0], row[1], row.least()) == (0, 3, 0)
    assert (row.wait(1, 2, nobody), row.wait(0, 2, nobody)) == (True, False)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(ValueError, match=r"ranks need a C\+\+ compiler on aarch64, without which"):
        Counts(np.zeros(1, np.int64))
