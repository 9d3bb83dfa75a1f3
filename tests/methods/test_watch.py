"""Who is to blame where ranks stand still, by what they wrote on the board."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.methods.test_ranks import PACKS, schedule_for, spec_for
from workbench.ranks import watchdog as watching
from workbench.ranks.watchdog import Limits, Watchdog
from workbench.runtime.executor import board as boards
from workbench.runtime.executor.board import Board, Stage
from workbench.runtime.memory.shared import host_layout


@pytest.fixture
def ranks(tmp_path):
    """Two ranks without processes: the schedule, and the board as each sees it, and as the run."""
    schedule = schedule_for(PACKS, spec_for())
    sizes = Board.sizes(schedule)
    Board.make(tmp_path / "board", **sizes)
    both = [Board(tmp_path / "board", rank=rank, **sizes) for rank in range(2)]
    return SimpleNamespace(
        schedule=schedule, both=both, run=Board(tmp_path / "board", rank=0, **sizes)
    )


@pytest.fixture
def passing(monkeypatch):
    """Lets seconds pass, which pass by themselves for nobody here."""
    now = [time.monotonic()]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=time.sleep)
    for module in (watching, boards):
        monkeypatch.setattr(module, "time", clock)

    def passed(seconds: float) -> None:
        now[0] += seconds

    return passed


def watch_of(ranks, **limits) -> Watchdog:
    """From step 2 on."""
    return Watchdog(ranks.schedule, ranks.run, Limits(**limits), 2)


def begin(ranks, name: str, step: int) -> int:
    action = ranks.schedule.by_name[name]
    number = ranks.schedule.actions.index(action)
    ranks.both[action.rank].begin(number, step)
    return number


def ready(ranks, steps: int = 3) -> None:
    """All may begin, and have ended so many steps."""
    for board in ranks.both:
        board.come(Stage.READY)
        board.end_step(steps - 1, 0.0)


def test_who_has_not_come_is_late_before_who_waits_for_it(ranks):
    assert watch_of(ranks).late(1) is None, "there is time"
    late = watch_of(ranks, start_s=0.0)
    assert late.late(1) == "ranks 0, 1 have not started after 0 s: still importing"
    ranks.both[0].come(Stage.HERE)
    assert late.late(1) == "rank 1 has not started after 0 s: still importing"
    ranks.both[1].come(Stage.READY)
    assert late.late(1).startswith("rank 0 has not started after 0 s: still meeting the others")
    ready(ranks)
    assert late.late(1) is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_who_is_at_work_is_to_blame_and_not_who_waits_for_it(ranks, passing, order):
    """Whoever began first."""
    ready(ranks)
    for number in order:
        begin(ranks, ("F0.0", "1:RECV2.0")[number], 3)
        passing(0.01)
    found = watch_of(ranks, hang_s=0.0).late(4)
    assert found == "rank 0 hangs: it began F0.0 of step 3, and nobody has begun anything for 0 s"


def test_where_nobody_is_at_work_it_is_who_began_nothing_for_longest(ranks, passing):
    ready(ranks)
    passing(0.01)
    watch = watch_of(ranks, hang_s=0.0)
    assert watch.late(4).startswith("rank 0 hangs: it is ready for its first action, and nobody")
    for board, name in zip(ranks.both, ("F0.0", "1:L2"), strict=True):
        board.end(begin(ranks, name, 3), 3)
        passing(0.01)
    assert watch.late(4).startswith("rank 0 hangs: the last that it began is F0.0 of step 3, and")
    ranks.both[0].drain(4)
    assert watch.late(4).startswith("rank 1 hangs: the last that it began is 1:L2 of step 3, and")
    ranks.both[1].drain(4)
    assert watch.late(4) is None, "all is done"


def test_a_rank_without_work_is_not_to_blame(tmp_path):
    """There may be more ranks than packs; it has done nothing for longest."""
    schedule = schedule_for(replace(PACKS, ranks=6), spec_for())
    assert {action.rank for action in schedule.actions} == {0, 1, 2, 3, 4}
    sizes = Board.sizes(schedule)
    Board.make(tmp_path / "board", **sizes)
    idle, *working = [Board(tmp_path / "board", rank=rank, **sizes) for rank in (5, 0, 1, 2, 3, 4)]
    ready(SimpleNamespace(both=[idle, *working]))
    ranks = SimpleNamespace(schedule=schedule, both=working, run=working[0])
    working[0].end(begin(ranks, "F0.0", 3), 3)
    late = watch_of(ranks, hang_s=0.0).late(4)
    assert late.startswith("rank 1 hangs: it is ready for its first action")


def test_standing_still_between_segments_is_no_idleness(ranks, passing):
    ready(ranks)
    watch = watch_of(ranks, hang_s=0.5)
    passing(0.6)
    assert watch.late(4) is not None
    ranks.run.allow(4)
    assert watch.late(4) is None


def test_while_nobody_looked_nobody_was_idle(ranks, passing):
    """A whole job may be stopped and go on; who hangs after that is found all the same."""
    ready(ranks)
    watch = watch_of(ranks, hang_s=2.0)
    assert watch.late(4) is None
    passing(2.5)
    assert watch.late(4) is None
    found = []
    for _ in range(6):
        passing(0.5)
        found.append(watch.late(4) is not None)
    assert found == [False] * 2 + [True] * 4


def test_a_stopped_rank_is_named_whatever_it_is_at(ranks, passing, monkeypatch):
    """In its first step too, which may take longer; but not for a pause of the whole job."""
    stopped = set()
    monkeypatch.setattr(watching, "is_stopped", stopped.__contains__)
    ready(ranks, steps=2)
    processes = [SimpleNamespace(pid=7), SimpleNamespace(pid=8)]
    watch = Watchdog(ranks.schedule, ranks.run, Limits(hang_s=2.0), 2, processes, lambda: "asked")

    def told(**how: float) -> str | None:
        for _ in range(4):
            passing(0.9)
            found = watch.late(4, **how)
        return found

    assert told() is None
    stopped.add(8)
    assert told() == "rank 1 hangs: it is stopped, and has been for 2 s"
    passing(60.0)
    assert watch.late(4) is None
    ready(ranks, steps=3)
    assert told() == "rank 1 hangs: it is stopped, and nobody has begun anything for 2 s"
    stopped.clear()
    assert told(at_least_s=60.0) is None
    assert told() == "asked; nobody has begun anything for 2 s"


def test_what_waits_for_a_report_is_not_idle(ranks, passing):
    ready(ranks)
    watch = watch_of(ranks, hang_s=0.5)
    passing(0.6)
    ranks.run.report(1)
    assert watch.late(4) is None


def test_the_first_step_may_take_as_long_as_starting(ranks):
    """Layers are compiled in it."""
    ready(ranks, steps=2)
    assert watch_of(ranks, hang_s=0.0).late(3) is None
    assert watch_of(ranks, hang_s=0.0, start_s=0.0).late(3) is not None


def test_ranks_that_work_at_their_start_are_left_to_it(ranks, passing, monkeypatch):
    """They make a model and compile it, as long as processors are at it; but not for ever."""
    used = [0.0]
    monkeypatch.setattr(watching, "read", lambda: SimpleNamespace(own=used[0]))
    watch = Watchdog(ranks.schedule, ranks.run, Limits(start_s=3.0, most_s=45.0, hang_s=1.0), 2)

    def told(times: int, working: float) -> list[str | None]:
        return [(passing(1.1), used.append(used.pop() + working), watch.late(4))[2]
                for _ in range(times)]  # fmt: skip

    assert told(15, 0.5) == [None] * 15
    ready(ranks, steps=2)
    assert told(15, 0.5) == [None] * 15, "nothing that they did was an action"
    assert told(5, 0.0)[-1].endswith("nobody has begun anything for 3 s"), "nothing is at work"
    assert told(3, 0.5)[-1] is None
    assert told(9, 0.5)[-1] is not None, "it may spin"


def test_who_does_not_end_is_named_when_its_time_is_over(ranks, passing):
    watch = watch_of(ranks, end_s=0.1)
    assert watch.still_there([0, 1]) is None
    passing(0.2)
    assert watch.still_there([0, 1]) == "ranks 0, 1 do not end, 0 s after the last action"
    assert watch.still_there([1]) == "rank 1 does not end, 0 s after the last action"
    assert watch.still_there([]) is None


def test_more_memory_may_take_longer_to_let_go(ranks, passing, monkeypatch):
    nbytes = host_layout(ranks.schedule)[1]
    monkeypatch.setattr(watching, "END_BYTES", nbytes / 60)  # a minute more
    watch = watch_of(ranks, end_s=0.0)
    assert watch.still_there([0, 1]) is None
    assert watch.still_there([0, 1]) is None
    monkeypatch.setattr(watching, "END_BYTES", nbytes * 1e9)
    watch = watch_of(ranks, end_s=0.0)
    watch.still_there([0, 1])
    passing(0.01)
    assert watch.still_there([0, 1]) is not None
