"""Ranks say that there is room for messages before those that they wait for have come."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
import torch

from tests.methods.test_ranks import PACKS, schedule_for, spec_for
from tests.runs.helpers import HANG_S, wait_for
from workbench.runtime.executor.board import Board, Failed
from workbench.runtime.executor.executor import Executor
from workbench.schedule.action import RECEIVES
from workbench.schedule.build.inbox import PLACES


def test_as_many_messages_are_announced_as_there_are_places(tmp_path):
    """While the first does not come; the next one when its place is free again."""
    packs = replace(PACKS, forward_size=1, backward_size=1)
    schedule = schedule_for(packs, spec_for(clip=None))
    receives = [a.name for a in schedule.actions if a.rank == 1 and a.kind in RECEIVES]
    sizes = Board.sizes(schedule)
    Board.make(tmp_path / "board", **sizes)
    board = Board(tmp_path / "board", rank=1, **sizes)
    announced, ended, came, done = [], {}, threading.Semaphore(0), []
    lock = threading.Lock()

    def announce(action, step):
        with lock:
            announced.append(action.name)
            ended[action.name] = {*done}

    def work(action, step):
        if action.kind in RECEIVES:
            while not came.acquire(timeout=0.01):
                board.check()
        with lock:
            done.append(action.name)

    executor = Executor(
        schedule, work, torch.device("cpu"), board=board, announce=announce,
        on_failure=lambda error: None,
    )  # fmt: skip
    failures = []

    def run():
        try:
            executor.run(0, 1)
        except Failed as error:
            failures.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    try:
        for arrived in range(4):
            wanted = receives[: PLACES + arrived]
            wait_for(lambda wanted=wanted: len(announced) >= len(wanted))
            time.sleep(0.1)
            assert announced == wanted
            came.release()
    finally:
        executor.stop()
        runner.join(HANG_S)
    assert not runner.is_alive()
    assert failures
    assert len(announced) > PLACES
    for name in announced[PLACES:]:
        assert {*schedule.by_name[name].after} <= ended[name], "its place was not free"


def test_without_messages_there_is_nobody_to_announce_them(tmp_path):
    schedule = schedule_for(replace(PACKS, ranks=1), spec_for())
    executor = Executor(schedule, lambda *_: None, torch.device("cpu"), announce=pytest.fail)
    assert not executor._announcing
    executor.run(0, 2)


def test_other_ranks_hear_of_a_failure_when_its_cause_is_told(tmp_path):
    """They end then, and a lane that misses one of them must not be the first to tell why."""
    schedule, told = schedule_for(PACKS, spec_for()), []
    sizes = Board.sizes(schedule)
    Board.make(tmp_path / "board", **sizes)
    board, other = (Board(tmp_path / "board", rank=rank, **sizes) for rank in (0, 1))

    def tell(error: BaseException) -> None:
        if not isinstance(error, Failed):  # as lanes end that were stopped
            other.check()  # raises Failed where it has been told already
            told.append(error)

    def work(action, step):
        raise ValueError("what went wrong")

    executor = Executor(schedule, work, torch.device("cpu"), board=board, on_failure=tell)
    with pytest.raises(ValueError, match="what went wrong"):
        executor.run(0, 1)
    assert told
    with pytest.raises(Failed):
        other.check()
