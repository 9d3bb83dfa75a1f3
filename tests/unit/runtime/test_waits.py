"""Ranks wait for each other's counts, and never for what will not come."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from workbench.runtime.board import Board, Failed

SIZES = {"actions": 3, "ranks": 2, "units": 1}


@pytest.fixture
def boards(tmp_path: Path) -> tuple[Board, Board]:
    """One board as both ranks see it."""
    Board.make(tmp_path / "board", **SIZES)
    return tuple(Board(tmp_path / "board", rank=rank, **SIZES) for rank in range(2))


def later(what) -> threading.Timer:
    timer = threading.Timer(0.2, what)
    timer.start()
    return timer


def test_a_wait_ends_when_the_other_is_done(boards):
    mine, others = boards
    others.publish(1, 0)
    mine.wait(1, 0)  # it is
    began = time.monotonic()
    later(lambda: others.publish(1, 1))
    mine.wait(1, 1)
    assert 0.1 < time.monotonic() - began < 5


@pytest.mark.parametrize("who", ["the other rank", "this rank itself"])
def test_a_wait_ends_when_a_rank_fails(boards, who):
    mine, others = boards
    later((others if who == "the other rank" else mine).fail)
    began = time.monotonic()
    with pytest.raises(Failed):
        mine.wait(2, 0)
    assert time.monotonic() - began < 5


def test_who_waits_leaves_the_interpreter_alone(boards, monkeypatch):
    """It looks by itself whether anybody has failed, not thousands of times from Python."""
    mine, others = boards
    looks = []
    monkeypatch.setattr(mine, "check", lambda: looks.append(1))
    later(lambda: others.publish(0, 0))
    mine.wait(0, 0)
    assert 0 < len(looks) < 50


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
    done = busy.ended(0)[1]
    time.sleep(0.01)
    idle.end_step(0, 0.0, worked=False)
    assert busy.ended(0) == (1.5, done)
    idle.end_step(0, 0.25)
    loss, ended = busy.ended(0)
    assert loss == 1.75
    assert ended > done
