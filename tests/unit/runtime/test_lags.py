"""Work that lags behind its step: an executor fills the pipeline and drains it."""

from __future__ import annotations

import pytest
import torch

from workbench.runtime.executor.executor import Executor
from workbench.schedule.action import COMPUTE, HOST, Action, Kind
from workbench.schedule.schedule import Schedule

DELAYED = Schedule(
    name="delayed", num_units=1, num_microbatches=1,
    actions=(
        Action(kind=Kind.FORWARD, unit=0, microbatch=0, lane=COMPUTE, stale=2, after=("U0@-1",)),
        Action(kind=Kind.BACKWARD, unit=0, microbatch=0, lane=COMPUTE, lag=2),
        Action(kind=Kind.UPDATE, unit=0, lane=HOST, lag=2, after=("B0.0",)),
    ),
)  # fmt: skip


@pytest.fixture
def done():
    return []


@pytest.fixture
def executor(done):
    def work(action: Action, step: int) -> None:
        done.append((action.kind.value, step))

    ended = []
    executor = Executor(
        DELAYED, work, torch.device("cpu"), on_step_end=lambda step, _: ended.append(step)
    )
    executor.ended = ended
    return executor


def expected(first: int, end: int) -> list[tuple[str, int]]:
    """Each forward pass, and behind it the backward pass and the update of two steps before."""
    return [
        (kind, step)
        for now in range(first, end + 2)
        for kind, step in (("F", now), ("B", now - 2), ("U", now - 2))
        if first <= step < end
    ]


def test_a_segment_fills_and_drains(executor, done):
    executor.run(3, 4)
    assert sorted(done) == sorted(expected(3, 7))
    assert [each for each in done if each[0] != "U"] == [
        each for each in expected(3, 7) if each[0] != "U"
    ]
    assert executor.ended == [3, 4, 5, 6]
    assert executor.step_numbers == [3, 4, 5, 6]
    executor.run(7, 1)
    assert sorted(done) == sorted(expected(3, 7) + expected(7, 8))


def test_steps_that_are_asked_one_by_one_drain_at_the_end(executor, done):
    for step in range(3):
        executor.step(step)
    assert ("B", 1) not in done
    executor.end()
    assert sorted(done) == sorted(expected(0, 3))
    assert executor.ended == [0, 1, 2]


def test_a_failure_while_draining_ends_all_lanes(executor, done, monkeypatch):
    def fails(action: Action, step: int) -> None:
        if action.kind is Kind.BACKWARD and step == 3:
            raise ValueError("no gradient")
        done.append((action.kind.value, step))

    monkeypatch.setattr(executor, "_work", fails)
    with pytest.raises(ValueError, match="no gradient"):
        executor.run(0, 4)
    assert ("B", 2) in done
    assert ("U", 3) not in done
