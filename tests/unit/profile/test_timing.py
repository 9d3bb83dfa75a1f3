from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from workbench.core.host import available_cores
from workbench.core.others import Reading
from workbench.profile import timing
from workbench.profile.timing import (
    BRIEF,
    Once,
    Sample,
    Stopwatch,
    quietest,
    repeat_together,
    sample,
    summarize,
)


def same(seconds: float) -> Sample:
    return Sample(seconds, seconds)


def test_a_burst_of_disturbance_does_not_move_the_figure() -> None:
    calm = [same(1.0 + 0.01 * (i % 3)) for i in range(20)]
    disturbed = [*calm, same(5.0), same(9.0)]
    assert summarize(disturbed).seconds == pytest.approx(summarize(calm).seconds, abs=0.01)
    assert summarize(disturbed).spread < 0.02


def test_processor_time_counts_where_others_were_at_work() -> None:
    samples = [Sample(wall=2.0, cpu=1.0)] * 5
    assert summarize(samples, others=0.0).seconds == 2.0
    assert summarize(samples, others=0.8).seconds == 1.0


@pytest.fixture(autouse=True)
def at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BRIEF)


def test_brief_timings_are_made_once_and_take_a_small_part(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    clock = SimpleNamespace(perf_counter=lambda: 0.01 * len(taken))
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(
        Stopwatch, "_read", staticmethod(lambda: Reading(clock.perf_counter(), 0.0, 0.0))
    )

    def once() -> Sample:
        taken.append(1)
        return Sample(0.01, 0.01)

    sample(once, seconds=0.2, least=1)
    at_length = len(taken)
    taken.clear()
    monkeypatch.setenv(BRIEF, "1")
    sample(once, seconds=0.2, least=1)
    assert 1 < len(taken) <= 4 < 10 < at_length


def test_the_quietest_of_several_tries_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([1.5, 0.4, 0.9])

    class Scripted(Stopwatch):
        def __exit__(self, *failure: object) -> None:
            self.others = next(loads)

    monkeypatch.setattr(timing, "Stopwatch", Scripted)
    results = iter("abc")
    assert quietest(lambda: next(results), tries=3) == ("b", 0.4)


def test_a_quiet_machine_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet(Stopwatch):
        def __exit__(self, *failure: object) -> None:
            self.others = 0.0

    monkeypatch.setattr(timing, "Stopwatch", Quiet)
    calls = []
    quietest(lambda: calls.append(1))
    assert calls == [1]


def test_a_watch_does_not_count_our_own_work() -> None:
    with Stopwatch() as watch:
        end = time.perf_counter() + 0.3
        while time.perf_counter() < end:
            pass
    assert 0.0 <= watch.others <= available_cores()


def test_a_timing_has_enough_samples() -> None:
    calls = []

    def once() -> Sample:
        calls.append(1)
        return same(0.5)

    found = sample(once, seconds=0.0, least=6)
    assert len(calls) >= 7  # one to warm up
    assert found.seconds == 0.5


def test_work_counts_while_all_are_at_it() -> None:
    """Not what one did while the other was still at its first, and not what was left to do when
    one had stopped."""
    calls = [0, 0]
    many = threading.Event()

    def work(side: int) -> Once:
        def once() -> Sample:
            calls[side] += 1
            if calls[0] == 10:
                many.set()
            if side == 1:
                many.wait()
            time.sleep(0.001)
            return same(calls[side])

        return once

    first, second = repeat_together(work(0), work(1), seconds=0.05)
    assert min(len(first), len(second)) >= 2
    assert first[0].wall >= 10, "the other one's first call lasted until then"
    assert [sample.wall for sample in second] == [*range(2, 2 + len(second))]
    for side, samples in enumerate((first, second)):
        assert calls[side] - samples[-1].wall <= 1


def test_a_failure_on_either_side_is_raised_and_ends_the_other() -> None:
    def fails() -> Sample:
        raise OSError("the disk is gone")

    def works() -> Sample:
        time.sleep(0.001)
        return same(0.001)

    with pytest.raises(OSError, match="the disk is gone"):
        repeat_together(works, fails, seconds=5.0)
