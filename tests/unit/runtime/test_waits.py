"""Ranks wait for each other's counts, and never for what will not come."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.runs.helpers import HANG_S
from workbench import native
from workbench.runtime import board as module
from workbench.runtime.board import AHEAD, KEPT, SOURCE, Board, Failed

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
    """It looks by itself whether anybody has failed: from Python once, if that is often enough."""
    try:
        native.load(SOURCE)
    except native.CannotBuild:
        pytest.skip("there is no C++ compiler for what waits")
    mine, others = boards
    monkeypatch.setattr(module, "PATIENCE_S", HANG_S)
    monkeypatch.setattr(mine, "_await", module._waiter.__wrapped__())
    looks = []
    monkeypatch.setattr(mine, "check", lambda: looks.append(later(lambda: others.publish(0, 0))))
    mine.wait(0, 0)
    assert len(looks) == 1


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
    done = time.time()
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
